package nodelabels

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestRun runs the component on a node and the component of the controllers while the file with
// labels and taints is replaced. The content of each file must be applied to the Node and later be
// removed again. Another Node must not change.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labelled("h=n a=1")},
		Spec:       corev1.NodeSpec{Taints: onNode("x:NoSchedule orlop.dev/taints-pending:NoSchedule")},
	}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.NodeSpec{Taints: onNode("x:NoSchedule")}})
	dirs := dirs.In(t.TempDir())
	if err := os.MkdirAll(dirs.Node, 0o700); err != nil {
		t.Fatal(err)
	}
	state := func(labels, taints string) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool {
			return encode([]map[string]string{n.Labels}) == encode([]map[string]string{labelled(labels)}) && shown(n.Spec.Taints) == taints
		}
	}
	write := func(labels, taints string) {
		t.Helper()
		content, err := json.Marshal(nodespec.NodeLabels{Labels: labelled(labels), Taints: tainted(taints)})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dirs.Node, nodespec.NodeLabelsFile)
		if err := os.WriteFile(file+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("a=1 b=", "d=1:NoExecute")
	registered, err := Read(dirs)
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	quiet := func(string) {}
	nodes := component.NodesOf(t.Context(), client)
	own := &node{name: "n", dirs: dirs, registered: registered, api: client, watched: nodes, changed: make(chan struct{}, 1)}
	go func() { ends <- own.run(ctx, quiet) }()
	taints, err := newController(nodes, client)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ends <- taints.run(ctx, quiet) }()
	await := func(good func(*corev1.Node) bool) {
		t.Helper()
		watching, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer watching.Stop()
		have, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for !good(have) {
			var event watch.Event
			select {
			case event = <-watching.ResultChan():
			case <-ctx.Done():
				t.Fatalf("the Node does not get the expected labels and taints: labels %v, taints %s", have.Labels, shown(have.Spec.Taints))
			}
			if n, ok := event.Object.(*corev1.Node); ok && n.Name == "n" {
				have = n
			}
		}
	}
	await(state("h=n a=1 b=", "x:NoSchedule d=1:NoExecute"))
	write("b=2", "d=2:NoExecute")
	await(state("h=n b=2", "x:NoSchedule d=2:NoExecute"))
	write("", "")
	await(state("h=n", "x:NoSchedule"))
	await(func(n *corev1.Node) bool {
		return n.Annotations[WantedAnnotation] == "" && n.Annotations[SetAnnotation] == ""
	})
	other, err := client.CoreV1().Nodes().Get(ctx, "other", metav1.GetOptions{})
	if err != nil || shown(other.Spec.Taints) != "x:NoSchedule" || len(other.Annotations) > 0 {
		t.Errorf("a Node without configured labels and taints was changed: %v, %v", other, err)
	}
	cancel()
	for range 2 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
}

// TestRead checks that a missing or damaged file is an error.
func TestRead(t *testing.T) {
	dirs := dirs.In(t.TempDir())
	if _, err := Read(dirs); err == nil {
		t.Error("Read returns no error without a file")
	}
	if err := os.MkdirAll(dirs.Node, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dirs.Node, nodespec.NodeLabelsFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dirs); err == nil {
		t.Error("Read returns no error for a truncated file")
	}
}
