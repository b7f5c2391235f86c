package ondemand

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// State is the state of a MachineDeployment.
type State string

// The states.
const (
	Steady  State = "Steady"      // nothing changes
	Invalid State = "Invalid"     // the minimum, the maximum or another setting is wrong
	Bounded State = "OutOfBounds" // the replicas become the minimum or the maximum
	Grows   State = "ScalesUp"    // machines are added for pods
	Full    State = "MaximumReached"
	Expects State = "PodsWait"     // machines on the way, or empty machines, can take the pods
	Unknown State = "ShapeUnknown" // it is unknown what a machine of the deployment could take
	Futile  State = "PodsNotHelped"
	Marks   State = "Idle" // a machine is marked for removal
	Shrinks State = "ScalesDown"
	Held    State = "Held" // an operator has marked a machine for removal
)

// Verdict is the decision about a MachineDeployment.
type Verdict struct {
	State    State
	Message  string // for operators
	Replicas int    // the wanted number of machines
	// Mark are the machines to mark for removal. Unmark are the machines of which the mark is
	// withdrawn. If one of them is not empty, Replicas is the present number.
	Mark, Unmark []string
	// Last is the shape to store, and Unhelped are the UIDs of the pods to store, in order. The
	// next leader of the controllers needs them.
	Last     *Shape
	Unhelped []string
}

// Decide returns a verdict for each MachineDeployment, in the order of the input, and the memory
// for the next decision. Each verdict changes the number of machines or the marks, but not both.
// Before the number is reduced, exactly the machines that shall leave are marked. The marks stay
// until the MachineSet has removed them. The first row that applies decides:
//
//	the deployment                                        verdict
//	has a problem                                         Invalid
//	has too few or too many replicas                      OutOfBounds
//	has pods that more machines could take                ScalesUp, or MaximumReached
//	has pods that its present machines are expected to    PodsWait
//	take
//	had no such pods for IdleTime, and waits for a        ScalesDown
//	machine of the inventory
//	has a machine that is idle for IdleTime and marked    ScalesDown
//	has a machine that is idle for IdleTime               Idle: the machine is marked
//	has pods that a machine has not helped                PodsNotHelped
//	any other                                             Steady
func (m Memory) Decide(w World) (Memory, []Verdict) {
	next := m.observe(w)
	pods := next.assign(w)
	verdicts := make([]Verdict, len(w.Deployments))
	for i, d := range w.Deployments {
		need := d.need(w.Now, pods[i], next.Unready)
		if len(pods[i]) == 0 {
			keep(next.Quiet, m.Quiet, d.Name, w.Now)
		}
		v := next.decide(w.Now, d, need, len(pods[i]))
		if v.State != Invalid && v.Replicas == d.Replicas && v.Mark == nil && v.Unmark == nil {
			v.Unmark = d.withdrawn(v.State)
		}
		v.Last = cmp.Or(d.present(func(o Machine) bool { return w.Now.Sub(next.Ready[o.Name]) >= SettleTime }), d.Last)
		v.Unhelped = next.unhelped(d.Name)
		if v.State == Steady && len(v.Unhelped) > 0 {
			v.State, v.Message = Futile, fmt.Sprintf("%d pods wait that a machine with enough space has not helped: see their events; they add no machine", len(v.Unhelped))
		}
		verdicts[i] = v
	}
	return next, verdicts
}

// withdrawn returns the machines of which the mark is withdrawn in a state: those that are not
// empty or that are kept, or all while pods wait. While the MachineSet has more machines than
// replicas, it is about to remove the marked machines, and would remove others without the marks.
func (d Deployment) withdrawn(s State) (all []string) {
	if d.Replicas < len(d.Machines) {
		return nil
	}
	for _, o := range d.Machines {
		if o.Marked && (s != Marks && s != Steady && s != Shrinks || !o.Empty || o.Kept) {
			all = append(all, o.Name)
		}
	}
	return all
}

// observe returns the memory with the times of the present machines, and with the pods that
// machines do not help. Decide adds the times in Quiet.
func (m Memory) observe(w World) Memory {
	next := Memory{
		Idle: map[string]time.Time{}, Ready: map[string]time.Time{}, Unready: map[string]time.Time{}, Quiet: map[string]time.Time{},
		At: w.Now, Roomy: map[podKey]time.Duration{}, Unhelped: map[podKey]bool{},
	}
	for _, d := range w.Deployments {
		for _, o := range d.Machines {
			if !o.ready() {
				keep(next.Unready, m.Unready, o.Name, w.Now)
				continue
			}
			keep(next.Ready, m.Ready, o.Name, w.Now)
			if o.Empty {
				keep(next.Idle, m.Idle, o.Name, w.Now)
			}
		}
		for _, p := range w.Pods {
			next.help(m, d, p)
		}
	}
	return next
}

// help adds the time since the last decision to the time for which a pod waited although a machine
// had space for it. A pod that once was not helped stays so.
func (m Memory) help(before Memory, d Deployment, p Pod) {
	key := podKey{d.Name, p.UID}
	roomy := before.Roomy[key]
	if !before.At.IsZero() && slices.ContainsFunc(d.Machines, func(o Machine) bool { return o.expects(p) }) {
		roomy += min(m.At.Sub(before.At), longestStep)
	}
	if roomy > 0 {
		m.Roomy[key] = roomy
	}
	if roomy >= HelpTime || before.Unhelped[key] || slices.Contains(d.Unhelped, p.UID) {
		m.Unhelped[key] = true
	}
}

// expects reports whether a machine is expected to take a pod: it has space, and is empty or has
// joined while the pod waited. A new machine would be no better. An older machine with other pods
// can have a reason to refuse the pod that a new machine does not have, such as an anti-affinity.
func (o Machine) expects(p Pod) bool {
	return o.ready() && (o.Empty || o.Joined.After(p.Since)) && o.Room.fits(p)
}

// unhelped returns the UIDs of the pods that machines of a MachineDeployment do not help, in order.
func (m Memory) unhelped(deployment string) (all []string) {
	for key := range m.Unhelped {
		if key.deployment == deployment {
			all = append(all, key.uid)
		}
	}
	slices.Sort(all)
	return all[:min(len(all), maxUnhelped)]
}

// keep copies the time of a name from the map `before` to the map `next`. If `before` has no time
// of this name, keep stores now.
func keep(next, before map[string]time.Time, name string, now time.Time) {
	if next[name] = now; !before[name].IsZero() {
		next[name] = before[name]
	}
}

// assign returns the pods for which each MachineDeployment is responsible: those that wait for
// PendingTime, and that a machine of it could take and help. A pod belongs to the first
// MachineDeployment that can have more machines, or else to the first MachineDeployment.
func (m Memory) assign(w World) [][]Pod {
	pods := make([][]Pod, len(w.Deployments))
	for _, p := range w.Pods {
		if w.Now.Sub(p.Since) < PendingTime {
			continue
		}
		to := -1
		for i, d := range w.Deployments {
			if s := d.shape(); d.Problem != "" || s == nil || !s.fits(p) || m.Unhelped[podKey{d.Name, p.UID}] {
				continue
			}
			if d.Replicas < d.Max {
				to = i
				break
			}
			if to < 0 {
				to = i
			}
		}
		if to >= 0 {
			pods[to] = append(pods[to], p)
		}
	}
	return pods
}

// space is a machine of a packing with its free resources.
type space struct {
	free Resources
	may  func(Pod) bool // whether it is expected to take a pod, apart from its resources
}

// need returns how many machines must be added for pods, besides the machines that are expected to
// take them: those that are empty or new, and those on the way. Each pod fits a machine of the
// shape. The largest pods are packed first, each on the first machine with enough space.
func (d Deployment) need(now time.Time, pods []Pod, unready map[string]time.Time) int {
	if len(pods) == 0 {
		return 0
	}
	pods = slices.SortedStableFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Name, b.Name))
	})
	var spaces []space
	coming := max(0, d.Replicas-len(d.Machines))
	for _, o := range d.Machines {
		switch {
		case o.ready():
			spaces = append(spaces, space{o.Room.Resources, o.expects})
		case now.Sub(unready[o.Name]) <= LostTime:
			coming++
		}
	}
	present, whole := len(spaces)+coming, space{d.shape().Resources, func(Pod) bool { return true }}
	for range coming {
		spaces = append(spaces, whole)
	}
	for _, p := range pods {
		i := slices.IndexFunc(spaces, func(s space) bool { return p.within(s.free) && s.may(p) })
		if i < 0 {
			spaces, i = append(spaces, whole), len(spaces)
		}
		spaces[i].free = spaces[i].free.minus(p.Resources)
	}
	return len(spaces) - present
}

// decide returns the verdict about a MachineDeployment, without the marks to withdraw. need is the
// number of machines to add, and pods is the number of pods that wait for a machine.
func (m Memory) decide(now time.Time, d Deployment, need, pods int) Verdict {
	v := Verdict{State: Steady, Replicas: d.Replicas}
	if d.Problem != "" {
		v.State, v.Message = Invalid, d.Problem
		return v
	}
	if bounded := min(max(d.Replicas, d.Min), d.Max); bounded != d.Replicas {
		v.State, v.Message = Bounded, fmt.Sprintf("the minimum is %d and the maximum is %d", d.Min, d.Max)
		return v.reduce(d, bounded, m.surplus(d, bounded))
	}
	if pods > 0 {
		return grow(d, need, pods)
	}
	if v = m.shrink(now, d); v.State == Steady && d.shape() == nil && d.Replicas < d.Max {
		v.State, v.Message = Unknown, "no machine of it is ready, and no host matches: set its capacity by annotations"
	}
	return v
}

// grow is the verdict about a MachineDeployment with pods that wait.
func grow(d Deployment, need, pods int) Verdict {
	v := Verdict{State: Expects, Replicas: d.Replicas, Message: fmt.Sprintf("%d pods wait for machines that are empty or on the way", pods)}
	if need == 0 {
		return v
	}
	if v.Replicas = min(d.Replicas+need, d.Max); v.Replicas == d.Replicas {
		v.State, v.Message = Full, fmt.Sprintf("%d pods wait, and the maximum is %d machines", pods, d.Max)
		return v
	}
	v.State, v.Message = Grows, fmt.Sprintf("%d machines are added for %d pods that wait", v.Replicas-d.Replicas, pods)
	return v
}

// reduce completes a verdict that changes the number of machines. leave are the machines that shall
// leave. The number is reduced only when exactly these machines have the mark of the controllers,
// because a MachineSet removes marked machines first.
func (v Verdict) reduce(d Deployment, replicas int, leave []string) Verdict {
	if replicas > d.Replicas {
		v.Replicas = replicas
		return v
	}
	for _, o := range d.Machines {
		switch leaves := slices.Contains(leave, o.Name); {
		case leaves && !o.Marked:
			v.Mark = append(v.Mark, o.Name)
		case !leaves && o.Marked:
			v.Unmark = append(v.Unmark, o.Name)
		}
	}
	if v.Replicas = replicas; v.Mark != nil || v.Unmark != nil {
		v.Replicas = d.Replicas
	}
	return v
}

// surplus returns the empty machines that leave if a MachineDeployment has too many replicas, the
// longest idle first. Machines that an operator has marked leave before them.
func (m Memory) surplus(d Deployment, replicas int) (leave []string) {
	var empty []Machine
	n := len(d.Machines) - replicas
	for _, o := range d.Machines {
		switch _, idle := m.Idle[o.Name]; {
		case o.Chosen:
			n--
		case idle && !o.Kept:
			empty = append(empty, o)
		}
	}
	slices.SortFunc(empty, m.longestIdle)
	for _, o := range empty[:min(len(empty), max(0, n))] {
		leave = append(leave, o.Name)
	}
	return leave
}

// longestIdle compares two empty machines: the longest idle is first.
func (m Memory) longestIdle(a, b Machine) int {
	return cmp.Or(m.Idle[a.Name].Compare(m.Idle[b.Name]), cmp.Compare(a.Name, b.Name))
}

// shrink is the verdict about a MachineDeployment without pods that wait.
func (m Memory) shrink(now time.Time, d Deployment) Verdict {
	v := Verdict{State: Steady, Replicas: d.Replicas}
	if d.Replicas <= d.Min || d.IsLeaving || d.Replicas < len(d.Machines) {
		return v
	}
	if d.Replicas > len(d.Machines) {
		if now.Sub(m.Quiet[d.Name]) >= IdleTime {
			v.State, v.Message = Shrinks, "no pod waits for the machine that is missing"
			return v.reduce(d, d.Replicas-1, nil)
		}
		return v
	}
	if i := slices.IndexFunc(d.Machines, func(o Machine) bool { return o.Chosen }); i >= 0 {
		v.State, v.Message = Held, "an operator has marked machine "+d.Machines[i].Name+" for removal"
		return v
	}
	idle := slices.DeleteFunc(slices.Clone(d.Machines), func(o Machine) bool {
		since, empty := m.Idle[o.Name]
		return !empty || o.Kept || now.Sub(since) < IdleTime
	})
	if len(idle) == 0 {
		return v
	}
	slices.SortFunc(idle, m.longestIdle)
	i := max(0, slices.IndexFunc(idle, func(o Machine) bool { return o.Marked }))
	v.Message = fmt.Sprintf("machine %s had no pods for %d minutes", idle[i].Name, IdleTime/time.Minute)
	if v = v.reduce(d, d.Replicas-1, []string{idle[i].Name}); v.Replicas == d.Replicas {
		v.State = Marks
		return v
	}
	v.State = Shrinks
	return v
}
