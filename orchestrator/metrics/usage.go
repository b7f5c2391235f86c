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
	// stale is the maximal age of a sample. A node that does not answer for so long has no usage
	// instead of an outdated value.
	stale = time.Minute
	// fresh is how long a container has to run before its only sample gives its usage since its
	// start. In a shorter time the start distorts the average.
	fresh = 10 * time.Second
)

// window is the interval between two samples of the same run; with only one sample, first is zero.
type window struct{ first, last sample }

// next returns the window after another sample.
func (w window) next(now sample) window {
	switch {
	case w.last.at.IsZero(), now.at.Sub(w.last.at) > stale, w.last.at.Sub(now.at) > stale, now.started.After(w.last.at), now.at.After(w.last.at) && now.cpu < w.last.cpu:
		// The first sample, or the first sample after a long time, after the clock was set back, or
		// of another run.
		age := now.at.Sub(now.started)
		if !now.started.IsZero() && age >= fresh && age <= stale {
			return window{first: sample{at: now.started}, last: now}
		}
		return window{last: now}
	case !now.at.After(w.last.at):
		return w // the same sample again: kubelets measure at their own intervals
	}
	return window{first: w.last, last: now}
}

// usage returns the usage in the window: cores on average, bytes at its end. It returns false if
// the window has only one sample, or the last is stale.
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

// measured holds the windows of a node and its containers.
type measured struct {
	node window
	pods map[types.NamespacedName]map[string]window
}

// next returns the windows after another report. Containers that the report omits are dropped.
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

// store holds the windows of every node. Its values are never changed, only replaced, so they can
// be read without the lock.
type store struct {
	mu    sync.RWMutex
	nodes map[string]measured
}

// of returns the windows of a node.
func (b *store) of(node string) measured {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.nodes[node]
}

// record adds a node's report.
func (b *store) record(node string, r report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nodes == nil {
		b.nodes = map[string]measured{}
	}
	b.nodes[node] = b.nodes[node].next(r)
}

// prune drops all other nodes.
func (b *store) prune(nodes map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.nodes {
		if !nodes[name] {
			delete(b.nodes, name)
		}
	}
}
