package simulation

import (
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// statusEvery is the interval between reports of an unchanged status: nodeStatusReportFrequency
	// of our kubelets. The first interval after a change differs from it by up to half.
	statusEvery = time.Minute
	// startTime is the time between the reports that a pod's containers are being created and that
	// they run; endTime is the time between a pod's deletion and its end.
	startTime, endTime = 1500 * time.Millisecond, 500 * time.Millisecond
	// retry is the time until a failed report is repeated.
	retry = time.Second
)

// node is the state of a node. It is pure: time is an argument.
type node struct {
	status time.Time // time of the next status report
	asking bool      // a status report is in progress
	shift  float64   // offset of its first report after a change: -0.5 to 0.5 of statusEvery
	ready  bool      // it has been reported Ready
	pods   map[types.UID]*pod
}

// step is the progress of a pod.
type step int

const (
	bound step = iota
	starting
	running
	ending
	ended // its containers' end is reported
)

// pod is a pod that is bound to the node.
type pod struct {
	object *core.Pod // latest version from the API server
	step   step
	due    time.Time // time of the next step; zero: no automatic step
	asking bool      // a report of the step is in progress
}

// kind is the kind of an action.
type kind int

const (
	reportNode     kind = iota // the Node's status
	reportStarting             // of a pod: its containers are being created
	reportRunning
	reportEnded
	removePod // delete its object, as the kubelet does after the end of its containers
)

// action is a call to the API server.
type action struct {
	kind kind
	pod  *core.Pod // nil: about the node
}

// newNode returns a node that has just been registered.
func newNode(now time.Time, shift float64) *node {
	return &node{status: now, shift: shift, pods: map[types.UID]*pod{}}
}

// see takes a pod from the API server into account.
func (n *node) see(p *core.Pod, now time.Time) {
	known := n.pods[p.UID]
	if known == nil {
		known = &pod{due: now}
		n.pods[p.UID] = known
	}
	known.object = p
	if p.DeletionTimestamp != nil && known.step < ending {
		known.step, known.due = ending, now.Add(endTime)
	}
}

// gone takes the deletion of a pod into account.
func (n *node) gone(id types.UID) { delete(n.pods, id) }

// next returns the actions that are due now, and the latest time for the next call. An action in
// progress is not returned again before its end.
func (n *node) next(now time.Time) (todo []action, again time.Time) {
	again = now.Add(statusEvery)
	earlier := func(at time.Time) {
		if at.Before(again) {
			again = at
		}
	}
	switch {
	case n.asking:
	case n.status.After(now):
		earlier(n.status)
	default:
		n.asking = true
		todo = append(todo, action{kind: reportNode})
	}
	for _, p := range n.pods {
		switch {
		case p.asking || p.due.IsZero():
		case p.due.After(now):
			earlier(p.due)
		default:
			p.asking = true
			todo = append(todo, action{kind: p.step.report(), pod: p.object})
		}
	}
	return todo, again
}

// report returns the report that ends a step.
func (s step) report() kind {
	return map[step]kind{bound: reportStarting, starting: reportRunning, ending: reportEnded, ended: removePod}[s]
}

// done records the result of an action. A failed action is repeated, unless its pod was deleted
// meanwhile.
func (n *node) done(a action, failed bool, now time.Time) {
	if a.pod == nil {
		n.asking = false
		switch {
		case failed:
			n.status = now.Add(retry)
		case !n.ready:
			n.ready = true
			n.status = now.Add(statusEvery + time.Duration(n.shift*float64(statusEvery)))
		default:
			n.status = now.Add(statusEvery)
		}
		return
	}
	p := n.pods[a.pod.UID]
	if p == nil {
		return
	}
	p.asking = false
	if failed {
		p.due = now.Add(retry)
		return
	}
	if p.step.report() != a.kind {
		return // it was deleted since then; its due time is set
	}
	switch a.kind {
	case reportStarting:
		p.step, p.due = starting, now.Add(startTime)
	case reportRunning:
		p.step, p.due = running, time.Time{}
	case reportEnded:
		p.step, p.due = ended, now
	case removePod:
		p.due = time.Time{} // the watch reports its deletion
	}
}

// count returns the number of running pods.
func (n *node) count() int {
	count := 0
	for _, p := range n.pods {
		if p.step == running {
			count++
		}
	}
	return count
}
