package simulation

import (
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// statusEvery is how often a status that has not changed is reported: nodeStatusReportFrequency
	// of our kubelets. The first time after a change it is up to half of that more or less.
	statusEvery = time.Minute
	// startTime is from the report that a pod's containers are made to the one that they run;
	// endTime from a pod's deletion to its end.
	startTime, endTime = 1500 * time.Millisecond, 500 * time.Millisecond
	// retry is until what failed is tried again.
	retry = time.Second
)

// node is what a node knows. It is pure: time comes in as an argument.
type node struct {
	status time.Time // when its status is reported next
	asking bool      // its status is being reported
	shift  float64   // of its first report after a change: -0.5 to 0.5 of statusEvery
	ready  bool      // it has been reported Ready
	pods   map[types.UID]*pod
}

// step is how far a pod is.
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
	object *core.Pod // as it was seen last
	step   step
	due    time.Time // when the next step is taken; zero: not by itself
	asking bool      // the step is being reported
}

// kind is what is done.
type kind int

const (
	reportNode     kind = iota // the Node's status
	reportStarting             // of a pod: its containers are being made
	reportRunning
	reportEnded
	removePod // delete its object, which is the kubelet's part when its containers are gone
)

// action is something to be said to the API server.
type action struct {
	kind kind
	pod  *core.Pod // nil: of the node
}

// newNode is a node that has just been registered.
func newNode(now time.Time, shift float64) *node {
	return &node{status: now, shift: shift, pods: map[types.UID]*pod{}}
}

// see takes a pod as the API server has it.
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

// gone takes that a pod is not there any more.
func (n *node) gone(id types.UID) { delete(n.pods, id) }

// next is what is to be done now, and when to ask again at the latest. What is being done is not
// told again before done.
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

// report is what is said to leave a step.
func (s step) report() kind {
	return map[step]kind{bound: reportStarting, starting: reportRunning, ending: reportEnded, ended: removePod}[s]
}

// done takes what came of an action. What failed is tried again, unless it was about a pod that is
// gone meanwhile.
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
		return // it is to end since then; its due time is set
	}
	switch a.kind {
	case reportStarting:
		p.step, p.due = starting, now.Add(startTime)
	case reportRunning:
		p.step, p.due = running, time.Time{}
	case reportEnded:
		p.step, p.due = ended, now
	case removePod:
		p.due = time.Time{} // the watch says when it is gone
	}
}

// count is how many pods run.
func (n *node) count() int {
	count := 0
	for _, p := range n.pods {
		if p.step == running {
			count++
		}
	}
	return count
}
