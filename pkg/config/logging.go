package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Logging says where the machine's logs go besides the machine itself.
type Logging struct {
	// Receivers get the machine's logs over TLS, at most 4.
	Receivers []Receiver `yaml:"receivers,omitempty"`
}

// Receiver is a computer that takes logs. Nothing is lost while it is away, as long as the machine
// still has it.
type Receiver struct {
	// Name of the receiver in events and in the machine's state: a DNS label, unique. Under it the
	// machine remembers what the receiver has.
	Name string `yaml:"name" jsonschema:"required"`
	// Address of the receiver: host:port. A name is resolved by the machine's own resolvers.
	Address HostPort `yaml:"address" jsonschema:"required"`
	// Format of what is sent: json is one JSON object a line; syslog is RFC 5424, with octet
	// counting as in RFC 5425.
	Format LogFormat `yaml:"format"`
	// CA signs the receiver's certificate, in PEM. Nothing else vouches for it.
	CA Bundle `yaml:"ca" jsonschema:"required"`
	// ServerName is the name or the address that the receiver's certificate must hold; without it,
	// that in its address.
	ServerName string `yaml:"serverName,omitempty"`
	// Client is the certificate and key that the machine shows to the receiver; without it, the
	// machine's own by the cluster's machine CA.
	Client *CertKey `yaml:"client,omitempty"`
	// Sources are what is sent: audit is the record of calls, events those of the machine, services
	// what the system's services write, kernel the kernel's log.
	Sources []LogSource `yaml:"sources"`
}

// maxReceivers bounds what the first process has to hold for connections.
const maxReceivers = 4

// LogFormat is a form of lines.
type LogFormat string

// The formats.
const (
	FormatJSON   LogFormat = "json"
	FormatSyslog LogFormat = "syslog"
)

// Names lists the formats.
func (LogFormat) Names() []string { return []string{string(FormatJSON), string(FormatSyslog)} }

// LogSource is something on the machine that writes lines.
type LogSource string

// The sources.
const (
	SourceAudit    LogSource = "audit"
	SourceEvents   LogSource = "events"
	SourceServices LogSource = "services"
	SourceKernel   LogSource = "kernel"
)

func logSources() []LogSource {
	return []LogSource{SourceAudit, SourceEvents, SourceServices, SourceKernel}
}

// Names lists the sources.
func (LogSource) Names() []string {
	var names []string
	for _, s := range logSources() {
		names = append(names, string(s))
	}
	return names
}

func (r *Receiver) defaults() { r.Format, r.Sources = FormatJSON, logSources() }

// HostPort is a host and a TCP port. The zero value is none.
type HostPort struct {
	Host string // DNS name in lower case, or IP address without brackets
	Port uint16 // 1 to 65535
}

const wantHostPort = "host:port, such as logs.example.com:6514 or [2001:db8::1]:6514"

// UnmarshalText reads host:port.
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

// String is host:port, as net.Dial takes it.
func (h HostPort) String() string {
	if h == (HostPort{}) {
		return ""
	}
	return net.JoinHostPort(h.Host, strconv.Itoa(int(h.Port)))
}

// MarshalText is String.
func (h HostPort) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// logging checks what has a form.
func (p *parser) logging(path string, l *Logging) {
	if len(l.Receivers) > maxReceivers {
		p.on(path+".receivers", wrong{reason: fmt.Sprintf("%d receivers", len(l.Receivers)), expected: fmt.Sprintf("at most %d", maxReceivers)})
	}
	names := map[string]int{}
	for i := range l.Receivers {
		at, r := fmt.Sprintf("%s.receivers[%d]", path, i), &l.Receivers[i]
		if err := dnsLabel(r.Name); err != nil && r.Name != "" {
			p.on(at+".name", wrong{reason: fmt.Sprintf("%s %v", quote(r.Name), err), expected: `lower-case letters, digits and "-", at most 63 characters`})
		}
		p.unique(at+".name", "receivers", r.Name, i, names)
		p.bundle(at+".ca", r.CA)
		p.client(at+".client", r.Client)
		if r.ServerName != "" {
			if err := hostOrAddr(r.ServerName); err != nil {
				p.on(at+".serverName", wrong{reason: fmt.Sprintf("%s %v", quote(r.ServerName), err), expected: "a DNS name in lower case or an IP address"})
			}
		}
		if len(r.Sources) == 0 {
			p.on(at+".sources", wrong{reason: "is empty", expected: "at least one source", hint: "without the field all are sent"})
		}
		for j, source := range r.Sources {
			if slices.Contains(r.Sources[:j], source) && source != "" {
				p.on(fmt.Sprintf("%s.sources[%d]", at, j), wrong{reason: fmt.Sprintf("%s is given twice", quote(string(source)))})
			}
		}
	}
}
