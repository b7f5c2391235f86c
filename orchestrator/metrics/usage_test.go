package metrics

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The function at returns the time that is this number of seconds after the start of the test.
func at(seconds int) time.Time { return time.Unix(1_900_000_000+int64(seconds), 0) }

func TestWindow(t *testing.T) {
	for _, c := range []struct {
		what           string
		samples        []sample
		now            int
		length         time.Duration
		cores, working string // empty: the usage is unknown
	}{
		{"one sample", []sample{{at: at(0), cpu: 100, memory: 1024}}, 1, 0, "", ""},
		{"two samples", []sample{{at: at(0), cpu: 100, memory: 1024}, {at: at(15), cpu: 107.5, memory: 2048}}, 16, 15 * time.Second, "500m", "2Ki"},
		{"the last sample is repeated", []sample{{at: at(0), cpu: 1}, {at: at(10), cpu: 3, memory: 1024}, {at: at(10), cpu: 3}}, 20, 10 * time.Second, "200m", "1Ki"},
		{"the last two of three samples are used", []sample{{at: at(0)}, {at: at(10), cpu: 9}, {at: at(20), cpu: 10, memory: 1024}}, 20, 10 * time.Second, "100m", "1Ki"},
		{"a sample that is earlier than the last one is ignored", []sample{{at: at(10), cpu: 1}, {at: at(20), cpu: 2, memory: 1024}, {at: at(5), cpu: 1}}, 20, 10 * time.Second, "100m", "1Ki"},
		{"less than a thousandth of a core", []sample{{at: at(0), cpu: 1}, {at: at(10), cpu: 1.000001, memory: 1}}, 10, 10 * time.Second, "100n", "1"},
		{"the counter restarts", []sample{{at: at(0), cpu: 100}, {at: at(15), cpu: 2, memory: 1024}}, 16, 0, "", ""},
		{"the container was restarted", []sample{{at: at(0), cpu: 1, started: at(-100)}, {at: at(15), cpu: 2, memory: 1024, started: at(12)}}, 16, 0, "", ""},
		{"one sample, 12 s after the start of the container", []sample{{at: at(12), cpu: 6, memory: 1024, started: at(0)}}, 13, 12 * time.Second, "500m", "1Ki"},
		{"one sample, 9 s after the start of the container", []sample{{at: at(9), cpu: 6, memory: 1024, started: at(0)}}, 10, 0, "", ""},
		{"ten minutes between the samples", []sample{{at: at(0), cpu: 1}, {at: at(600), cpu: 2, memory: 1024}}, 600, 0, "", ""},
		{"the last sample is too old", []sample{{at: at(0), cpu: 1}, {at: at(15), cpu: 2, memory: 1024}}, 76, 15 * time.Second, "", ""},
		{"no samples", nil, 0, 0, "", ""},
	} {
		var w window
		for _, s := range c.samples {
			w = w.next(s)
		}
		usage, ok := w.usage(at(c.now))
		if ok != (c.cores != "") {
			t.Errorf("%s: the usage is known: %t", c.what, ok)
			continue
		}
		if ok && (usage.Cpu().String() != c.cores || usage.Memory().String() != c.working || w.length() != c.length) {
			t.Errorf("%s: %s cores, %s in %s, want %s, %s in %s", c.what, usage.Cpu(), usage.Memory(), w.length(), c.cores, c.working, c.length)
		}
	}
}

// TestStore checks that the store drops the containers that a new report does not contain, and the
// nodes that do not exist any more.
func TestStore(t *testing.T) {
	b := &store{}
	of := func(seconds int, containers ...string) report {
		r := report{node: sample{at: at(seconds), cpu: float64(seconds + 1), memory: 1}, pods: map[types.NamespacedName]map[string]sample{web: {}}}
		for _, c := range containers {
			r.pods[web][c] = sample{at: at(seconds), cpu: float64(seconds + 1), memory: 1}
		}
		return r
	}
	b.record("one", of(0, "a", "b"))
	before := b.of("one")
	b.record("one", of(15, "a"))
	if _, ok := before.node.usage(at(15)); ok {
		t.Error("record has changed a value that the store returned before")
	}
	now := b.of("one")
	if _, ok := now.node.usage(at(15)); !ok {
		t.Error("the usage of the node is unknown")
	}
	if _, ok := now.pods[web]["a"].usage(at(15)); !ok {
		t.Error("the usage of container a is unknown")
	}
	if _, ok := now.pods[web]["b"]; ok {
		t.Error("the store has container b, which the last report does not contain")
	}
	b.record("two", of(15))
	b.prune(map[string]bool{"two": true})
	if len(b.of("one").pods) != 0 || b.of("two").node.last.at.IsZero() {
		t.Error("prune retained node one, which does not exist any more, or removed node two")
	}
}
