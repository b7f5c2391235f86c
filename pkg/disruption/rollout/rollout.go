package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PermitLife is the time from a decision to the expiry of its permit. A node needs less time to
// read its permit and to report that it starts.
const PermitLife = 5 * time.Minute

// ClockSkew is the largest supported difference between the clocks of two machines. Decide treats a
// permit as valid for this time after its expiry, because the clock of the machine can be behind.
const ClockSkew = time.Minute

// Permit is the permission for a machine to change to a release.
type Permit struct {
	// Release is the permitted release; empty means no permit.
	Release string
	Expires time.Time
}

// Allows reports whether the machine with this permit may start to change to a release now.
func (p Permit) Allows(release string, now time.Time) bool {
	return p.Release != "" && p.Release == release && now.Before(p.Expires)
}

// covers reports whether the permit may still be valid by the clock of its machine. If so, the
// machine may start to change its release at any time.
func (p Permit) covers(now time.Time) bool {
	return p.Release != "" && now.Before(p.Expires.Add(ClockSkew))
}

// Machine is a machine of the cluster, as its objects show it. Releases are compared by name.
type Machine struct {
	Name         string // unique
	ControlPlane bool
	Leader       bool // its etcd member is the leader
	Canary       bool // it belongs to the canary group

	Have string // the running release
	Want string // the wanted release; empty if the machine keeps the running release

	// Ready means that the machine and its node are healthy.
	Ready bool
	// Since is the time at which Ready last changed.
	Since time.Time
	// Updating means that the machine has started to change its release, and that the new release
	// is neither committed nor rolled back.
	Updating bool
	// RolledBack is the release from which the machine has rolled back; empty if its wanted release
	// has changed since then.
	RolledBack string
	// Permit is the last permit of the machine.
	Permit Permit
}

// behind reports whether the machine has to change its release.
func (m Machine) behind() bool { return m.Want != "" && m.Want != m.Have }

// busy reports whether the machine changes its release, or has a permit with which it may start at
// any time. A permit is used up if the machine runs the permitted release, or has rolled back from
// it.
func (m Machine) busy(now time.Time) bool {
	used := m.Permit.Release == m.Have || m.Permit.Release == m.RolledBack
	return m.Updating || !used && m.Permit.covers(now)
}

// failed reports whether the machine has rolled back from its wanted release.
func (m Machine) failed() bool { return m.behind() && m.RolledBack == m.Want }

// Policy is the policy of a rollout.
type Policy struct {
	Paused bool
	// MaxUnavailable is the maximum number of workers that are unavailable or change their release;
	// less than 1 means 1. Control-plane machines always change their release one at a time.
	MaxUnavailable int
	// MinReady is how long a machine must be ready before it is available.
	MinReady time.Duration
	// CanarySoak is how long the canary group must be ready with the new release before other
	// machines change their release.
	CanarySoak time.Duration
	// Windows are the maintenance windows, in which machines can start to change their release;
	// without windows, they can start at any time.
	Windows []Window
	// Gates must pass before each machine changes its release.
	Gates []Gate
}

// GateState is the state of a gate.
type GateState string

// The states of a gate.
const (
	GatePending GateState = "Pending"
	GatePassed  GateState = "Passed"
	GateFailed  GateState = "Failed"
)

// Gate is a condition that an operator has defined. It is evaluated again before each machine
// changes its release.
type Gate struct {
	Name string
	// Step is the Decision.Step for which the gate was evaluated. For any other step, the gate is
	// pending.
	Step    string
	State   GateState
	Message string // why the gate has failed or is pending; can be empty
}

// World is the input of a decision.
type World struct {
	Machines []Machine
	Policy   Policy
	Now      time.Time
}

// State is the state of a machine in a rollout.
type State string

// The states. In each state except UpToDate, Permitted and Updating, the machine waits.
const (
	UpToDate       State = "UpToDate"       // it has its wanted release, or no wanted release
	Permitted      State = "Permitted"      // it gets a permit now
	Updating       State = "Updating"       // it changes its release
	RolledBack     State = "RolledBack"     // it has rolled back, and halts the rollout
	Halted         State = "Halted"         // another machine has rolled back
	Paused         State = "Paused"         // the policy pauses the rollout
	OutsideWindow  State = "OutsideWindow"  // no maintenance window is open
	WaitingForGate State = "WaitingForGate" // a gate has not passed
	WaitingForTurn State = "WaitingForTurn" // another machine changes its release first
	Unavailable    State = "Unavailable"    // too many machines are unavailable
	NoQuorum       State = "NoQuorum"       // etcd would lose its quorum
	Canary         State = "Canary"         // the canary group is not ready, or not for long enough
)

// Verdict is the decision about a machine.
type Verdict struct {
	Name  string
	State State
	// Message says why the machine waits, or what it does; empty for UpToDate and Permitted.
	Message string
	// Permit is the new permit of a machine in state Permitted.
	Permit Permit
}

// Decision is the output of Decide.
type Decision struct {
	// Verdicts has an element for each machine, in the order of the input.
	Verdicts []Verdict
	// Step names the state of the rollout for which the gates must pass: the release, and the
	// number of machines that have it. It is empty if the gates do not matter at present.
	Step string
	// Next is the earliest time at which the decision can change without a change of a machine or
	// of the policy; zero means never.
	Next time.Time
}

// Decide returns the decision about each machine. A machine is behind if its wanted release differs
// from its running release. It is in progress if it changes its release, or may start to at any
// time because of a valid permit. The first row that applies decides:
//
//	machine                                   rollout                               state
//	not behind, not in progress               any                                   UpToDate
//	in progress                               any                                   Updating
//	rolled back from its wanted release       any                                   RolledBack
//	any other, which is behind                paused                                Paused
//	                                          a machine has rolled back             Halted
//	                                          no window is open                     OutsideWindow
//	control plane                             another is in progress, or is before  WaitingForTurn
//	                                          it in this order: canary, unready,
//	                                          not the leader, name
//	                                          another is unavailable                Unavailable
//	                                          the others have no quorum             NoQuorum
//	worker                                    a control-plane machine is behind or  WaitingForTurn
//	                                          in progress
//	                                          too many workers are unavailable      Unavailable
//	                                          or in progress
//	no canary, while a canary of its role     any                                   Canary
//	with the same wanted release is behind,
//	unavailable, or ready for too short
//	any other                                 a gate has not passed                 WaitingForGate
//	any other                                 any                                   Permitted
func Decide(w World) Decision {
	d := &decision{World: w, verdicts: make([]Verdict, len(w.Machines))}
	var planes, workers []int
	for i, m := range w.Machines {
		d.classify(i)
		if d.verdicts[i].State != "" {
			continue
		}
		if m.ControlPlane {
			planes = append(planes, i)
		} else {
			workers = append(workers, i)
		}
	}
	if d.hold(slices.Concat(planes, workers)) {
		return d.finish()
	}
	d.order(planes)
	d.order(workers)
	d.decideControlPlane(planes)
	d.decideWorkers(workers)
	return d.finish()
}

// decision is the state of Decide.
type decision struct {
	World
	verdicts []Verdict
	step     string
	next     time.Time
}

// set sets the state of a machine.
func (d *decision) set(i int, s State, message string) {
	d.verdicts[i].State, d.verdicts[i].Message = s, message
}

// wake records a time at which the decision may change.
func (d *decision) wake(at time.Time) {
	if at.After(d.Now) && (d.next.IsZero() || at.Before(d.next)) {
		d.next = at
	}
}

// classify sets the state of a machine if the state does not depend on other machines.
func (d *decision) classify(i int) {
	m := d.Machines[i]
	d.verdicts[i].Name = m.Name
	if m.Permit.covers(d.Now) {
		d.wake(m.Permit.Expires.Add(ClockSkew))
	}
	switch {
	case m.Updating:
		d.set(i, Updating, "the machine changes its release")
	case m.busy(d.Now):
		d.set(i, Updating, fmt.Sprintf("the machine may start release %s until %s", m.Permit.Release, clock(m.Permit.Expires)))
	case !m.behind():
		d.set(i, UpToDate, "")
	case m.failed():
		d.set(i, RolledBack, fmt.Sprintf("the machine has rolled back from release %s; set another release", m.Want))
	}
}

// available reports whether the machine has been ready for Policy.MinReady. If the machine is
// ready, but not for so long, available records the time at which it will be available (wake).
func (d *decision) available(m Machine) bool {
	if !m.Ready {
		return false
	}
	d.wake(m.Since.Add(d.Policy.MinReady))
	return !d.Now.Before(m.Since.Add(d.Policy.MinReady))
}

// hold reports whether the decision is complete, because no machine waits, or because the whole
// rollout waits. In the second case, it sets the state of the waiting machines.
func (d *decision) hold(waiting []int) bool {
	state, message := State(""), ""
	failed := slices.IndexFunc(d.Machines, Machine.failed)
	open, change := inWindow(d.Policy.Windows, d.Now)
	switch {
	case len(waiting) == 0:
		return true
	case d.Policy.Paused:
		state, message = Paused, "the rollout is paused"
	case failed >= 0:
		m := d.Machines[failed]
		state, message = Halted, fmt.Sprintf("machine %s has rolled back from release %s; set another release of this machine", m.Name, m.Want)
	case !open && change.IsZero():
		state, message = OutsideWindow, "no maintenance window opens"
	case !open:
		state, message = OutsideWindow, "the next maintenance window opens at "+clock(change)
	}
	if state != Paused && state != Halted {
		d.wake(change)
	}
	for _, i := range waiting {
		d.set(i, state, message)
	}
	return state != ""
}

// order sorts machines by the order in which they change their release.
func (d *decision) order(machines []int) {
	rank := func(m Machine) int {
		switch {
		case m.Canary && m.Leader:
			return 1
		case m.Canary:
			return 0
		case m.Leader:
			return 4
		case !m.Ready:
			return 2
		}
		return 3
	}
	slices.SortFunc(machines, func(i, j int) int {
		a, b := d.Machines[i], d.Machines[j]
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
}

// decideControlPlane sets the states of the waiting control-plane machines. They are sorted, and
// only the first can get a permit.
func (d *decision) decideControlPlane(waiting []int) {
	if len(waiting) == 0 {
		return
	}
	first := waiting[0]
	for _, i := range waiting[1:] {
		d.set(i, WaitingForTurn, fmt.Sprintf("control-plane machine %s goes before", d.Machines[first].Name))
	}
	voters, others := 0, 0
	var away string
	for i, m := range d.Machines {
		if !m.ControlPlane {
			continue
		}
		voters++
		if i == first {
			continue
		}
		if m.busy(d.Now) {
			d.set(first, WaitingForTurn, fmt.Sprintf("control-plane machine %s changes its release", m.Name))
			return
		}
		if d.available(m) {
			others++
		} else {
			away = cmp.Or(away, m.Name)
		}
	}
	switch {
	case away != "":
		d.set(first, Unavailable, fmt.Sprintf("control-plane machine %s is unavailable", away))
	case voters > 1 && others < voters/2+1:
		d.set(first, NoQuorum, fmt.Sprintf("etcd would lose its quorum: %d of %d members would answer; add a control-plane machine, or use `orlopctl upgrade --force`", others, voters))
	case d.awaitsCanary(first):
	default:
		d.permit([]int{first})
	}
}

// decideWorkers sets the states of the waiting workers, which are sorted.
func (d *decision) decideWorkers(waiting []int) {
	if len(waiting) == 0 {
		return
	}
	before := slices.IndexFunc(d.Machines, func(m Machine) bool { return m.ControlPlane && (m.behind() || m.busy(d.Now)) })
	limit := max(1, d.Policy.MaxUnavailable)
	busy, away := 0, 0 // busy workers; workers that are busy or unavailable
	for _, m := range d.Machines {
		if m.ControlPlane {
			continue
		}
		switch {
		case m.busy(d.Now):
			busy++
			away++
		case !d.available(m):
			away++
		}
	}
	var ready []int
	for _, i := range waiting {
		m := d.Machines[i]
		counted := !d.available(m) // the variable away includes this worker already
		others := away
		if counted {
			others--
		}
		switch {
		case before >= 0:
			d.set(i, WaitingForTurn, fmt.Sprintf("control-plane machine %s goes before", d.Machines[before].Name))
		case busy >= limit || m.Ready && others >= limit:
			d.set(i, Unavailable, fmt.Sprintf("%d workers are unavailable or in progress, %d are permitted", away, limit))
		case d.awaitsCanary(i):
		default:
			busy++
			away = others + 1
			ready = append(ready, i)
		}
	}
	d.permit(ready)
}

// awaitsCanary reports whether a machine must wait for the canary group. If so, it sets the state
// of the machine.
func (d *decision) awaitsCanary(i int) bool {
	m := d.Machines[i]
	if m.Canary {
		return false
	}
	for _, c := range d.Machines {
		if !c.Canary || c.ControlPlane != m.ControlPlane || c.Want != m.Want {
			continue
		}
		soaked := c.Since.Add(d.Policy.CanarySoak)
		switch {
		case c.behind() || c.busy(d.Now):
			d.set(i, Canary, fmt.Sprintf("canary %s does not have release %s yet", c.Name, m.Want))
		case !d.available(c):
			d.set(i, Canary, fmt.Sprintf("canary %s is unavailable", c.Name))
		case d.Now.Before(soaked):
			d.wake(soaked)
			d.set(i, Canary, fmt.Sprintf("canary %s has to be ready until %s", c.Name, clock(soaked)))
		default:
			continue
		}
		return true
	}
	return false
}

// permit gives permits to machines with the same wanted release as the first, if all gates have
// passed.
func (d *decision) permit(machines []int) {
	if len(machines) == 0 {
		return
	}
	first := d.Machines[machines[0]]
	message := d.awaitsGate(first)
	expires := d.Now.Add(PermitLife)
	if _, closes := inWindow(d.Policy.Windows, d.Now); !closes.IsZero() && closes.Before(expires) {
		expires = closes
	}
	for _, i := range machines {
		switch {
		case message != "":
			d.set(i, WaitingForGate, message)
			continue
		case d.step != "" && d.Machines[i].Want != first.Want:
			// the gates have passed for another release
			d.set(i, WaitingForGate, fmt.Sprintf("the gates pass for release %s of machine %s first", first.Want, first.Name))
			continue
		}
		d.set(i, Permitted, "")
		d.verdicts[i].Permit = Permit{Release: d.Machines[i].Want, Expires: expires}
		d.wake(expires.Add(ClockSkew))
	}
}

// awaitsGate returns the reason why the next machine must wait for a gate; empty if all gates have
// passed. The step contains the number of machines that have the release, so each gate is evaluated
// again for the next machine. For a control-plane machine, workers are not counted. Otherwise a
// stolen worker could change the number by false reports, and the gates of the control plane would
// never pass.
func (d *decision) awaitsGate(first Machine) string {
	release := first.Want
	if len(d.Policy.Gates) == 0 {
		return ""
	}
	done := 0
	for _, m := range d.Machines {
		if (m.ControlPlane || !first.ControlPlane) && m.Want == release && !m.behind() && !m.busy(d.Now) {
			done++
		}
	}
	d.step = fmt.Sprintf("%s-%d", release, done)
	for _, g := range d.Policy.Gates {
		switch {
		case g.Step != d.step || g.State != GatePassed && g.State != GateFailed:
			return strings.TrimSuffix(fmt.Sprintf("gate %s has not passed yet: %s", g.Name, g.Message), ": ")
		case g.State == GateFailed && g.Message == "":
			return fmt.Sprintf("gate %s has failed", g.Name)
		case g.State == GateFailed:
			return fmt.Sprintf("gate %s has failed: %s", g.Name, g.Message)
		}
	}
	return ""
}

// finish returns the decision.
func (d *decision) finish() Decision {
	return Decision{Verdicts: d.verdicts, Step: d.step, Next: d.next}
}

// clock formats a time for a message.
func clock(at time.Time) string { return at.UTC().Format("2006-01-02T15:04Z") }
