package api

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestKubernetesURL checks that a kubeconfig uses the first virtual address, else the endpoint.
func TestKubernetesURL(t *testing.T) {
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "k8s.example", Port: 443}, config.PKI{}, config.EncryptionKey{})
	for _, test := range []struct {
		addresses []netip.Addr
		url       string
	}{
		{nil, "https://k8s.example:443"},
		{[]netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("2001:db8::9")}, "https://10.0.0.9:6443"},
		{[]netip.Addr{netip.MustParseAddr("2001:db8::9")}, "https://[2001:db8::9]:6443"},
	} {
		c.Cluster.Spec.VirtualAddresses = test.addresses
		if got := kubernetesURL(c.Cluster.Spec); got != test.url {
			t.Errorf("%v: kubeconfig files name %s, want %s", test.addresses, got, test.url)
		}
	}
}

// TestKubeconfigTTL checks which periods of validity a request for a kubeconfig may have.
func TestKubeconfigTTL(t *testing.T) {
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "k8s.example", Port: 443}, config.PKI{}, config.EncryptionKey{})
	for _, test := range []struct {
		ttl  *durationpb.Duration
		want time.Duration
		code codes.Code
	}{
		{nil, kubeconfigTTL, codes.OK}, {durationpb.New(time.Minute), time.Minute, codes.OK}, {durationpb.New(kubeconfigMaxTTL), kubeconfigMaxTTL, codes.OK},
		{durationpb.New(0), 0, codes.InvalidArgument}, {durationpb.New(-time.Hour), 0, codes.InvalidArgument}, {durationpb.New(time.Nanosecond), 0, codes.InvalidArgument},
		{durationpb.New(kubeconfigMaxTTL + 1), 0, codes.InvalidArgument},
	} {
		if _, got, err := kubeconfigRequest(c.Cluster, &api.KubeconfigRequest{Ttl: test.ttl}); got != test.want || status.Code(err) != test.code {
			t.Errorf("%v: %v, %v; want %v, %v", test.ttl.AsDuration(), got, err, test.want, test.code)
		}
	}
}
