package nodeplan

import (
	"time"

	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
)

// PodsGrace returns the time for the pods to stop before a shutdown, with a configuration (nil for
// none).
func PodsGrace(c *config.Config) time.Duration {
	kubernetes := config.DefaultKubernetes()
	if c != nil && c.Cluster != nil {
		kubernetes = c.Cluster.Spec.Kubernetes
	}
	return time.Duration(kubernetes.Kubelet.Shutdown.GracePeriod)
}

// LogShipping returns the configuration of package logship (nil for none).
func LogShipping(c *config.Config) logship.Config {
	if c == nil {
		return logship.Config{}
	}
	return logship.Config{Machine: c.Machine.Metadata.Name, Receivers: c.Machine.Spec.Logging.Receivers, Egress: Egress(c)}
}

// KubernetesAudit returns the file of the audit log of the machine's API server; empty on a machine
// without one.
func KubernetesAudit(c *config.Config) string {
	if c == nil || c.Cluster == nil || c.IsWorker() {
		return ""
	}
	return paths.AuditLog
}
