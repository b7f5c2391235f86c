package simulation

import (
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// statusEvery is the interval between reports of an unchanged status. It equals the
	// nodeStatusReportFrequency of our kubelets. After the first report, the interval is shorter or
	// longer by up to a half, so the reports of the nodes are spread over time.
	statusEvery = time.Minute
	// startTime is the time between the report that a pod's containers are being created and the
	// report that they run. endTime is the time between the deletion of a pod and the report of its
	// end.
	startTime, endTime = 1500 * time.Millisecond, 500 * time.Millisecond
	// retry is the delay before a failed report is repeated.
	retry = time.Second
)

// node is the state of a simulated node. Its methods are pure: the time is a parameter.
type node struct {
	status time.Time // time of the next status report
	asking bool      // a status report is in progress
	shift  float64   // added to the interval after the first report: -0.5 to 0.5 of statusEvery
	ready  bool      // a report of Ready has succeeded
	pods   map[types.UID]*pod
}

// step is the progress of a pod.
type step int

const (
	bound step = iota
	starting
	running
	ending
	ended // the end of the containers has been reported
)

// pod is a pod that is bound to the node.
type pod struct {
	object *core.Pod // latest version that the watch delivered
	step   step
	due    time.Time // time of the report that ends the step; zero: no report is due
	asking bool      // the report that ends the step is in progress
}

// kind is the kind of an action.
type kind int

const (
	reportNode     kind = iota // report the status of the Node
	reportStarting             // report that the containers of the pod are being created
	reportRunning
	reportEnded
	removePod // delete the pod's object, as the kubelet does after the end of the containers
)

// action is a call to the API server.
type action struct {
	kind kind
	pod  *core.Pod // nil for an action about the node
}

// newNode returns a node that was registered at now. The parameter shift is described in node.
func newNode(now time.Time, shift float64) *node {
	return &node{status: now, shift: shift, pods: map[types.UID]*pod{}}
}

// see records the version of a pod that the watch has delivered.
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

// gone removes a pod after the watch has delivered its deletion.
func (n *node) gone(id types.UID) { delete(n.pods, id) }

// next returns the actions that are due at now, and the time at which the caller must call next
// again at the latest. It does not return an action again while the action is in progress.
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

// report returns the action that ends the step s.
func (s step) report() kind {
	return map[step]kind{bound: reportStarting, starting: reportRunning, ending: reportEnded, ended: removePod}[s]
}

// done records that an action has ended. A failed action is due again after retry. The result of an
// action for a deleted pod is ignored.
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
		// The pod was deleted during the action. The method see has set the time of the next step.
		return
	}
	switch a.kind {
	case reportStarting:
		p.step, p.due = starting, now.Add(startTime)
	case reportRunning:
		p.step, p.due = running, time.Time{}
	case reportEnded:
		p.step, p.due = ended, now
	case removePod:
		p.due = time.Time{} // the object is removed when the watch reports its deletion
	}
}

// count returns the number of pods in the step running.
func (n *node) count() int {
	count := 0
	for _, p := range n.pods {
		if p.step == running {
			count++
		}
	}
	return count
}
