package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/nodelabels"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// nodeLabels runs the component of a node with the identity of the kubelet, against the real API
// server and controllers. It checks that the labels and taints of the configuration are set,
// changed and removed, and that those of other clients do not change. A kubelet cannot change
// taints itself.
func nodeLabels(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	const name = "marked-1"
	kubelet := m.client(t, "system:node:"+name, "system:nodes")
	marks := nodespec.NodeLabels{
		Labels: map[string]string{"topology.kubernetes.io/zone": "east", "example.com/rack": ""},
		Taints: []nodespec.Taint{{Key: "dedicated", Value: "gpu", Effect: "NoSchedule"}},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: maps.Clone(marks.Labels)}}
	node.Labels[corev1.LabelHostname] = name
	node.Spec.Taints = []corev1.Taint{{Key: nodespec.TaintsPending, Effect: corev1.TaintEffectNoSchedule}}
	if _, err := kubelet.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})

	// The component runs on a worker, with the kubeconfig and the file of this worker.
	spec := testSpec()
	spec.Node.Name, spec.Node.ControlPlane = name, false
	dirs := dirs.In(t.TempDir())
	identity := m.config(t, "system:node:"+name, "system:nodes")
	write(t, kubeconfig.Authorities(spec, dirs), identity.CAData)
	write(t, dirs.Node+"/"+nodespec.KubeletCert, identity.CertData)
	write(t, dirs.Node+"/"+nodespec.KubeletKey, identity.KeyData)
	half := nodelabels.NodeComponent(spec, dirs)
	if err := half.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	state := func(next nodespec.NodeLabels) {
		t.Helper()
		content, err := json.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		if err := component.WriteFile(component.File{Path: dirs.Node + "/" + nodespec.NodeLabelsFile, Mode: 0o600, Content: string(content)}); err != nil {
			t.Fatal(err)
		}
	}
	state(marks)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	env := component.Env{
		Dir: dirs.Node, Spec: spec, Dirs: dirs,
		Rights: func(context.Context) error { return nil }, Announce: func(string, bool, string) {},
		Nodes: component.NodesOf(running, m.client(t, nodespec.NodeAgentUser+name, nodespec.NodeAgentGroup)),
	}
	go func() { ended <- nodelabels.RunNode(running, env, marks) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	has := func(n *corev1.Node, taint string) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.ToString() == taint })
	}
	waitNode(ctx, t, admin, name, "taint of its configuration", func(n *corev1.Node) bool {
		return has(n, "dedicated=gpu:NoSchedule") && !has(n, nodespec.TaintsPending+":NoSchedule") && n.Labels["topology.kubernetes.io/zone"] == "east"
	})

	// A kubelet may not change its taints. Nor can it remove a taint of another client by adding it
	// to its configuration and removing it again.
	patch := func(by kubernetes.Interface, text string) error {
		_, err := by.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	if err := patch(kubelet, `{"spec":{"taints":null}}`); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet removes its taints: %v, want forbidden", err)
	}
	if err := patch(kubelet, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet takes a role: %v, want forbidden", err)
	}
	nodes := admin.CoreV1().Nodes()
	modify(ctx, t, nodes.Get, nodes.Update, name, func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "quarantine", Effect: corev1.TaintEffectNoSchedule})
		n.Labels["node-role.kubernetes.io/worker"] = ""
	})
	state(nodespec.NodeLabels{
		Labels: map[string]string{"topology.kubernetes.io/zone": "west"},
		Taints: []nodespec.Taint{{Key: "dedicated", Value: "db", Effect: "NoSchedule"}, {Key: "quarantine", Effect: "NoSchedule"}},
	})
	waitNode(ctx, t, admin, name, "changed label and taint", func(n *corev1.Node) bool {
		_, rack := n.Labels["example.com/rack"]
		return has(n, "dedicated=db:NoSchedule") && !has(n, "dedicated=gpu:NoSchedule") && n.Labels["topology.kubernetes.io/zone"] == "west" && !rack
	})
	state(nodespec.NodeLabels{})
	waitNode(ctx, t, admin, name, "removal of its labels and taints", func(n *corev1.Node) bool {
		_, zone := n.Labels["topology.kubernetes.io/zone"]
		return !has(n, "dedicated=db:NoSchedule") && !zone && n.Annotations[nodelabels.WantedAnnotation] == ""
	})
	have, err := admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, role := have.Labels["node-role.kubernetes.io/worker"]; !has(have, "quarantine:NoSchedule") || !role || have.Labels[corev1.LabelHostname] != name {
		t.Errorf("a label or taint of another client was changed: labels %v, taints %v", have.Labels, have.Spec.Taints)
	}
}
