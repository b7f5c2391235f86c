package nodeplan

import (
	"time"

	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
)

// PodsGrace returns the time that pods have to stop at a shutdown. It is the default if c is nil or
// has no cluster.
func PodsGrace(c *config.Config) time.Duration {
	kubernetes := config.DefaultKubernetes()
	if c != nil && c.Cluster != nil {
		kubernetes = c.Cluster.Spec.Kubernetes
	}
	return time.Duration(kubernetes.Kubelet.Shutdown.GracePeriod)
}

// LogShipping returns the configuration of log shipping. It is empty if c is nil.
func LogShipping(c *config.Config) logship.Config {
	if c == nil {
		return logship.Config{}
	}
	return logship.Config{Machine: c.Machine.Metadata.Name, Receivers: c.Machine.Spec.Logging.Receivers, Egress: Egress(c)}
}

// KubernetesAudit returns the path of the audit log of the machine's API server. It is empty if the
// machine runs no API server.
func KubernetesAudit(c *config.Config) string {
	if c == nil || c.Cluster == nil || c.IsWorker() {
		return ""
	}
	return paths.AuditLog
}
