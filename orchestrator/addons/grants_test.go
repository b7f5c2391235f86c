package addons

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clientfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

func (d difference) empty() bool {
	return len(d.unbind)+len(d.drop)+len(d.add)+len(d.change)+len(d.bind)+len(d.resubject) == 0
}

// TestGrant checks that the cluster gets the wanted roles and bindings from any previous state, and
// that nothing is written twice.
func TestGrant(t *testing.T) {
	ctx, client := context.Background(), clientfake.NewClientset()
	first := rbacFor(append(Rights(nodespec.Addon{Name: "a", Rights: nodespec.AddonRights{ClusterAdmin: true}}), ownGrant()))
	second := rbacFor(append(Removing("b", []Item{{Version: "v1", Kind: "Pod", Resource: "pods", Namespace: "x", Name: "p"}}), ownGrant()))
	// applyRBAC is called twice for each of the three states. news[i] is the number of new grants
	// that it must report for state i: some at the first call, and none at the second call.
	for i, want := range []rbacObjects{first, second, rbacFor(nil)} {
		for _, news := range [][]int{{2, 1, 0}, {0, 0, 0}} {
			given, failed, err := applyRBAC(ctx, client, want)
			if len(given) != news[i] || len(failed) > 0 || err != nil {
				t.Fatalf("given %v, want %d; %v %v", given, news[i], failed, err)
			}
		}
		if have, err := presentRBAC(ctx, client); err != nil || !compare(have, want).empty() {
			t.Errorf("have %v, want %v: %v", have, want, err)
		}
	}
}

// TestGrantRefused checks that a rejected grant does not count as given, and that the other grants
// are given.
func TestGrantRefused(t *testing.T) {
	client := clientfake.NewClientset()
	client.PrependReactor("create", "roles", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.GetNamespace() == "ending", nil, errors.New("the namespace is being terminated")
	})
	of := func(name, namespace string) []Grant {
		return Removing(name, []Item{{Version: "v1", Kind: "Pod", Resource: "pods", Namespace: namespace, Name: "p"}})
	}
	bad, good := of("a", "ending"), of("b", "x")
	given, failed, err := applyRBAC(t.Context(), client, rbacFor(append(bad, good...)))
	if err != nil {
		t.Fatal(err)
	}
	at := func(g Grant) [2]string { return [2]string{g.Namespace, g.Name} }
	if failed[at(bad[0])] == nil || failed[at(good[0])] != nil || !given[at(good[0])] {
		t.Errorf("given %v, refused %v", given, failed)
	}
}
