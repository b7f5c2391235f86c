package main

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/machined/membership"
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

// TestUnusedResolvers checks that resolvers that pods do not use are reported once.
func TestUnusedResolvers(t *testing.T) {
	m := &machine{events: newEventLog()}
	for range 3 {
		m.reportUnusedResolvers([]string{"a", "b"})
	}
	if all := m.events.after(0); len(all) != 2 {
		t.Errorf("events: %v", all)
	}
}

// TestWorkerDocuments checks that the documents of a worker contain all cluster-wide fields, but no
// keys and no fields of a control plane.
func TestWorkerDocuments(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	got, want := reflect.ValueOf(membership.WorkerDocuments(c, "w1").Cluster.Spec), reflect.ValueOf(c.Cluster.Spec)
	if keys := got.FieldByName("AcceptedEncryptionKeys"); keys.Len() > 0 {
		t.Error("the worker has keys of Secrets")
	}
	for i := range want.NumField() {
		field := want.Type().Field(i).Name
		if slices.Contains([]string{"PKI", "SecretsEncryptionKey", "AcceptedEncryptionKeys", "Etcd", "Kubernetes"}, field) {
			continue
		}
		if a, b := got.Field(i).Interface(), want.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the worker has %v, and the control plane %v", field, a, b)
		}
	}
}
