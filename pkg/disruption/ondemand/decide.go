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
	Marks   State = "Idle"         // a machine is marked for removal
	Shrinks State = "ScalesDown"
	Held    State = "Held" // an operator has marked a machine for removal
)

// Verdict is the decision about a MachineDeployment.
type Verdict struct {
	State    State
	Message  string // for operators
	Replicas int    // the wanted number of machines
	// Mark is the machine to mark for removal; empty if there is none. Unmark are the machines of
	// which the mark is withdrawn.
	Mark   string
	Unmark []string
}

// Decide returns a verdict for each MachineDeployment, in the order of the input, and the memory
// for the next decision. Each verdict changes the number of machines or a mark, but not both. The
// first row that applies decides:
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
//	any other                                             Steady
func (m Memory) Decide(w World) (Memory, []Verdict) {
	next := m.observe(w)
	pods := w.assign()
	verdicts := make([]Verdict, len(w.Deployments))
	for i, d := range w.Deployments {
		need := 0
		if d.Shape != nil {
			need = d.Shape.pack(pods[i])
		}
		if need == 0 {
			keep(next.Quiet, m.Quiet, d.Name, w.Now)
		}
		v := next.decide(w.Now, d, need, len(pods[i]))
		if v.Replicas != d.Replicas || v.State == Invalid {
			verdicts[i] = v
			continue
		}
		for _, o := range d.Machines {
			if o.Marked && (v.State != Marks && v.State != Steady && v.State != Shrinks || !o.Empty || o.Kept) {
				v.Unmark = append(v.Unmark, o.Name)
			}
		}
		if len(v.Unmark) > 0 {
			v.Mark = ""
		}
		verdicts[i] = v
	}
	return next, verdicts
}

// observe returns the memory with the times of the present machines. Decide adds the times in
// Quiet.
func (m Memory) observe(w World) Memory {
	next := Memory{Idle: map[string]time.Time{}, Unready: map[string]time.Time{}, Quiet: map[string]time.Time{}}
	for _, d := range w.Deployments {
		for _, o := range d.Machines {
			switch {
			case !o.Ready:
				keep(next.Unready, m.Unready, o.Name, w.Now)
			case o.Empty:
				keep(next.Idle, m.Idle, o.Name, w.Now)
			}
		}
	}
	return next
}

// keep copies a time from before to next; now if before has none.
func keep(next, before map[string]time.Time, name string, now time.Time) {
	if next[name] = now; !before[name].IsZero() {
		next[name] = before[name]
	}
}

// assign returns the pods for which each MachineDeployment is responsible: those that wait for
// PendingTime, and that a machine of it could take. A pod belongs to the first MachineDeployment
// that can have more machines, or else to the first MachineDeployment.
func (w World) assign() [][]Pod {
	pods := make([][]Pod, len(w.Deployments))
	for _, p := range w.Pods {
		if w.Now.Sub(p.Since) < PendingTime {
			continue
		}
		to := -1
		for i, d := range w.Deployments {
			if d.Problem != "" || d.Shape == nil || !d.Shape.fits(p) {
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

// pack returns how many empty machines of this shape can take the pods together. Each pod fits a
// machine. The largest pods are packed first, each on the first machine with enough space.
func (s Shape) pack(pods []Pod) int {
	pods = slices.SortedStableFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Name, b.Name))
	})
	var free []Resources
	for _, p := range pods {
		i := slices.IndexFunc(free, p.within)
		if i < 0 {
			free, i = append(free, s.Resources), len(free)
		}
		free[i] = free[i].minus(p.Resources)
	}
	return len(free)
}

// decide returns the verdict about a MachineDeployment, without the marks to withdraw. need is the
// number of empty machines that could take the pods that wait.
func (m Memory) decide(now time.Time, d Deployment, need, pods int) Verdict {
	v := Verdict{State: Steady, Replicas: d.Replicas}
	if d.Problem != "" {
		v.State, v.Message = Invalid, d.Problem
		return v
	}
	if bounded := min(max(d.Replicas, d.Min), d.Max); bounded != d.Replicas {
		v.State, v.Replicas, v.Message = Bounded, bounded, fmt.Sprintf("the minimum is %d and the maximum is %d", d.Min, d.Max)
		return v
	}
	if need > 0 {
		return m.grow(now, d, need, pods)
	}
	if v = m.shrink(now, d); v.State == Steady && d.Shape == nil && d.Replicas < d.Max {
		v.State, v.Message = Unknown, "no machine of it is ready, and no host matches: set its capacity by annotations"
	}
	return v
}

// grow is the verdict about a MachineDeployment with pods that wait.
func (m Memory) grow(now time.Time, d Deployment, need, pods int) Verdict {
	v := Verdict{State: Expects, Replicas: d.Replicas, Message: fmt.Sprintf("%d pods wait for machines that are empty or on the way", pods)}
	expected := d.Replicas - len(d.Machines)
	for _, o := range d.Machines {
		if o.Ready && o.Empty || !o.Ready && now.Sub(m.Unready[o.Name]) <= LostTime {
			expected++
		}
	}
	more := need - max(expected, 0)
	if more <= 0 {
		return v
	}
	if v.Replicas = min(d.Replicas+more, d.Max); v.Replicas == d.Replicas {
		v.State, v.Message = Full, fmt.Sprintf("%d pods wait, and the maximum is %d machines", pods, d.Max)
		return v
	}
	v.State, v.Message = Grows, fmt.Sprintf("%d machines are added for %d pods that wait", v.Replicas-d.Replicas, pods)
	return v
}

// shrink is the verdict about a MachineDeployment without pods that wait.
func (m Memory) shrink(now time.Time, d Deployment) Verdict {
	v := Verdict{State: Steady, Replicas: d.Replicas}
	if d.Replicas <= d.Min || d.IsLeaving {
		return v
	}
	if d.Replicas > len(d.Machines) {
		if now.Sub(m.Quiet[d.Name]) >= IdleTime {
			v.State, v.Replicas, v.Message = Shrinks, d.Replicas-1, "no pod waits for the machine that is missing"
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
	if len(idle) == 0 || d.Replicas < len(d.Machines) {
		return v
	}
	if i := slices.IndexFunc(idle, func(o Machine) bool { return o.Marked }); i >= 0 {
		v.State, v.Replicas, v.Message = Shrinks, d.Replicas-1, fmt.Sprintf("machine %s had no pods for %d minutes", idle[i].Name, IdleTime/time.Minute)
		return v
	}
	first := slices.MinFunc(idle, func(a, b Machine) int {
		return cmp.Or(m.Idle[a.Name].Compare(m.Idle[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	v.State, v.Mark, v.Message = Marks, first.Name, fmt.Sprintf("machine %s had no pods for %d minutes", first.Name, IdleTime/time.Minute)
	return v
}
