package machineobject

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/sanitize"
	"github.com/orlop-os/orlop/pkg/slot"
)

// These are the reasons of the conditions in the status of the object.
const (
	reasonHealthy   = "Healthy"
	reasonUnhealthy = "Unhealthy"
	reasonUpToDate  = "UpToDate"
	reasonOther     = "OtherReleaseWanted"
	reasonStarting  = "Starting" // the request to machined runs or was accepted
	// the machine downloads the release or writes it to the other slot
	reasonWriting      = "Writing"
	reasonRebooting    = "Rebooting" // the machine reboots to the release, or back from it
	reasonTrial        = "OnTrial"   // the release runs and is not committed yet
	reasonIdle         = "Idle"
	reasonRolledBack   = "RolledBack"
	reasonNoRollback   = "NoRollback"
	reasonAcknowledged = "Acknowledged" // the object has wanted another release since the rollback
)

// maxText is the largest length of a text in the status, and of the log of a failed release, in
// bytes.
const maxText = 1024

// attemptInterval is the delay before the next request after machined has rejected a request, for
// example because another machine has the turn for minutes. failureInterval is the delay after a
// change of the release that failed while it ran. It is longer, because each attempt may transfer
// the whole bundle.
const (
	attemptInterval = 30 * time.Second
	failureInterval = 5 * time.Minute
)

// acceptedTime is the longest time from the acceptance of a request until the upgrade status of the
// machine shows the release.
const acceptedTime = time.Minute

// attempt is the last request to machined for a release, with its result.
type attempt struct {
	version string // requested version; empty: no request
	running bool   // machined has not responded yet
	ended   time.Time
	problem string // why machined rejected the request; empty if machined accepted it
}

// input is the input of step.
type input struct {
	object    *machineapi.OrlopMachine
	state     *api.ObjectState
	addresses []machineapi.Address
	leader    bool // its etcd member is the leader
	last      attempt
	repaired  repairAttempt
	now       time.Time
}

// step returns the next status of the object, and the request for a release that the caller has to
// send to machined after it has written the status. The request is nil if the release stays. The
// first row of the table that applies decides:
//
//	machine                                  permit                          requested release
//	changes its release                      any                             none
//	any                                      none, or expired                none
//	any                                      for another release than spec   none
//	runs the release                         any                             none
//	has rolled back from the release         any                             none
//	had the request rejected less than       any                             none
//	attemptInterval ago, or failed less
//	than failureInterval ago
//	any other                                valid                           the permitted release
//
// A release stays rolled back until the object has wanted another release. After that, the object
// can want the same release again.
func step(in input) (machineapi.OrlopMachineStatus, *api.ChangeReleaseRequest) {
	s := *in.object.Status.DeepCopy()
	u := in.state.Upgrade
	provisioned := true
	s.Initialization = &machineapi.Initialization{Provisioned: &provisioned}
	s.ObservedGeneration = in.object.Generation
	s.Addresses, s.EtcdLeader = in.addresses, in.leader
	s.Release, s.Drain = in.release(), in.drain()
	rolledBack := in.rollback()
	if s.Failed = nil; rolledBack.Status == metav1.ConditionTrue {
		ended := metav1.NewTime(u.GetEnded().AsTime().Truncate(time.Second))
		s.Failed = &machineapi.FailedRelease{
			Release: machineapi.ReleaseReference{Version: u.GetTo(), Image: in.imageOf(u.GetTo())}, Reason: head(u.GetReason()), Log: tail(u.GetLog()), Time: &ended,
		}
	}
	updating := in.updating()
	var change *api.ChangeReleaseRequest
	if updating.Status != metav1.ConditionTrue && in.mayChange(s.Failed) {
		p := in.object.Spec.Permit
		change = &api.ChangeReleaseRequest{Version: p.Release.Version, Image: p.Release.Image, Peers: p.Peers}
		updating = condition(machineapi.ConditionUpdating, true, reasonStarting, "the machine starts the change to version "+p.Release.Version)
	}
	for _, c := range []metav1.Condition{in.ready(), in.upToDate(), updating, rolledBack} {
		c.ObservedGeneration, c.LastTransitionTime = in.object.Generation, metav1.NewTime(in.now.Truncate(time.Second))
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s, change
}

// condition returns a condition of this type (kind), without its time. status true gives the status
// "True", false gives "False".
func condition(kind string, status bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// phase returns the phase of the last change of the release.
func (in input) phase() slot.Phase { return slot.Phase(in.state.Upgrade.GetPhase()) }

// release returns the running release for the status, with its state: on trial, or committed since
// a time.
func (in input) release() *machineapi.RunningRelease {
	u := in.state.Upgrade
	r := &machineapi.RunningRelease{Version: in.state.Version, Kubernetes: in.state.Kubernetes}
	if u.GetTo() != in.state.Version {
		return r
	}
	r.OnTrial = in.phase() == slot.Trial
	if in.phase() == slot.Committed && u.GetEnded().IsValid() {
		since := metav1.NewTime(u.GetEnded().AsTime().Truncate(time.Second))
		r.Since = &since
	}
	return r
}

// target returns the version that the object wants, or "" if the running version has to stay.
func (in input) target() string {
	switch spec := in.object.Spec; {
	case spec.Release != nil:
		return spec.Release.Version
	case spec.Permit != nil:
		return spec.Permit.Release.Version
	}
	return ""
}

// imageOf returns the image that the object names for a version, or "" if it names none.
func (in input) imageOf(version string) string {
	spec := in.object.Spec
	switch {
	case spec.Release != nil && spec.Release.Version == version:
		return spec.Release.Image
	case spec.Permit != nil && spec.Permit.Release.Version == version:
		return spec.Permit.Release.Image
	}
	return ""
}

// ready returns the condition Ready, from the health of the machine.
func (in input) ready() metav1.Condition {
	if in.state.Problem != "" {
		return condition(machineapi.ConditionReady, false, reasonUnhealthy, head(in.state.Problem))
	}
	return condition(machineapi.ConditionReady, true, reasonHealthy, "all checks of the machine pass")
}

// upToDate returns the condition UpToDate: true if the machine runs the version that the object
// wants, or if the object wants no version.
func (in input) upToDate() metav1.Condition {
	if to := in.target(); to != "" && to != in.state.Version {
		return condition(machineapi.ConditionUpToDate, false, reasonOther, fmt.Sprintf("the machine runs version %s, and version %s is wanted", in.state.Version, to))
	}
	return condition(machineapi.ConditionUpToDate, true, reasonUpToDate, "the machine runs version "+in.state.Version)
}

// updating returns the condition Updating: true while a change of the release runs. It does not
// consider a request that step is about to return: step itself sets the condition for that request.
func (in input) updating() metav1.Condition {
	u, yes := in.state.Upgrade, func(reason, message string) metav1.Condition {
		return condition(machineapi.ConditionUpdating, true, reason, message)
	}
	switch phase := in.phase(); {
	case phase == slot.Writing:
		return yes(reasonWriting, head(cmp.Or(u.GetOperation(), "the machine receives version "+u.GetTo())+drainText(in.state.Drain)))
	case phase == slot.Written, phase == slot.Trial && u.GetTo() != in.state.Version:
		return yes(reasonRebooting, fmt.Sprintf("the machine reboots from version %s", in.state.Version))
	case phase == slot.Trial && u.GetReason() != "":
		return yes(reasonRebooting, fmt.Sprintf("the machine returns to version %s: %s", u.GetFrom(), head(u.GetReason())))
	case phase == slot.Trial:
		return yes(reasonTrial, fmt.Sprintf("version %s is on trial", u.GetTo())+waiting(u.GetWaitingFor()))
	case in.last.running:
		return yes(reasonStarting, head("the machine starts the change to version "+in.last.version+drainText(in.state.Drain)))
	case in.last.accepted(in.state, in.now):
		return yes(reasonStarting, "the machine has accepted version "+in.last.version)
	case in.last.problem != "" && in.last.version == in.target() && in.target() != in.state.Version:
		return condition(machineapi.ConditionUpdating, false, machineapi.ReasonRefused, head(in.last.problem))
	case phase == slot.Failed && u.GetTo() == in.target():
		return condition(machineapi.ConditionUpdating, false, machineapi.ReasonRefused, head(u.GetReason()))
	}
	return condition(machineapi.ConditionUpdating, false, reasonIdle, "no change of the release runs")
}

// The function waiting returns the end of a sentence about a version on trial: the upgrade probe
// for which the version waits, or "" if it waits for none.
func waiting(check string) string {
	if check == "" {
		return ""
	}
	return " and waits for: " + head(check)
}

// accepted reports whether machined has accepted the request less than acceptedTime ago, and the
// state of the machine does not show the release yet.
func (a attempt) accepted(s *api.ObjectState, now time.Time) bool {
	return a.version != "" && !a.running && a.problem == "" && a.version != s.Version && now.Before(a.ended.Add(acceptedTime)) && !s.Upgrade.GetEnded().AsTime().After(a.ended)
}

// rollback returns the condition RolledBack: true after a rollback, until the object wants another
// release and so acknowledges the rollback. The message of the acknowledged condition contains the
// version and the time of the rollback. A later rollback has another message and is therefore not
// acknowledged.
func (in input) rollback() metav1.Condition {
	u := in.state.Upgrade
	if in.phase() != slot.RolledBack || u.GetTo() == in.state.Version {
		return condition(machineapi.ConditionRolledBack, false, reasonNoRollback, "the last change of the release was not rolled back")
	}
	acknowledged := condition(machineapi.ConditionRolledBack, false, reasonAcknowledged,
		fmt.Sprintf("version %s was rolled back at %s; another release was wanted since then", u.GetTo(), u.GetEnded().AsTime().Format(time.RFC3339Nano)))
	before := meta.FindStatusCondition(in.object.Status.Conditions, machineapi.ConditionRolledBack)
	if before != nil && before.Reason == acknowledged.Reason && before.Message == acknowledged.Message {
		return acknowledged
	}
	if to := in.target(); to != "" && to != u.GetTo() {
		return acknowledged
	}
	return condition(machineapi.ConditionRolledBack, true, reasonRolledBack, fmt.Sprintf("version %s was rolled back: %s", u.GetTo(), head(u.GetReason())))
}

// mayChange reports whether the machine may request the permitted release from machined now. The
// caller has checked that no change of the release runs.
func (in input) mayChange(failed *machineapi.FailedRelease) bool {
	spec := in.object.Spec
	p := spec.Permit
	switch {
	case p == nil || !(rollout.Permit{Release: p.Release.Version, Expires: p.Expires.Time}).Allows(p.Release.Version, in.now):
		return false
	case spec.Release != nil && !names(*spec.Release, p.Release):
		return false
	case p.Release.Version == in.state.Version:
		return false
	case failed != nil && failed.Release.Version == p.Release.Version:
		return false
	case in.phase() == slot.Failed && in.state.Upgrade.GetTo() == p.Release.Version && in.now.Before(in.state.Upgrade.GetEnded().AsTime().Add(failureInterval)):
		return false
	case in.last.version == p.Release.Version && in.last.problem != "" && in.now.Before(in.last.ended.Add(attemptInterval)):
		return false
	}
	return true
}

// names reports whether the permitted release is the release that an operator wants. If the
// operator has given no image, only the version has to match.
func names(want, permitted machineapi.ReleaseReference) bool {
	return want.Version == permitted.Version && (want.Image == "" || want.Image == permitted.Image)
}

// head returns the beginning of a text for the status: one line without control characters, of at
// most maxText bytes.
func head(text string) string {
	text = sanitize.Text(sanitize.Line(text))
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("…")], "") + "…"
}

// tail returns the last lines of a log for the status, without control characters, of at most
// maxText bytes together.
func tail(lines []string) string {
	var last []string
	size := 0
	for _, line := range slices.Backward(lines) {
		line = sanitize.Text(sanitize.Line(line))
		if size += len(line) + 1; size > maxText {
			break
		}
		last = append(last, line)
	}
	slices.Reverse(last)
	return strings.Join(last, "\n")
}
