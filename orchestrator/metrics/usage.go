package metrics

import (
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// stale is the age of a sample from which it is not used any more. The usage of its node or
	// container is then unknown.
	stale = time.Minute
	// fresh is the age that a container must have at its first sample for its usage to be known.
	// The usage is then the average since its start. At a lower age, the work of the start would
	// distort the average.
	fresh = 10 * time.Second
)

// window contains the last two samples of a node, or of a container between two restarts. If there
// is only one sample, first is zero.
type window struct{ first, last sample }

// next returns the window after a new sample.
func (w window) next(now sample) window {
	switch {
	case w.last.at.IsZero(), now.at.Sub(w.last.at) > stale, w.last.at.Sub(now.at) > stale, now.started.After(w.last.at), now.at.After(w.last.at) && now.cpu < w.last.cpu:
		// The sample begins a new window in these cases: it is the first sample, the first after a
		// long time, the first after the clock was set back, or the first after a restart.
		age := now.at.Sub(now.started)
		if !now.started.IsZero() && age >= fresh && age <= stale {
			return window{first: sample{at: now.started}, last: now}
		}
		return window{last: now}
	case !now.at.After(w.last.at):
		// the same sample again, because the kubelet has not measured since the last scrape
		return w
	}
	return window{first: w.last, last: now}
}

// usage returns the average number of cores in the window, and the bytes of memory at its end. The
// bool is false if the window has only one sample, or if its last sample is stale at time now.
func (w window) usage(now time.Time) (corev1.ResourceList, bool) {
	if w.first.at.IsZero() || now.Sub(w.last.at) > stale {
		return nil, false
	}
	cores := (w.last.cpu - w.first.cpu) / w.length().Seconds()
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(math.Round(cores*1e9)), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(w.last.memory), resource.BinarySI),
	}, true
}

func (w window) length() time.Duration { return w.last.at.Sub(w.first.at) }

// measured contains the windows of a node and of the containers on it.
type measured struct {
	node window
	pods map[types.NamespacedName]map[string]window
}

// next returns the windows after a new report. It drops the containers that the report does not
// contain.
func (m measured) next(r report) measured {
	out := measured{pods: make(map[types.NamespacedName]map[string]window, len(r.pods))}
	if !r.node.at.IsZero() {
		out.node = m.node.next(r.node)
	}
	for pod, containers := range r.pods {
		out.pods[pod] = make(map[string]window, len(containers))
		for name, s := range containers {
			out.pods[pod][name] = m.pods[pod][name].next(s)
		}
	}
	return out
}

// store contains the windows of all nodes. A new report replaces the value of its node and never
// changes it, so a caller can read a returned value without the lock.
type store struct {
	mu    sync.RWMutex
	nodes map[string]measured
}

// The method of returns the windows of a node, or the zero value if no report of the node is known.
func (b *store) of(node string) measured {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.nodes[node]
}

// record adds a report of a node.
func (b *store) record(node string, r report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nodes == nil {
		b.nodes = map[string]measured{}
	}
	b.nodes[node] = b.nodes[node].next(r)
}

// prune drops all nodes that are not in the given set.
func (b *store) prune(nodes map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.nodes {
		if !nodes[name] {
			delete(b.nodes, name)
		}
	}
}
