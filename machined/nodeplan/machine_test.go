package nodeplan

import (
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
)

// TestWithoutCluster checks the values of a machine without a configuration, without a cluster, and
// of the two roles.
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
			t.Errorf("%s: %v, %q, %q", name, grace, logs.Machine, audit)
		}
	}
}
