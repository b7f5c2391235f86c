package config

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestClusterDigests checks that a change of a field changes the digest of this field alone, and
// that the digests depend on the key.
func TestClusterDigests(t *testing.T) {
	key := []byte("a key")
	ref := example(t)
	before := ClusterDigests(ref, key)
	for _, test := range []struct {
		path   string
		change func(*ClusterSpec)
	}{
		{"Cluster.spec.endpoint", func(s *ClusterSpec) { s.Endpoint.Port = 7443 }},
		{"Cluster.spec.controlPlanes", func(s *ClusterSpec) { s.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.9.9.9")} }},
		{"Cluster.spec.joinRequests", func(s *ClusterSpec) { s.JoinRequests = !s.JoinRequests }},
		{"Cluster.spec.kubernetes.maxPods", func(s *ClusterSpec) { s.Kubernetes.MaxPods++ }},
		{"Cluster.spec.secretsEncryptionKey", func(s *ClusterSpec) { s.SecretsEncryptionKey = NewEncryptionKey([32]byte{9}) }},
		{"Cluster.spec.pki.etcd.key", func(s *ClusterSpec) { s.PKI.Etcd.Key = s.PKI.Machine.Key }},
		{"Cluster.spec.etcd.snapshots.target", func(s *ClusterSpec) {
			target := *s.Etcd.Snapshots.Target
			target.SecretKey = NewSecret("another")
			s.Etcd.Snapshots.Target = &target
		}},
		{"Cluster.spec.etcd.snapshots.target", func(s *ClusterSpec) { s.Etcd.Snapshots.Target = nil }},
	} {
		changed := *ref
		cluster := *ref.Cluster
		changed.Cluster = &cluster
		test.change(&cluster.Spec)
		after := ClusterDigests(&changed, key)
		var differ []string
		for _, path := range slices.Sorted(maps.Keys(after)) {
			if !bytes.Equal(before[path], after[path]) {
				differ = append(differ, path)
			}
		}
		if len(after) != len(before) || !slices.Equal(differ, []string{test.path}) {
			t.Errorf("%s: the digests of %q differ; the changed document has %d digests, the original %d", test.path, differ, len(after), len(before))
		}
	}
	other := ClusterDigests(ref, []byte("another key"))
	for path, digest := range before {
		if len(digest) != digestSize || bytes.Equal(digest, other[path]) {
			t.Errorf("%s: digest %x, with another key %x", path, digest, other[path])
		}
	}
	if none := ClusterDigests(New("a", RoleWorker), key); len(none) > 0 {
		t.Errorf("without a Cluster document: %v", none)
	}
}

// TestWorkerFields checks that each field or block of workerFields exists, and that none is a key.
func TestWorkerFields(t *testing.T) {
	all := ClusterDigests(example(t), nil)
	for _, field := range workerFields {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(path string) bool { return path == field || strings.HasPrefix(path, field+".") }) {
			t.Errorf("%s: the document has no such field", field)
		}
	}
	for path := range all {
		if IsWorkerField(path) && (strings.HasSuffix(path, "Key") || strings.HasSuffix(path, ".key") || strings.HasSuffix(path, "Keys")) {
			t.Errorf("%s: workerFields contains a key of the cluster", path)
		}
	}
}
