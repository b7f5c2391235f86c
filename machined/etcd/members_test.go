package etcd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// configured returns a configuration of a control-plane machine.
func configured() *config.Config {
	return config.New("m1", config.RoleControlPlane).WithCluster("c", config.Endpoint{}, config.PKI{}, config.EncryptionKey{})
}

// TestDeleteMemberNode checks that the Node of a control-plane machine is deleted with its etcd
// member. The Node stays if the configuration still has the address of the machine, or if another
// machine of the cluster has its name.
func TestDeleteMemberNode(t *testing.T) {
	nodes, refuse := []string{"m2", "m1", "w1"}, error(nil)
	c := configured()
	c.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.11")}
	now := cell.New(Config{Config: c})
	k := New(Deps{
		Config:    now.View(),
		NameInUse: func(_ *config.Config, name string) bool { return name == "m1" || name == "w1" },
		DeleteNodes: func(_ context.Context, _ *config.Config, names []string) (there []string, err error) {
			nodes = slices.DeleteFunc(nodes, func(n string) bool { return refuse == nil && slices.Contains(names, n) })
			return names, refuse
		},
		Event: func(string, string, string) {},
	})
	for _, c := range []struct {
		name, at, want string
		left           []string
	}{
		{"m2", "https://10.0.0.11:2380", "Cluster.spec.controlPlanes names 10.0.0.11, so the machine may come back; remove it there, then `kubectl delete node m2`", []string{"m2", "m1", "w1"}},
		{"m1", "https://10.0.0.13:2380", "another machine of the cluster has its name", []string{"m2", "m1", "w1"}},
		{"w1", "https://10.0.0.13:2380", "another machine of the cluster has its name", []string{"m2", "m1", "w1"}},
		{"", "https://10.0.0.13:2380", "", []string{"m2", "m1", "w1"}},
		{"m2", "https://10.0.0.13:2380", "", []string{"m1", "w1"}},
		{"m2", "https://10.0.0.13:2380", "", []string{"m1", "w1"}},
	} {
		got := k.deleteMemberNode(t.Context(), &api.EtcdMember{Id: "1", Name: c.name, PeerUrls: []string{c.at}})
		if got != c.want || !slices.Equal(nodes, c.left) {
			t.Errorf("%s at %s: %q, want %q; there are %v, want %v", c.name, c.at, got, c.want, nodes, c.left)
		}
	}
	refuse = errors.New("the API does not answer")
	if got := k.deleteMemberNode(t.Context(), &api.EtcdMember{Id: "1", Name: "m3"}); got != "the API does not answer" {
		t.Error(got)
	}
	now.Set(Config{})
	if got := k.deleteMemberNode(t.Context(), &api.EtcdMember{Id: "1", Name: "m3"}); got != "this machine has no configuration of a control plane any more; `kubectl delete node m3`" {
		t.Error(got)
	}
}
