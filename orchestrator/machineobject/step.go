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

// The reasons of the conditions.
const (
	reasonHealthy      = "Healthy"
	reasonUnhealthy    = "Unhealthy"
	reasonUpToDate     = "UpToDate"
	reasonOther        = "OtherReleaseWanted"
	reasonStarting     = "Starting"  // machined is asked
	reasonWriting      = "Writing"   // the release is received, or written into the other slot
	reasonRebooting    = "Rebooting" // the machine leaves for the release, or returns
	reasonTrial        = "OnTrial"   // the release runs, and is not committed yet
	reasonIdle         = "Idle"
	reasonRolledBack   = "RolledBack"
	reasonNoRollback   = "NoRollback"
	reasonAcknowledged = "Acknowledged" // another release was wanted after the rollback
)

// maxText bounds the reason and the log of a failed release in the object, in bytes.
const maxText = 1024

// attemptInterval is the delay after a refusal: the turn of another machine lasts minutes.
// failureInterval is the delay after a change that failed while it ran: each attempt may transfer
// the whole bundle.
const (
	attemptInterval = 30 * time.Second
	failureInterval = 5 * time.Minute
)

// acceptedTime is the time in which the record of the machine shows an accepted release.
const acceptedTime = time.Minute

// attempt is the last request to machined.
type attempt struct {
	version string // empty: none
	running bool   // machined has not answered yet
	ended   time.Time
	problem string // why machined refused; empty if it accepted
}

// input is the input of step.
type input struct {
	object    *machineapi.OrlopMachine
	state     *api.ObjectState
	addresses []machineapi.Address
	leader    bool // its member leads etcd
	last      attempt
	repaired  repairAttempt
	now       time.Time
}

// step returns the status of the object, and the release that machined is asked for after the
// status is stored; nil: none. The first row that applies decides about the release:
//
//	machine                                  permit                          release
//	changes its release                      any                             none
//	any                                      none, or expired                none
//	any                                      for another release than spec   none
//	runs the release                         any                             none
//	has rolled back from the release         any                             none
//	was refused less than attemptInterval    any                             none
//	ago, or failed less than failureInterval
//	ago
//	any other                                valid                           the permitted release
//
// A release counts as rolled back until the object has wanted another release. Then the same
// release can be wanted again.
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

// condition returns a condition without its time.
func condition(kind string, status bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// phase returns the phase of the last upgrade.
func (in input) phase() slot.Phase { return slot.Phase(in.state.Upgrade.GetPhase()) }

// release returns the running release.
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

// target returns the version that the object wants; empty: the running version stays.
func (in input) target() string {
	switch spec := in.object.Spec; {
	case spec.Release != nil:
		return spec.Release.Version
	case spec.Permit != nil:
		return spec.Permit.Release.Version
	}
	return ""
}

// imageOf returns the image of a version, as the object names it; empty if it names none.
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

// ready returns condition Ready.
func (in input) ready() metav1.Condition {
	if in.state.Problem != "" {
		return condition(machineapi.ConditionReady, false, reasonUnhealthy, head(in.state.Problem))
	}
	return condition(machineapi.ConditionReady, true, reasonHealthy, "all checks of the machine pass")
}

// upToDate returns condition UpToDate.
func (in input) upToDate() metav1.Condition {
	if to := in.target(); to != "" && to != in.state.Version {
		return condition(machineapi.ConditionUpToDate, false, reasonOther, fmt.Sprintf("the machine runs version %s, and version %s is wanted", in.state.Version, to))
	}
	return condition(machineapi.ConditionUpToDate, true, reasonUpToDate, "the machine runs version "+in.state.Version)
}

// updating returns condition Updating, apart from a change that starts now.
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

// waiting returns the end of a sentence about a version on trial.
func waiting(check string) string {
	if check == "" {
		return ""
	}
	return " and waits for: " + head(check)
}

// accepted reports whether machined has accepted a release that its record does not show yet.
func (a attempt) accepted(s *api.ObjectState, now time.Time) bool {
	return a.version != "" && !a.running && a.problem == "" && a.version != s.Version && now.Before(a.ended.Add(acceptedTime)) && !s.Upgrade.GetEnded().AsTime().After(a.ended)
}

// rollback returns condition RolledBack. The message of an acknowledged rollback names the
// rollback, so a later rollback is not acknowledged.
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

// mayChange reports whether the machine may change its release now. It is idle.
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

// names reports whether the release that an operator wants is the permitted release. An operator
// can leave out the image.
func names(want, permitted machineapi.ReleaseReference) bool {
	return want.Version == permitted.Version && (want.Image == "" || want.Image == permitted.Image)
}

// head returns the start of a text for a status, on one line.
func head(text string) string {
	text = sanitize.Text(sanitize.Line(text))
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("…")], "") + "…"
}

// tail returns the last lines of a log for a status.
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
