package nodeplan

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestWithoutCluster checks PodsGrace, LogShipping and KubernetesAudit without a configuration,
// without a cluster, and for each of the two roles.
func TestWithoutCluster(t *testing.T) {
	made := func(role config.Role, grace time.Duration) *config.Config {
		c := config.New("m1", role)
		if grace > 0 {
			c.Cluster = &config.Cluster{}
			c.Cluster.Spec.Kubernetes.Kubelet.Shutdown.GracePeriod = config.Duration(grace)
		}
		return c
	}
	usual := time.Duration(config.DefaultKubernetes().Kubelet.Shutdown.GracePeriod)
	for name, c := range map[string]struct {
		config  *config.Config
		grace   time.Duration
		machine string
		audit   string
	}{
		"no configuration":        {nil, usual, "", ""},
		"no cluster":              {made(config.RoleControlPlane, 0), usual, "m1", ""},
		"a worker":                {made(config.RoleWorker, time.Hour), time.Hour, "m1", ""},
		"a control-plane machine": {made(config.RoleControlPlane, time.Hour), time.Hour, "m1", paths.AuditLog},
	} {
		if grace, logs, audit := PodsGrace(c.config), LogShipping(c.config), KubernetesAudit(c.config); grace != c.grace || logs.Machine != c.machine || audit != c.audit {
			t.Errorf("%s: the grace period is %v, the machine in LogShipping %q, the audit log %q", name, grace, logs.Machine, audit)
		}
	}
}

// TestExpected checks that a machine expects services only if it belongs to a cluster, and that it
// expects the services of its role.
func TestExpected(t *testing.T) {
	c := config.New("m1", config.RoleWorker)
	if got := slices.Concat(Expected(nil), Expected(c)); len(got) != 0 {
		t.Errorf("without a cluster: %q", got)
	}
	c.Cluster = &config.Cluster{}
	if got := Expected(c); slices.Contains(got, nodespec.ServiceAPI) || !slices.Contains(got, nodespec.ServiceNode) {
		t.Errorf("a worker: %q", got)
	}
	c.Machine.Spec.Role = config.RoleControlPlane
	if got := Expected(c); !slices.Contains(got, nodespec.ServiceAPI) || !slices.Contains(got, nodespec.ServiceNode) {
		t.Errorf("a control-plane machine: %q", got)
	}
}

// TestCallerCAs checks that a machine with a damaged ledger still accepts the CAs of its operators
// and machines, but no client CA: it does not know which client certificates are revoked.
func TestCallerCAs(t *testing.T) {
	ca, err := pki.NewCA("clients", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := config.New("m1", config.RoleControlPlane)
	c.Cluster = &config.Cluster{}
	if c.Cluster.Spec.PKI.Client, err = config.NewCertKey(string(ca.CertPEM()), string(ca.KeyPEM())); err != nil {
		t.Fatal(err)
	}
	c.Cluster.Spec.PKI.Machine = c.Cluster.Spec.PKI.Client // any CA serves as the CA of machines
	for name, want := range map[string]struct {
		config            *config.Config
		damaged           error
		clients, machines bool
	}{
		"no configuration": {nil, nil, false, false},
		"a cluster":        {c, nil, true, true},
		"a damaged ledger": {c, errors.New("torn"), false, true},
	} {
		got := CallerCAs(want.config, []byte("operators"), want.damaged)
		if string(got.Operators) != "operators" || (len(got.Clients) > 0) != want.clients || (len(got.Machines) > 0) != want.machines {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
