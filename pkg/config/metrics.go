package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// Metrics opens the port with the metrics of the machine.
type Metrics struct {
	// From are the networks from which clients may connect; empty means all.
	From    []netip.Prefix  `yaml:"from,omitempty"`
	Callers []MetricsCaller `yaml:"callers"`
}

// MetricsCaller is a kind of credential with which a client may read the metrics.
type MetricsCaller string

// The kinds.
const (
	// CallerToken is a token of the cluster, for example of a service account.
	CallerToken MetricsCaller = "token"
	// CallerCertificate is a certificate for the management API with role reader or a higher one.
	CallerCertificate MetricsCaller = "certificate"
)

func metricsCallers() []MetricsCaller { return []MetricsCaller{CallerToken, CallerCertificate} }

// Names returns the kinds.
func (MetricsCaller) Names() []string {
	var names []string
	for _, c := range metricsCallers() {
		names = append(names, string(c))
	}
	return names
}

func (m *Metrics) defaults() { m.Callers = metricsCallers() }

// maxMetricsSources bounds the networks of Metrics.From, because each new connection is compared
// with all networks.
const maxMetricsSources = 64

func (v machineValidator) metrics(path string, m *Metrics) {
	if v.cluster == nil {
		v.on(path, wrong{
			reason: "there is no Cluster document, and the port has a certificate of the cluster", expected: "a Cluster document",
			hint: "`orlopctl dashboard` shows a machine without a cluster",
		})
	}
	if len(m.From) > maxMetricsSources {
		v.on(path+".from", wrong{reason: fmt.Sprintf("%d networks", len(m.From)), expected: fmt.Sprintf("at most %d", maxMetricsSources)})
	}
	v.sources(path+".from", m.From)
	if len(m.Callers) == 0 && !v.broken[path+".callers"] {
		v.on(path+".callers", wrong{reason: "is empty", expected: "at least one kind of caller", hint: "without the field, all kinds are admitted; without metrics, the port is closed"})
	}
	for i, c := range m.Callers {
		if slices.Contains(m.Callers[:i], c) && c != "" {
			v.on(fmt.Sprintf("%s.callers[%d]", path, i), wrong{reason: fmt.Sprintf("%s is given twice", quote(string(c)))})
		}
	}
}

// sources validates a list of networks from which clients may connect to a port.
func (v checks) sources(path string, from []netip.Prefix) {
	for i, p := range from {
		at := fmt.Sprintf("%s[%d]", path, i)
		if p.Addr().Is4In6() {
			v.on(at, mapped(p.Addr()))
		} else if p.IsValid() && p != p.Masked() {
			v.on(at, wrong{reason: fmt.Sprintf("%s is an address in a network", p), expected: p.Masked().String() + ", or " + netip.PrefixFrom(p.Addr(), p.Addr().BitLen()).String()})
		}
		if p.IsValid() && slices.Contains(from[:i], p) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", p)})
		}
	}
}
