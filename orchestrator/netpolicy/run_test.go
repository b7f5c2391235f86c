package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakeKernel holds a table, and counts reads and writes. If the field refuse is not nil, each write
// fails with this error.
type fakeKernel struct {
	table         Table
	there         bool // whether the table exists
	refuse        error
	reads, writes int
}

func (k *fakeKernel) read() (string, error) {
	k.reads++
	if !k.there {
		return "", nil
	}
	return k.table.Fingerprint(), nil
}

func (k *fakeKernel) write(t Table) error {
	k.writes++
	if k.refuse != nil {
		return k.refuse
	}
	k.table, k.there = t, true
	return nil
}

// TestRun tests an engine from the boot of a machine to the restart of its process. In between, the
// policies change, writes fail, and the table in the kernel is deleted. Until the engine has an
// input for the first time, the table drops all packets of pods. After a restart, the table of the
// kernel stays until then.
func TestRun(t *testing.T) {
	documents, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	full := worldOf(t, 1, string(documents))
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{}
		w, unknown := emptyWorld(1), errors.New("waiting")
		var told []string
		start := func() (changed chan struct{}, stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			changed = make(chan struct{}, 1)
			e := engine{empty: emptyWorld(1), read: k.read, write: k.write, announce: func(_ string, ready bool, detail string) {
				told = append(told, fmt.Sprint(ready, " ", detail))
			}}
			go e.run(ctx, changed, func() (Input, error) { return w, unknown })
			synctest.Wait()
			return changed, cancel
		}
		after := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		holds := func(when string, table Table, writes int, last string) {
			t.Helper()
			if k.table.Fingerprint() != table.Fingerprint() || k.writes != writes || told[len(told)-1] != last {
				t.Fatalf("%s: %d writes, want %d; reported %q, want %q at last; the table is\n%s", when, k.writes, writes, told, last, k.table)
			}
		}
		changed, stop := start()
		holds("at the start", DenyAll(emptyWorld(1)), 1, "false waiting")
		w, unknown = full, nil
		changed <- struct{}{}
		after(minInterval)
		holds("after the first lists", compiled(t, full), 2, "true 2 policies in the cluster")
		for range 10 {
			changed <- struct{}{}
			after(minInterval)
		}
		holds("after signals without a change", compiled(t, full), 2, "true 2 policies in the cluster")
		less := full
		less.Policies = full.Policies[:1]
		w, k.refuse = less, errors.New("no memory")
		changed <- struct{}{}
		after(minInterval)
		holds("after a failed write", compiled(t, full), 3, "false no memory; the previous rules stay")
		after(minBackoff)
		holds("after the next failed write", compiled(t, full), 4, "false no memory; the previous rules stay")
		k.refuse = nil
		after(2 * minBackoff)
		holds("after a successful write", compiled(t, less), 5, "true 1 policies in the cluster")
		k.there = false
		after(resyncPeriod)
		holds("at the resync after the table was deleted", compiled(t, less), 6, "true 1 policies in the cluster")
		stop()
		synctest.Wait()
		unknown = errors.New("waiting")
		changed, stop = start()
		holds("after a restart of the process", compiled(t, less), 6, "false waiting")
		unknown = nil
		changed <- struct{}{}
		after(minInterval)
		holds("after the lists that follow the restart", compiled(t, less), 6, "true 1 policies in the cluster")
		stop()
		synctest.Wait()
	})
}

// TestTrim checks that objects without the fields that trim removes produce the same table. A
// change of a removed field must not count as a change of the object.
func TestTrim(t *testing.T) {
	documents, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	w := worldOf(t, 1, string(documents))
	want := compiled(t, w).String()
	for i, p := range w.Pods {
		p.Annotations, p.Status.Message = map[string]string{"a": "b"}, "of no interest"
		w.Pods[i] = leaned(t, p)
	}
	for i, n := range w.Namespaces {
		w.Namespaces[i] = leaned(t, n)
	}
	for i, p := range w.Policies {
		w.Policies[i] = leaned(t, p)
	}
	if got := compiled(t, w).String(); got != want {
		t.Errorf("the table for trimmed objects differs:\n%s\nwant\n%s", got, want)
	}
	sidecar := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
	pod.Spec.InitContainers = []corev1.Container{{RestartPolicy: &sidecar, Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}}
	for what, change := range map[string]func(*corev1.Pod){
		"removed fields": func(p *corev1.Pod) { p.ResourceVersion, p.Status.Reason = "2", "ready" },
		"labels":         func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} },
		"an address":     func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} },
		"the phase":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"a port":         func(p *corev1.Pod) { p.Spec.InitContainers[0].Ports[0].ContainerPort = 81 },
	} {
		other := pod.DeepCopy()
		change(other)
		if got := same(leaned(t, pod), leaned(t, other)); got != (what == "removed fields") {
			t.Errorf("after a change of %s, same reports %v", what, got)
		}
	}
	if other := leaned(t, pod); other.ResourceVersion != "1" {
		t.Error("trim removes the resource version")
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}}
	alive := node.DeepCopy()
	alive.ResourceVersion, alive.Status.Phase = "2", corev1.NodeRunning
	if !sameRanges(node, alive) {
		t.Error("sameRanges reports a change, although the ranges of the Node are equal")
	}
	alive.Spec.PodCIDRs = []string{"10.244.2.0/24"}
	if sameRanges(node, alive) {
		t.Error("sameRanges reports no change, although the ranges of the Node differ")
	}
	if same(&networkingv1.NetworkPolicy{}, &corev1.Pod{}) {
		t.Error("same reports that a policy and a pod are the same")
	}
}

// leaned returns the object without the fields that trim removes.
func leaned[T any](t *testing.T, object T) T {
	t.Helper()
	out, err := trim(object)
	must(t, err)
	return out.(T)
}
