package podnetwork

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRanges checks which Node gets a range that several Nodes state: the Node of this machine, if
// it is one of them, or else the Node that was registered first. Invalid ranges are omitted.
func TestRanges(t *testing.T) {
	spec, _ := single()
	node := func(name string, since int64, ranges ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(since, 0))}}
		n.Spec.PodCIDRs = ranges
		return n
	}
	got := Ranges(spec, []*corev1.Node{
		node("thief", 9, "10.244.1.0/24"), node("old", 1, "10.244.1.0/24"), node("foreign", 1, "192.0.2.0/24"), node("large", 9, "10.244.0.0/16"),
		node("new", 9), node("broken", 1, "x"), node(spec.Node.Name, 10, "10.244.7.0/24"), node("claims", 1, "10.244.7.0/24"),
	})
	want := map[string][]netip.Prefix{"old": prefixes("10.244.1.0/24"), spec.Node.Name: prefixes("10.244.7.0/24")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
