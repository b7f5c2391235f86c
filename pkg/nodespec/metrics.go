package nodespec

import (
	"net/netip"

	"github.com/orlop-os/orlop/pkg/paths"
)

// The files of metricsd in paths.MetricsdDir, besides Revoked. machined writes them, metricsd
// reloads them when they change.
const (
	MetricsdCert = "serving.crt" // SANs: node name and addresses; the CA is the Kubernetes CA
	MetricsdKey  = "serving.key"
	// PEM, the CAs of operators and of the certificates that the machines issue to operators; may
	// be empty
	MetricsCallerCAs    = "caller-cas.pem"
	MetricsSettingsFile = "settings.json" // MetricsSettings
)

// MetricsdCN is the common name of a certificate that only metricsd uses.
const MetricsdCN = "orlop:metricsd"

// MetricsSettings are the settings of metricsd (Machine.spec.metrics).
type MetricsSettings struct {
	From         []netip.Prefix `json:"from"` // networks that may connect; empty: all
	Tokens       bool           `json:"tokens"`
	Certificates bool           `json:"certificates"`
}

// MetricsSocket returns the socket on which a service, or machined (ServiceMachined), serves its
// metrics.
func MetricsSocket(service string) string { return paths.MetricsSockets + "/" + service + ".sock" }

// The paths on the sockets.
const (
	// of ServiceMachined
	MetricsOfMachine = "/machine"
	// of ServiceAPI
	MetricsOfEtcd = "/etcd"
	// of ServiceControllers
	MetricsOfScheduler         = "/scheduler"
	MetricsOfControllers       = "/controllers"
	MetricsOfControllerManager = "/controller-manager"
	// of ServiceNode
	MetricsOfContainerd = "/containerd"
	// AuthorizeMetrics of ServiceNode checks the token in the header Authorization: status 204 if
	// it may read MetricsResource, 401 if it is no valid token, 403 if it has no right, 503 if the
	// API server does not answer.
	AuthorizeMetrics = "/authorize"
)

// MetricsResource is the nonResourceURL that a token must have the right to get.
const MetricsResource = "/metrics"
