package config

import "net/netip"

// Network is the document of the machine's own network.
type Network struct {
	Metadata NetworkMetadata `yaml:"metadata"`
	Spec     NetworkSpec     `yaml:"spec" jsonschema:"required"`
}

// NetworkMetadata is the metadata of a document with an optional name.
type NetworkMetadata struct {
	Name string `yaml:"name"`
}

// NetworkSpec describes the machine's own network.
type NetworkSpec struct {
	Links    []Link        `yaml:"links,omitempty"`
	Routes   []TableRoute  `yaml:"routes,omitempty"`
	Rules    []RoutingRule `yaml:"rules,omitempty"`
	DNS      DNS           `yaml:"dns"`
	NTP      NTP           `yaml:"ntp"`
	LLDP     LLDP          `yaml:"lldp"`
	BGP      *BGP          `yaml:"bgp,omitempty"`
	Firewall *Firewall     `yaml:"firewall,omitempty"`
}

// Firewall makes the kernel drop unnecessary incoming connections. It admits all hosts to the
// management API (TCP port 50000) and, on a control-plane machine, to the Kubernetes API (6443). It
// admits the cluster's control-plane machines to the other ports that they need. Port 10250 has two
// exceptions. It is open to all hosts on a worker with empty Cluster.spec.controlPlanes. It is open
// to all IPv4 hosts if Cluster.spec.controlPlanes contains only IPv6 addresses and pods also have
// IPv4. The firewall also admits packets between pods of different machines, packets of pods to
// their own machine, DHCP, ICMP, and replies to connections of the machine. The firewall does not
// filter traffic to pods, even through node ports, hostPorts and load-balancer addresses. Network
// policies and the loadBalancerSourceRanges of Services can filter this traffic.
type Firewall struct {
	Allow []FirewallRule `yaml:"allow,omitempty"`
}

// FirewallRule admits connections from some networks to a port.
type FirewallRule struct {
	Port     int            `yaml:"port" jsonschema:"required"`
	Protocol Transport      `yaml:"protocol"`
	From     []netip.Prefix `yaml:"from" jsonschema:"required"`
}

// Transport is a transport protocol.
type Transport string

// The protocols.
const (
	TransportTCP Transport = "tcp"
	TransportUDP Transport = "udp"
)

// Names returns the protocols.
func (Transport) Names() []string { return []string{string(TransportTCP), string(TransportUDP)} }

func (r *FirewallRule) defaults() { r.Protocol = TransportTCP }

// DNS configures the machine's resolvers.
type DNS struct {
	Servers []netip.Addr `yaml:"servers,omitempty"`
	TLS     *DNSTLS      `yaml:"tls,omitempty"`
	Search  []string     `yaml:"search,omitempty"`
}

// DNSTLS makes the machine and the cluster DNS query the resolvers only by DNS over TLS (RFC 7858).
type DNSTLS struct {
	// ServerName is the name in the certificates of the resolvers; if it is empty, the certificates
	// must contain the addresses of the resolvers.
	ServerName string `yaml:"serverName,omitempty"`
	CA         Bundle `yaml:"ca,omitempty"`
}

// NTP configures the machine's time servers.
type NTP struct {
	Servers []string `yaml:"servers,omitempty"`
	NTS     *NTS     `yaml:"nts,omitempty"`
	// Clocks are the names of PTP clocks of the kernel (/sys/class/ptp/*/clock_name) that are used
	// as time sources.
	Clocks []string `yaml:"clocks,omitempty"`
}

// NTS makes the machine accept only authenticated answers of the time servers (RFC 8915).
type NTS struct {
	CA Bundle `yaml:"ca,omitempty"`
}

func (n *Network) defaults() { n.Metadata.Name = "default" }
