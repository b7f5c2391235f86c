package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Logging configures log shipping.
type Logging struct {
	Receivers []Receiver  `yaml:"receivers,omitempty"`
	Pods      *PodLogging `yaml:"pods,omitempty"`
}

// PodLogging selects the pods for the receivers with SourcePods.
type PodLogging struct {
	Namespaces     []string `yaml:"namespaces,omitempty"`
	Exclude        []string `yaml:"exclude"`
	LinesPerSecond int      `yaml:"linesPerSecond" limits:"1 to 100000"`
}

func (p *PodLogging) defaults() { p.Exclude, p.LinesPerSecond = []string{"kube-system"}, 200 }

// maxLogNamespaces bounds each list of namespaces in PodLogging, because each pod is compared with
// all items.
const maxLogNamespaces = 64

// Receiver is a remote receiver of logs. The machine sends the lines that it has stored. So a
// receiver that was unreachable for a time misses only lines that the machine deleted in this time.
type Receiver struct {
	Name       string      `yaml:"name" jsonschema:"required"`
	Address    HostPort    `yaml:"address" jsonschema:"required"`
	Format     LogFormat   `yaml:"format"`
	CA         Bundle      `yaml:"ca,omitempty"`
	ServerName string      `yaml:"serverName,omitempty"`
	Client     *CertKey    `yaml:"client,omitempty"`
	Sources    []LogSource `yaml:"sources"`
}

// maxReceivers limits the memory that PID 1 needs for connections.
const maxReceivers = 4

// LogFormat is a format of log lines.
type LogFormat string

// The formats.
const (
	FormatJSON   LogFormat = "json"
	FormatSyslog LogFormat = "syslog"
	FormatOTLP   LogFormat = "otlp"
)

// Names returns the formats.
func (LogFormat) Names() []string {
	return []string{string(FormatJSON), string(FormatSyslog), string(FormatOTLP)}
}

// LogSource is a source of log lines on the machine.
type LogSource string

// The sources.
const (
	SourceAudit      LogSource = "audit"
	SourceKubernetes LogSource = "kubernetes-audit"
	SourceEvents     LogSource = "events"
	SourceServices   LogSource = "services"
	SourceKernel     LogSource = "kernel"
	// SourcePods means the logs of pods. Only receivers with FormatOTLP can get these logs.
	SourcePods LogSource = "pods"
)

// logSources returns the sources that a receiver gets by default.
func logSources() []LogSource {
	return []LogSource{SourceAudit, SourceKubernetes, SourceEvents, SourceServices, SourceKernel}
}

// Names returns the sources.
func (LogSource) Names() []string {
	var names []string
	for _, s := range append(logSources(), SourcePods) {
		names = append(names, string(s))
	}
	return names
}

// GetsPods reports whether the receiver gets the logs of pods.
func (r Receiver) GetsPods() bool { return slices.Contains(r.Sources, SourcePods) }

func (r *Receiver) defaults() { r.Format, r.Sources = FormatJSON, logSources() }

// HostPort is a host and a TCP port. The zero value means no address.
type HostPort struct {
	Host string // DNS name in lower case, or IP address without brackets
	Port uint16 // 1 to 65535
}

const wantHostPort = "host:port, such as logs.example.com:6514 or [2001:db8::1]:6514"

// UnmarshalText parses host:port.
func (h *HostPort) UnmarshalText(text []byte) error {
	s := string(text)
	host, digits, err := net.SplitHostPort(s)
	if err != nil {
		w := &wrong{reason: fmt.Sprintf("%s is not a host and a port", quote(s)), expected: wantHostPort}
		if hostOrAddr(strings.ToLower(s)) == nil {
			// RFC 5425, 4.1
			w.reason, w.nearest = "the port is missing", net.JoinHostPort(strings.ToLower(s), "6514")
		}
		return w
	}
	host = strings.ToLower(host)
	if err := hostOrAddr(host); err != nil {
		return &wrong{reason: "the host " + err.Error(), expected: wantHostPort}
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 {
		return &wrong{reason: fmt.Sprintf("the port %s is not in 1 to 65535", quote(digits)), expected: wantHostPort}
	}
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.String()
	}
	*h = HostPort{host, uint16(port)}
	return nil
}

// String returns host:port in the format of net.Dial.
func (h HostPort) String() string {
	if h == (HostPort{}) {
		return ""
	}
	return net.JoinHostPort(h.Host, strconv.Itoa(int(h.Port)))
}

// MarshalText returns String.
func (h HostPort) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// logging validates the syntax of the fields. siteCA are the CAs for all servers outside the
// cluster (Egress.CA).
func (v machineValidator) logging(path string, l *Logging, siteCA Bundle) {
	if len(l.Receivers) > maxReceivers {
		v.on(path+".receivers", wrong{reason: fmt.Sprintf("%d receivers", len(l.Receivers)), expected: fmt.Sprintf("at most %d", maxReceivers)})
	}
	if l.Pods != nil {
		v.podLogging(path+".pods", l.Pods)
		if !slices.ContainsFunc(l.Receivers, Receiver.GetsPods) && !v.broken[path+".receivers"] {
			v.on(path+".pods", wrong{reason: "no receiver gets the logs of pods", expected: fmt.Sprintf("a receiver with the source %s", SourcePods)})
		}
	}
	names := map[string]int{}
	for i := range l.Receivers {
		at, r := fmt.Sprintf("%s.receivers[%d]", path, i), &l.Receivers[i]
		if err := dnsLabel(r.Name); err != nil && r.Name != "" {
			v.on(at+".name", wrong{reason: fmt.Sprintf("%s %v", quote(r.Name), err), expected: `lower-case letters, digits and "-", at most 63 characters`})
		}
		v.unique(at+".name", "receivers", r.Name, i, names)
		v.bundle(at+".ca", r.CA)
		if r.CA.IsZero() && siteCA.IsZero() && !v.broken[at+".ca"] {
			v.on(at, wrong{reason: "has no ca, and public CAs are not trusted here", expected: "the CA of the receiver's certificate, or Machine.spec.egress.ca"})
		}
		v.client(at+".client", r.Client)
		if r.ServerName != "" {
			if err := hostOrAddr(r.ServerName); err != nil {
				v.on(at+".serverName", wrong{reason: fmt.Sprintf("%s %v", quote(r.ServerName), err), expected: "a DNS name in lower case or an IP address"})
			}
		}
		if len(r.Sources) == 0 {
			v.on(at+".sources", wrong{reason: "is empty", expected: "at least one source", hint: "without the field, all sources are sent"})
		}
		for j, source := range r.Sources {
			if slices.Contains(r.Sources[:j], source) && source != "" {
				v.on(fmt.Sprintf("%s.sources[%d]", at, j), wrong{reason: fmt.Sprintf("%s is given twice", quote(string(source)))})
			}
			if source == SourcePods && l.Pods == nil && !v.broken[path+".pods"] {
				v.on(fmt.Sprintf("%s.sources[%d]", at, j), wrong{reason: fmt.Sprintf("%s needs the selection of pods", quote(string(source))), expected: "Machine.spec.logging.pods; {} selects all pods outside of kube-system"})
			}
			if source == SourcePods && r.Format != FormatOTLP && !v.broken[at+".format"] {
				v.on(fmt.Sprintf("%s.sources[%d]", at, j), wrong{
					reason: fmt.Sprintf("%s needs a receiver of OTLP, because the format %s has no place for the names of a pod", quote(string(source)), r.Format), expected: "format: otlp",
				})
			}
		}
	}
}

// podLogging validates the selection of pods.
func (v machineValidator) podLogging(path string, p *PodLogging) {
	v.logNamespaces(path+".namespaces", p.Namespaces)
	v.logNamespaces(path+".exclude", p.Exclude)
	for i, name := range p.Namespaces {
		if slices.Contains(p.Exclude, name) {
			v.on(fmt.Sprintf("%s.namespaces[%d]", path, i), wrong{
				reason: fmt.Sprintf("%s is in exclude, too", quote(name)), expected: "a namespace that exclude does not contain", hint: "set exclude, too: by default, it contains kube-system",
			})
		}
	}
}

func (v machineValidator) logNamespaces(path string, list []string) {
	if len(list) > maxLogNamespaces {
		v.on(path, wrong{reason: fmt.Sprintf("%d namespaces", len(list)), expected: fmt.Sprintf("at most %d", maxLogNamespaces)})
	}
	for i, name := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if err := dnsLabel(name); err != nil {
			v.on(at, wrong{reason: fmt.Sprintf("%s %v", quote(name), err), expected: "the name of a namespace"})
		} else if slices.Contains(list[:i], name) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", quote(name))})
		}
	}
}
