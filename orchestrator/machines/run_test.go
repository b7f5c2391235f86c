package machines

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestTrim checks that a heartbeat of a kubelet is no change, and that a change of the fields that
// Plan uses is.
func TestTrim(t *testing.T) {
	trimmed := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "m1", ResourceVersion: "1", Labels: map[string]string{"example.com/x": ""}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}
		change(n)
		object, err := trim(n)
		if err != nil {
			t.Fatal(err)
		}
		return object.(*corev1.Node)
	}
	before := trimmed(func(*corev1.Node) {})
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		same   bool
	}{
		"heartbeat": {func(n *corev1.Node) {
			n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "2", metav1.NewTime(time.Unix(1, 0))
		}, true},
		"images":      {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}}} }, true},
		"label":       {func(n *corev1.Node) { n.Labels["example.com/y"] = "" }, true},
		"role":        {func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, false},
		"unready":     {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, false},
		"version":     {func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.37.3" }, false},
		"provider ID": {func(n *corev1.Node) { n.Spec.ProviderID = "orlop:///c/m1" }, false},
	} {
		if got := sameNode(before, trimmed(c.change)); got != c.same {
			t.Errorf("%s: same %v, want %v", name, got, c.same)
		}
	}
}

// TestReadSettings checks the values from the specification of the node.
func TestReadSettings(t *testing.T) {
	s, err := readSettings(nodespec.Spec{Cluster: "c", Endpoint: "https://[2001:db8::1]:6443", Node: nodespec.Node{Name: "m1"}})
	if err != nil || s.Host != "2001:db8::1" || s.Port != 6443 || s.Own != "m1" || s.Name != "c" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := readSettings(nodespec.Spec{Endpoint: "https://10.0.0.1"}); err == nil {
		t.Error("an endpoint without a port has no error")
	}
}
