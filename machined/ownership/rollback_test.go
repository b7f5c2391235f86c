package ownership

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestCheckRollback checks that a rollback is rejected if the machine would trust a removed CA
// again, and that the error names the field and the CA.
func TestCheckRollback(t *testing.T) {
	owner, first, second := authority(t, "owner"), authority(t, "first"), authority(t, "second")
	machine := func(cas ...config.Certificate) *config.Config {
		return config.New("a", config.RoleControlPlane).WithOperatorCAs(cas...)
	}
	cluster := func(p config.PKI) *config.Config {
		return machine().WithCluster("c", config.Endpoint{}, p, config.EncryptionKey{})
	}
	issues := func(ca config.Certificate) config.CertKey { return config.CertKey{Cert: ca} }
	for _, c := range []struct {
		name      string
		now, then *config.Config
		says      string // part of the error; empty if the rollback is accepted
	}{
		{"the same operators", machine(first, second), machine(second, first), ""},
		{"an operator was added", machine(first, second), machine(first), ""},
		{"an operator was removed", machine(first), machine(first, second), `Machine.spec.trust.operatorCAs: "second", sha256:`},
		{"the owner was replaced", machine(first), machine(), `Machine.spec.trust.operatorCAs: "owner", sha256:`},
		{"the list of operators with only the owner was removed", machine(), machine(owner), ""},
		{"the list of operators with another operator was removed", machine(), machine(first), `"first"`},
		{"the machine has joined a cluster", cluster(config.PKI{Machine: issues(first)}), machine(), ""},
		{"the former CA is still accepted", cluster(config.PKI{Client: issues(second), Accepted: config.Accepted{Client: []config.Certificate{first}}}), cluster(config.PKI{Client: issues(first)}), ""},
		{"a CA was dropped", cluster(config.PKI{Client: issues(second)}), cluster(config.PKI{Client: issues(first)}), `Cluster.spec.pki.client: "first"`},
		{"the CA was that of etcd, and is now the client CA", cluster(config.PKI{Client: issues(first)}), cluster(config.PKI{Etcd: issues(first)}), `Cluster.spec.pki.etcd: "first"`},
	} {
		err := CheckRollback(c.now, c.then, []byte(owner.PEM()))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := CheckRollback(machine(), machine(), []byte("no certificate")); err == nil {
		t.Error("an unreadable CA of the owner is accepted")
	}
}
