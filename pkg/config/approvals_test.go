package config

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestGuarded checks which changes of a configuration need an approval. It also checks that the
// approved values contain no secret.
func TestGuarded(t *testing.T) {
	all := &Approvals{}
	only := func(c ApprovalCalls) *Approvals { return &Approvals{Calls: []ApprovalCalls{c}} }
	base := func() *Config {
		c := New("cp1", RoleControlPlane).WithCluster("c", Endpoint{}, PKI{}, NewEncryptionKey([32]byte{1}))
		c.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
		c.Machine.Spec.Trust.Approvals = &Approvals{Approvers: []Approver{{"alice", "sha256:a"}, {"bob", "sha256:b"}, {"carol", "sha256:c"}}}
		return c
	}
	const (
		approvals = "Machine.spec.trust.approvals"
		planes    = "Cluster.spec.controlPlanes"
		key       = "Cluster.spec.secretsEncryptionKey"
		policies  = "Cluster.spec.kubernetes.sealedPolicies.system"
	)
	for _, c := range []struct {
		name   string
		rule   *Approvals
		change func(*Config)
		want   []string // fields
	}{
		{"no change", all, func(*Config) {}, nil},
		{"no rule", nil, func(c *Config) { c.Machine.Spec.Trust.Approvals = nil }, nil},
		{"other fields", all, func(c *Config) { c.Machine.Metadata.Name, c.Cluster.Spec.Kubernetes.MaxPods = "b", 50 }, nil},
		{"the rule is removed", all, func(c *Config) { c.Machine.Spec.Trust.Approvals = nil }, []string{approvals}},
		{"the rule is weakened", only("wipe"), func(c *Config) { c.Machine.Spec.Trust.Approvals.Calls = []ApprovalCalls{"etcd"} }, []string{approvals}},
		{"an approver has another key", only("wipe"), func(c *Config) { c.Machine.Spec.Trust.Approvals.Approvers[1].Key = "sha256:d" }, []string{approvals}},
		{"an approver is added", all, func(c *Config) {
			c.Machine.Spec.Trust.Approvals.Approvers = append(c.Machine.Spec.Trust.Approvals.Approvers, Approver{"mallory", "sha256:d"})
		}, []string{approvals}},
		{"an operator CA", only("wipe"), func(c *Config) { c.Machine.Spec.Trust.OperatorCAs = make([]Certificate, 1) }, []string{"Machine.spec.trust.operatorCAs"}},
		{"an accepted client CA", only("wipe"), func(c *Config) { c.Cluster.Spec.PKI.Accepted.Client = make([]Certificate, 1) }, []string{"Cluster.spec.pki.accepted.client"}},
		{"an accepted machine CA", only("wipe"), func(c *Config) { c.Cluster.Spec.PKI.Accepted.Machine = make([]Certificate, 1) }, nil},
		{"an accepted machine CA", only("keys"), func(c *Config) { c.Cluster.Spec.PKI.Accepted.Machine = make([]Certificate, 1) }, []string{"Cluster.spec.pki.accepted.machine"}},
		{"the encryption key", all, func(c *Config) { c.Cluster.Spec.SecretsEncryptionKey = NewEncryptionKey([32]byte{2}) }, []string{key}},
		{"a control-plane machine is added", all, func(c *Config) {
			c.Cluster.Spec.ControlPlanes = append(c.Cluster.Spec.ControlPlanes, netip.MustParseAddr("10.0.0.3"))
		}, nil},
		{"a control-plane machine is removed", all, func(c *Config) { c.Cluster.Spec.ControlPlanes = c.Cluster.Spec.ControlPlanes[:1] }, []string{planes}},
		{"a control-plane machine is replaced", only("members"), func(c *Config) {
			c.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.3")}
		}, []string{planes}},
		{"a control-plane machine is removed", only("wipe"), func(c *Config) { c.Cluster.Spec.ControlPlanes = nil }, nil},
		{"the cluster is removed", only("policies"), func(c *Config) { c.Cluster = nil }, nil},
		{"sealed policies", all, func(c *Config) { c.Cluster.Spec.Kubernetes.SealedPolicies.System = true }, []string{policies}},
		{"the worker wipes itself", all, func(c *Config) { c.Machine.Spec.Join = &Join{OnRemoval: RemovalWipe} }, []string{"Machine.spec.join"}},
		{"the worker joins", all, func(c *Config) { c.Machine.Spec.Join = &Join{From: []string{"10.0.0.1"}} }, nil},
		{"a key manager", all, func(c *Config) {
			c.Cluster.Spec.Kubernetes.APIServer.KMS = &KMS{Transit: &Transit{Key: "k", AppRole: &AppRole{SecretID: NewSecret("hidden")}}}
		}, []string{"Cluster.spec.kubernetes.apiServer.kms"}},
	} {
		before := base()
		after := base()
		after.Cluster.Spec.SecretsEncryptionKey = before.Cluster.Spec.SecretsEncryptionKey
		c.change(after)
		got := Guarded(c.rule, before, after)
		if fields := slices.Sorted(maps.Keys(got)); !slices.Equal(fields, c.want) {
			t.Errorf("%s: %v, want %v", c.name, fields, c.want)
		}
		if text := fmt.Sprint(got); strings.Contains(text, "hidden") || after.Cluster != nil && strings.Contains(text, after.Cluster.Spec.SecretsEncryptionKey.Reveal()) {
			t.Errorf("%s: the approved values contain a secret: %s", c.name, text)
		}
	}
}

// TestGuardedValues checks that the approved value depends on the secret, and that the credentials
// of a key manager can change without an approval.
func TestGuardedValues(t *testing.T) {
	rule := &Approvals{}
	with := func(secret, key string) *Config {
		c := New("cp1", RoleControlPlane).WithCluster("c", Endpoint{}, PKI{}, EncryptionKey{})
		c.Cluster.Spec.Kubernetes.APIServer.KMS = &KMS{Transit: &Transit{Key: key, AppRole: &AppRole{SecretID: NewSecret(secret)}}}
		return c
	}
	if got := Guarded(rule, with("one", "k"), with("two", "k")); len(got) > 0 {
		t.Errorf("other credentials of a key manager need an approval: %v", got)
	}
	one, two := Guarded(rule, with("one", "k"), with("one", "other")), Guarded(rule, with("one", "k"), with("two", "other"))
	if len(one) != 1 || maps.Equal(one, two) {
		t.Errorf("%v, %v", one, two)
	}
}

// TestGuardedFieldsExist checks that each row of guardedFields names an existing field. Otherwise,
// a renamed field would no longer be guarded.
func TestGuardedFieldsExist(t *testing.T) {
	known := map[string]bool{}
	c := New("a", RoleControlPlane).WithCluster("c", Endpoint{}, PKI{}, EncryptionKey{})
	note := func(path string, _ reflect.Value) {
		for i := range path {
			if path[i] == '.' {
				known[path[:i]] = true
			}
		}
		known[path] = true
	}
	digestFields("Machine", reflect.ValueOf(c.Machine), note)
	digestFields("Cluster", reflect.ValueOf(c.Cluster).Elem(), note)
	for _, f := range guardedFields {
		if !known[f.path] {
			t.Errorf("guardedFields has %s, which is no field of the configuration", f.path)
		}
	}
}

// TestGuards checks which groups a rule guards. A rule always guards itself.
func TestGuards(t *testing.T) {
	some := &Approvals{Calls: []ApprovalCalls{CallsWipe}}
	for _, c := range []struct {
		rule *Approvals
		call ApprovalCalls
		want bool
	}{
		{nil, callsTrust, false}, {nil, CallsWipe, false}, {&Approvals{}, CallsEtcd, true}, {&Approvals{}, callsTrust, true},
		{some, CallsWipe, true}, {some, CallsEtcd, false}, {some, callsTrust, true},
	} {
		if got := c.rule.Guards(c.call); got != c.want {
			t.Errorf("%+v, %s: %v", c.rule, c.call, got)
		}
	}
}
