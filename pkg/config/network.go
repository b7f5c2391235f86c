package config

import "net/netip"

// Network is the document of the machine's own network.
type Network struct {
	// Metadata may name the document; the name is not used.
	Metadata NetworkMetadata `yaml:"metadata"`
	// Spec says what the network should be.
	Spec NetworkSpec `yaml:"spec" jsonschema:"required"`
}

// NetworkMetadata names a document that needs no name.
type NetworkMetadata struct {
	// Name of the document, for people.
	Name string `yaml:"name"`
}

// NetworkSpec says what the machine's own network should be.
type NetworkSpec struct {
	// Links are the network interfaces. Without any, every physical link is configured by DHCPv4,
	// and takes router advertisements; with at least one, links that are not named stay down, and
	// those that are take none.
	Links []Link `yaml:"links,omitempty"`
	// DNS says who resolves names for the machine.
	DNS DNS `yaml:"dns"`
	// NTP says who knows the time.
	NTP NTP `yaml:"ntp"`
	// Firewall has the kernel drop what nobody has to begin with the machine. Without it (not even
	// empty), whatever listens on the machine can be reached.
	Firewall *Firewall `yaml:"firewall,omitempty"`
}

// Firewall has the kernel drop what nobody has to begin with the machine. Let in are: everybody to
// the management API (TCP port 50000), and on a control-plane machine to the Kubernetes API (6443);
// the cluster's control-plane machines to the other ports that they need (10250 is open to
// everybody on a worker whose Cluster.spec.controlPlanes is empty, and to all of IPv4 where they
// are named by IPv6 and pods have IPv4, too); packets between pods of different machines; pods to
// the machine that they run on; DHCP, ICMP, and answers to what the machine began. What goes to
// pods, also through a node port, a hostPort or an address of a load balancer, is not for the
// firewall but for network policies and Services' loadBalancerSourceRanges.
type Firewall struct {
	// Allow says, for each port once, who may reach it too; a port that would be open to everybody
	// is open to these alone, and to the control-plane machines.
	Allow []FirewallRule `yaml:"allow,omitempty"`
}

// FirewallRule says who may reach a port.
type FirewallRule struct {
	// Port is the port on the machine, 1 to 65535.
	Port int `yaml:"port" jsonschema:"required"`
	// Protocol of the port.
	Protocol Transport `yaml:"protocol"`
	// From are the networks that may; 0.0.0.0/0 and ::/0 are everybody.
	From []netip.Prefix `yaml:"from" jsonschema:"required"`
}

// Transport is a protocol with ports.
type Transport string

// The protocols.
const (
	TransportTCP Transport = "tcp"
	TransportUDP Transport = "udp"
)

// Names lists the protocols.
func (Transport) Names() []string { return []string{string(TransportTCP), string(TransportUDP)} }

func (r *FirewallRule) defaults() { r.Protocol = TransportTCP }

// Link is one network interface, found by its name or by its hardware address.
type Link struct {
	// Name is the kernel's name of a network card, at most 15 bytes (IFNAMSIZ in linux/if.h). Give
	// this or mac. Bonds, VLANs and bridges are not made, and their usual names are refused.
	Name string `yaml:"name,omitempty"`
	// MAC is the interface's permanent hardware address, six bytes. Give this or name.
	MAC MAC `yaml:"mac,omitempty"`
	// MTU in bytes, 68 (RFC 791) to 65535; at least 1280 when the link has an IPv6 address (RFC
	// 8200). Without it, as the driver or DHCP has it.
	MTU int `yaml:"mtu,omitempty" jsonschema:"minimum=68,maximum=65535"`
	// DHCP4 asks for an IPv4 address, routes, resolvers and time servers by DHCP (RFC 2131).
	DHCP4 bool `yaml:"dhcp4"`
	// Addresses are static addresses with their prefix length.
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
	// Routes through this link.
	Routes []Route `yaml:"routes,omitempty"`
}

// Route is one route through a link.
type Route struct {
	// To is the destination; 0.0.0.0/0 or ::/0 is the default route.
	To netip.Prefix `yaml:"to" jsonschema:"required"`
	// Via is the gateway; it must be on one of the link's own networks, or behind a route of the
	// link without a gateway ({to: 172.31.1.1/32}). Without it the destination is on the link
	// itself.
	Via netip.Addr `yaml:"via,omitempty"`
	// Metric orders routes to the same destination, the smallest first. Without it, 512 plus the
	// link's place in the list, before those of DHCP (1024).
	Metric uint32 `yaml:"metric,omitempty"`
}

// DNS says who resolves names for the machine.
type DNS struct {
	// Servers are resolvers, asked in this order, at most three (MAXNS in resolv.h). Not empty:
	// those that DHCP names are not used.
	Servers []netip.Addr `yaml:"servers,omitempty"`
	// Search are domains that are tried after a name without dots, at most six. Not empty: those
	// that DHCP names are not used.
	Search []string `yaml:"search,omitempty"`
}

// NTP says who knows the time.
type NTP struct {
	// Servers are host names or addresses of NTP servers. Not empty: those that DHCP names are not
	// used. Nobody is asked when neither names one.
	Servers []string `yaml:"servers,omitempty"`
}

func (n *Network) defaults() { n.Metadata.Name = "default" }
