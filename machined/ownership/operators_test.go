package ownership

import (
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// authority returns a new CA with a common name.
func authority(t *testing.T, name string) config.Certificate {
	t.Helper()
	ca, err := pki.NewCA(name, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.ParseCertificate(string(ca.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCheckMedium checks that a boot medium cannot add or remove operators of a claimed machine,
// and that the error names the field.
func TestCheckMedium(t *testing.T) {
	mine, second, others := authority(t, "operator"), authority(t, "operator"), authority(t, "operator")
	machine := func(cas ...config.Certificate) *config.Config {
		return config.New("a", config.RoleControlPlane).WithOperatorCAs(cas...)
	}
	cluster := func(p config.PKI) *config.Config {
		return machine().WithCluster("c", config.Endpoint{}, p, config.EncryptionKey{})
	}
	accepted := func(cas ...config.Certificate) config.Accepted { return config.Accepted{Client: cas} }
	for _, c := range []struct {
		name  string
		owner []config.Certificate
		next  *config.Config
		says  string // part of the error; empty if the configuration is accepted
	}{
		{"names no CA", []config.Certificate{mine}, machine(), ""},
		{"names the owner", []config.Certificate{mine}, machine(mine), ""},
		{"names the owner twice", []config.Certificate{mine}, machine(mine, mine), ""},
		{"adds an operator", []config.Certificate{mine}, machine(mine, others), "Machine.spec.trust.operatorCAs[1]: cannot add"},
		{"adds an operator first", []config.Certificate{mine}, machine(others, mine), "Machine.spec.trust.operatorCAs[0]: cannot add"},
		{"replaces the owner", []config.Certificate{mine}, machine(others), "Machine.spec.trust.operatorCAs[0]: cannot add"},
		{"leaves out one of two owners", []config.Certificate{mine, second}, machine(mine), "Machine.spec.trust.operatorCAs: cannot omit"},
		{"leaves out one of two owners, naming it elsewhere", []config.Certificate{mine, second},
			machine(mine).WithCluster("c", config.Endpoint{}, config.PKI{Client: config.CertKey{Cert: second}}, config.EncryptionKey{}), "operatorCAs: cannot omit"},
		{"names both owners", []config.Certificate{mine, second}, machine(second, mine), ""},
		{"a cluster without a client CA", []config.Certificate{mine}, cluster(config.PKI{Machine: config.CertKey{Cert: others}}), ""},
		{"a client CA", []config.Certificate{mine}, cluster(config.PKI{Client: config.CertKey{Cert: others}}), "Cluster.spec.pki.client.cert: cannot add"},
		{"the owner's CA as client CA", []config.Certificate{mine}, cluster(config.PKI{Client: config.CertKey{Cert: mine}}), ""},
		{"an accepted client CA", []config.Certificate{mine}, cluster(config.PKI{Client: config.CertKey{Cert: mine}, Accepted: accepted(mine, others)}), "Cluster.spec.pki.accepted.client[1]: cannot add"},
		{"an accepted client CA, but no client CA", []config.Certificate{mine}, cluster(config.PKI{Accepted: accepted(others)}), "Cluster.spec.pki.accepted.client[0]: cannot add"},
		{"an unclaimed machine", nil, machine(others), ""},
		{"an unclaimed machine, with a client CA", nil, cluster(config.PKI{Client: config.CertKey{Cert: others}}), ""},
	} {
		var owner []byte
		for _, ca := range c.owner {
			owner = append(owner, ca.PEM()...)
		}
		err := CheckMedium(owner, c.next)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := CheckMedium([]byte("no certificate"), machine()); err == nil {
		t.Error("a machine with an unreadable CA of its owner is treated as unclaimed")
	}
}
