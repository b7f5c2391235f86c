package nodespec

import (
	"net/netip"

	"github.com/orlop-os/orlop/pkg/paths"
)

// The files of metricsd in paths.MetricsdDir, in addition to Revoked. machined writes them, and
// metricsd reloads them when they change.
const (
	MetricsdCert = "serving.crt" // SANs: node name and addresses; issuer: the Kubernetes CA
	MetricsdKey  = "serving.key"
	// PEM: the operator CAs, and the CAs of certificates that machines issue to operators; may be
	// empty
	MetricsCallerCAs    = "caller-cas.pem"
	MetricsSettingsFile = "settings.json" // MetricsSettings in JSON
)

// MetricsdCN is the common name of the certificate of metricsd. No other process has it.
const MetricsdCN = "orlop:metricsd"

// MetricsSettings are the settings of metricsd (Machine.spec.metrics).
type MetricsSettings struct {
	From []netip.Prefix `json:"from"` // networks of clients; empty for all networks
	// clients may authenticate by a token of Kubernetes
	Tokens bool `json:"tokens"`
	// clients may authenticate by a certificate of MetricsCallerCAs
	Certificates bool `json:"certificates"`
}

// MetricsSocket returns the path of the socket on which a service, or machined (ServiceMachined),
// serves its metrics.
func MetricsSocket(service string) string { return paths.MetricsSockets + "/" + service + ".sock" }

// The HTTP paths on the sockets.
const (
	// on the socket of ServiceMachined
	MetricsOfMachine = "/machine"
	// on the socket of ServiceAPI
	MetricsOfEtcd = "/etcd"
	// on the socket of ServiceControllers
	MetricsOfScheduler         = "/scheduler"
	MetricsOfControllers       = "/controllers"
	MetricsOfControllerManager = "/controller-manager"
	// on the socket of ServiceNode
	MetricsOfContainerd = "/containerd"
	// AuthorizeMetrics, on the socket of ServiceNode, checks the token in the header Authorization.
	// The status is 204 if the token may read MetricsResource, 401 if the token is invalid, 403 if
	// the token has no right, and 503 if the API server does not respond.
	AuthorizeMetrics = "/authorize"
)

// MetricsResource is the nonResourceURL for which a token needs the verb get.
const MetricsResource = "/metrics"
