package addons

import (
	"context"
	"testing"

	clientfake "k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestGrant: the cluster has the roles and bindings that are wanted, whatever it had before, and nothing is written twice.
func TestGrant(t *testing.T) {
	ctx, client := context.Background(), clientfake.NewClientset()
	first := granting(append(Rights(nodespec.Addon{Name: "a", Rights: nodespec.AddonRights{ClusterAdmin: true}}), home()))
	second := granting(append(Removing("b", []Item{{Version: "v1", Kind: "Pod", Resource: "pods", Namespace: "x", Name: "p"}}), home()))
	for _, want := range []granted{first, second, granting(nil)} {
		for _, differs := range []bool{true, false} {
			changed, failed, err := grant(ctx, client, want)
			if changed != differs || len(failed) > 0 || err != nil {
				t.Fatalf("changed %t, want %t; %v %v", changed, differs, failed, err)
			}
		}
		if have, err := present(ctx, client); err != nil || !compare(have, want).empty() {
			t.Errorf("have %v, want %v: %v", have, want, err)
		}
	}
}
