package config

import "net/netip"

// Network is the document of the machine's own network.
type Network struct {
	// Metadata can name the document; the name is not used.
	Metadata NetworkMetadata `yaml:"metadata"`
	// Spec describes the network.
	Spec NetworkSpec `yaml:"spec" jsonschema:"required"`
}

// NetworkMetadata names a document with an optional name.
type NetworkMetadata struct {
	// Name of the document, for users.
	Name string `yaml:"name"`
}

// NetworkSpec describes the machine's own network.
type NetworkSpec struct {
	// Links are the network interfaces. Without links, every physical link is configured by DHCPv4
	// and accepts router advertisements. With at least one, other links stay down, and listed links
	// do not accept router advertisements.
	Links []Link `yaml:"links,omitempty"`
	// DNS configures the machine's resolvers.
	DNS DNS `yaml:"dns"`
	// NTP configures the machine's time servers.
	NTP NTP `yaml:"ntp"`
	// Firewall makes the kernel drop unnecessary incoming connections. Without it, all listening
	// ports of the machine are reachable; an empty firewall is not the same.
	Firewall *Firewall `yaml:"firewall,omitempty"`
}

// Firewall makes the kernel drop unnecessary incoming connections. It admits connections from all
// hosts to the management API (TCP port 50000) and, on a control-plane machine, to the Kubernetes
// API (6443); from the cluster's control-plane machines to the other ports that they need (10250 is
// open to all hosts on a worker with empty Cluster.spec.controlPlanes, and to all IPv4 hosts if
// these are IPv6 addresses and pods have IPv4, too); packets between pods of different machines;
// pods to their own machine; DHCP, ICMP, and replies to connections of the machine. It does not
// filter traffic to pods, including traffic through node ports, hostPorts and load-balancer
// addresses: network policies and loadBalancerSourceRanges of Services do.
type Firewall struct {
	// Allow admits more sources, once for each port. For a port that is open to all hosts by
	// default, only these networks and the control-plane machines remain admitted.
	Allow []FirewallRule `yaml:"allow,omitempty"`
}

// FirewallRule admits sources to a port.
type FirewallRule struct {
	// Port is the port on the machine, 1 to 65535.
	Port int `yaml:"port" jsonschema:"required"`
	// Protocol of the port.
	Protocol Transport `yaml:"protocol"`
	// From are the admitted networks; 0.0.0.0/0 and ::/0 admit all hosts.
	From []netip.Prefix `yaml:"from" jsonschema:"required"`
}

// Transport is a protocol with ports.
type Transport string

// The protocols.
const (
	TransportTCP Transport = "tcp"
	TransportUDP Transport = "udp"
)

// Names returns the protocols.
func (Transport) Names() []string { return []string{string(TransportTCP), string(TransportUDP)} }

func (r *FirewallRule) defaults() { r.Protocol = TransportTCP }

// Link is a network interface, identified by name or hardware address.
type Link struct {
	// Name is the kernel's name of a network card, at most 15 bytes (IFNAMSIZ in linux/if.h). Set
	// name or mac. The system does not create bonds, VLANs and bridges, and rejects their usual
	// names.
	Name string `yaml:"name,omitempty"`
	// MAC is the permanent hardware address of the interface, six bytes. Set name or mac.
	MAC MAC `yaml:"mac,omitempty"`
	// MTU in bytes, 68 (RFC 791) to 65535; at least 1280 if the link has an IPv6 address (RFC
	// 8200). The default is the MTU of the driver or DHCP.
	MTU int `yaml:"mtu,omitempty" jsonschema:"minimum=68,maximum=65535"`
	// DHCP4 requests an IPv4 address, routes, resolvers and time servers by DHCP (RFC 2131).
	DHCP4 bool `yaml:"dhcp4"`
	// Addresses are static addresses with their prefix length.
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
	// Routes through this link.
	Routes []Route `yaml:"routes,omitempty"`
}

// Route is a route through a link.
type Route struct {
	// To is the destination; 0.0.0.0/0 or ::/0 is the default route.
	To netip.Prefix `yaml:"to" jsonschema:"required"`
	// Via is the gateway. It must be in a network of the link, or reachable by a route of the link
	// without a gateway ({to: 172.31.1.1/32}). Without it, the destination is on the link itself.
	Via netip.Addr `yaml:"via,omitempty"`
	// Metric orders routes to the same destination; the lowest has priority. The default is 512
	// plus the index of the link, which precedes DHCP (1024).
	Metric uint32 `yaml:"metric,omitempty"`
}

// DNS configures the machine's resolvers.
type DNS struct {
	// Servers are resolvers in order, at most three (MAXNS in resolv.h). If not empty, resolvers
	// from DHCP are not used.
	Servers []netip.Addr `yaml:"servers,omitempty"`
	// Search are the search domains for names without dots, at most six. If not empty, domains from
	// DHCP are not used.
	Search []string `yaml:"search,omitempty"`
}

// NTP configures the machine's time servers.
type NTP struct {
	// Servers are host names or addresses of NTP servers. If not empty, servers from DHCP are not
	// used. Without servers, the clock is not synchronized.
	Servers []string `yaml:"servers,omitempty"`
}

func (n *Network) defaults() { n.Metadata.Name = "default" }
