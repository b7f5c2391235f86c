package config

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Link is a network interface. It is either hardware, which Name, MAC or Match selects, or a link
// that the system creates. A created link has a name and exactly one definition, such as Bond.
type Link struct {
	Name      string         `yaml:"name,omitempty"`
	MAC       MAC            `yaml:"mac,omitempty"`
	Match     *LinkMatch     `yaml:"match,omitempty"`
	MTU       int            `yaml:"mtu,omitempty" jsonschema:"minimum=68,maximum=65535"`
	DHCP4     bool           `yaml:"dhcp4"`
	IPv6      *LinkIPv6      `yaml:"ipv6,omitempty"`
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
	Routes    []Route        `yaml:"routes,omitempty"`
	Bond      *Bond          `yaml:"bond,omitempty"`
	VLAN      *VLAN          `yaml:"vlan,omitempty"`
	Bridge    *Bridge        `yaml:"bridge,omitempty"`
	VRF       *VRF           `yaml:"vrf,omitempty"`
	Dummy     bool           `yaml:"dummy"`
	WireGuard *WireGuard     `yaml:"wireguard,omitempty"`
	Hardware  *Hardware      `yaml:"hardware,omitempty"`
}

// LinkMatch selects hardware by patterns. All patterns that are set must match.
type LinkMatch struct {
	Name   string `yaml:"name,omitempty"`
	MAC    string `yaml:"mac,omitempty"`
	Driver string `yaml:"driver,omitempty"`
	Path   string `yaml:"path,omitempty"`
}

// String identifies the match in messages.
func (m LinkMatch) String() string {
	parts := []string{"match"}
	for _, f := range m.fields() {
		if f.pattern != "" {
			parts = append(parts, f.name+" "+f.pattern)
		}
	}
	return strings.Join(parts, " ")
}

func (m LinkMatch) fields() []struct{ name, pattern string } {
	return []struct{ name, pattern string }{{"name", m.Name}, {"mac", m.MAC}, {"driver", m.Driver}, {"path", m.Path}}
}

// Hardware are settings of a network card that ethtool can change.
type Hardware struct {
	Rings     Rings    `yaml:"rings"`
	Offloads  Offloads `yaml:"offloads"`
	Pause     Pause    `yaml:"pause,omitempty"`
	WakeOnLAN Wake     `yaml:"wakeOnLAN,omitempty"`

	VirtualFunctions int `yaml:"virtualFunctions,omitempty" limits:"1 to 256, or 0 for none"`
}

// LinkIPv6 configures how a link gets IPv6 addresses and routes automatically.
type LinkIPv6 struct {
	AcceptRA bool        `yaml:"acceptRA"`
	DHCP     DHCP6       `yaml:"dhcp,omitempty"`
	Prefix   *Delegation `yaml:"prefix,omitempty"`
}

// DHCP6 is the mode of DHCPv6 on a link.
type DHCP6 string

// The modes.
const (
	DHCP6Auto      DHCP6 = "auto"
	DHCP6Stateless DHCP6 = "stateless"
	DHCP6Stateful  DHCP6 = "stateful"
	DHCP6Off       DHCP6 = "off"
)

// Names returns the modes.
func (DHCP6) Names() []string {
	return []string{string(DHCP6Auto), string(DHCP6Stateless), string(DHCP6Stateful), string(DHCP6Off)}
}

// Use returns the mode of DHCPv6. The default is DHCP6Auto if the link accepts router
// advertisements, whose flags this mode follows. Otherwise the default is DHCP6Off.
func (l *LinkIPv6) Use() DHCP6 {
	switch {
	case l.DHCP != "":
		return l.DHCP
	case l.AcceptRA:
		return DHCP6Auto
	}
	return DHCP6Off
}

// Delegation is a request for a delegated prefix, with the links that use it.
type Delegation struct {
	Length  int      `yaml:"length" jsonschema:"required" limits:"48 to 64"`
	Subnets []Subnet `yaml:"subnets,omitempty"`
}

// Subnet assigns a /64 of a delegated prefix to another link. Link is the name of the other link.
type Subnet struct {
	Link   string `yaml:"link" jsonschema:"required"`
	Number int    `yaml:"number" limits:"0 to 65535"`
}

// Rings are the numbers of entries in the receive and transmit rings of a network card.
type Rings struct {
	RX int `yaml:"rx,omitempty" limits:"1 to 65536, or 0 for the value of the driver"`
	TX int `yaml:"tx,omitempty" limits:"1 to 65536, or 0 for the value of the driver"`
}

// Offloads enables and disables features of a network card.
type Offloads struct {
	Enable  []Offload `yaml:"enable,omitempty"`
	Disable []Offload `yaml:"disable,omitempty"`
}

// Offload is the kernel's name of a feature (net/ethtool/common.c).
type Offload string

// Names returns the features.
func (Offload) Names() []string {
	return []string{
		"rx-checksum", "rx-gro", "rx-gro-hw", "rx-gro-list", "rx-hashing", "rx-lro", "rx-ntuple-filter", "rx-udp-gro-forwarding",
		"rx-vlan-filter", "rx-vlan-hw-parse", "tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6", "tx-checksum-sctp",
		"tx-generic-segmentation", "tx-gre-segmentation", "tx-nocache-copy", "tx-scatter-gather", "tx-tcp-ecn-segmentation",
		"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-udp_tnl-segmentation", "tx-vlan-hw-insert",
	}
}

// Pause selects in which directions a network card uses pause frames (IEEE 802.3).
type Pause string

// Names returns the directions.
func (Pause) Names() []string { return []string{"off", "rx", "tx", "both", "auto"} }

// Wake is the event at the network card that switches the machine on.
type Wake string

// Names returns the events.
func (Wake) Names() []string {
	return []string{"off", "magic", "phy", "unicast", "multicast", "broadcast", "arp"}
}

// Route is a route through a link.
type Route struct {
	To     netip.Prefix `yaml:"to" jsonschema:"required"`
	Via    netip.Addr   `yaml:"via,omitempty"`
	Metric uint32       `yaml:"metric,omitempty"`
	Source netip.Addr   `yaml:"source,omitempty"`
	Table  uint32       `yaml:"table,omitempty"`
}

// TableRoute is a route without a link, or with several next hops.
type TableRoute struct {
	To       netip.Prefix `yaml:"to" jsonschema:"required"`
	Type     RouteType    `yaml:"type,omitempty"`
	NextHops []NextHop    `yaml:"nextHops,omitempty"`
	Metric   uint32       `yaml:"metric,omitempty"`
	Table    uint32       `yaml:"table,omitempty"`
}

// NextHop is one of several gateways of a route.
type NextHop struct {
	Link   string     `yaml:"link" jsonschema:"required"`
	Via    netip.Addr `yaml:"via" jsonschema:"required"`
	Weight int        `yaml:"weight" limits:"1 to 256"`
}

func (h *NextHop) defaults() { h.Weight = 1 }

// RouteType selects how the kernel rejects the packets for a route without a next hop.
type RouteType string

// The types.
const (
	RouteBlackhole   RouteType = "blackhole"
	RouteUnreachable RouteType = "unreachable"
	RouteProhibit    RouteType = "prohibit"
)

// Names returns the types.
func (RouteType) Names() []string {
	return []string{string(RouteBlackhole), string(RouteUnreachable), string(RouteProhibit)}
}

// RoutingRule selects the routing table for matching packets.
type RoutingRule struct {
	Priority int          `yaml:"priority" jsonschema:"required" limits:"1 to 32765"`
	From     netip.Prefix `yaml:"from,omitempty"`
	To       netip.Prefix `yaml:"to,omitempty"`
	Incoming string       `yaml:"incoming,omitempty"`
	Mark     uint32       `yaml:"mark,omitempty"`
	Table    uint32       `yaml:"table" jsonschema:"required"`
}

// Bond combines links. Each member, and Primary, is the name of a link, a pattern for names of
// hardware, or a pattern for hardware addresses.
type Bond struct {
	Members    []string    `yaml:"members" jsonschema:"required"`
	Mode       BondMode    `yaml:"mode" jsonschema:"required"`
	Primary    string      `yaml:"primary,omitempty"`
	LACPRate   LACPRate    `yaml:"lacpRate,omitempty"`
	HashPolicy HashPolicy  `yaml:"hashPolicy"`
	MinLinks   int         `yaml:"minLinks" limits:"0 to 16"`
	MII        *MIIMonitor `yaml:"mii,omitempty"`
	ARP        *ARPMonitor `yaml:"arp,omitempty"`
}

// MIIMonitor tests whether the members of a bond have a carrier.
type MIIMonitor struct {
	Interval  Duration `yaml:"interval" limits:"10ms to 10s"`
	UpDelay   Duration `yaml:"upDelay" limits:"0s to 5m"`
	DownDelay Duration `yaml:"downDelay" limits:"0s to 5m"`
}

// ARPMonitor tests the members of a bond by ARP requests to Targets.
type ARPMonitor struct {
	Interval Duration     `yaml:"interval" limits:"100ms to 1m"`
	Targets  []netip.Addr `yaml:"targets" jsonschema:"required"`
}

// MIIInterval is the default interval of carrier tests.
const MIIInterval = Duration(100 * time.Millisecond)

func (b *Bond) defaults() { b.HashPolicy = HashLayer2 }

func (m *MIIMonitor) defaults() { m.Interval = MIIInterval }

func (a *ARPMonitor) defaults() { a.Interval = Duration(time.Second) }

// BondMode selects how a bond distributes packets over its members.
type BondMode string

// The modes.
const (
	BondLACP         BondMode = "802.3ad"
	BondActiveBackup BondMode = "active-backup"
	BondXOR          BondMode = "balance-xor"
)

// Names returns the modes.
func (BondMode) Names() []string {
	return []string{string(BondLACP), string(BondActiveBackup), string(BondXOR)}
}

// LACPRate is how often the LACP partner, such as a switch, is to send LACPDUs.
type LACPRate string

// The rates.
const (
	LACPSlow LACPRate = "slow"
	LACPFast LACPRate = "fast"
)

// Names returns the rates.
func (LACPRate) Names() []string { return []string{string(LACPSlow), string(LACPFast)} }

// HashPolicy selects the headers by which a bond assigns packets to members.
type HashPolicy string

// The policies.
const (
	HashLayer2  HashPolicy = "layer2"
	HashLayer23 HashPolicy = "layer2+3"
	HashLayer34 HashPolicy = "layer3+4"
)

// Names returns the policies.
func (HashPolicy) Names() []string {
	return []string{string(HashLayer2), string(HashLayer23), string(HashLayer34)}
}

// VLAN is a link for those frames of another link that have the VLAN tag ID. Parent identifies the
// other link, in the format of an item of Bond.Members.
type VLAN struct {
	Parent string `yaml:"parent" jsonschema:"required"`
	ID     int    `yaml:"id" jsonschema:"required" limits:"1 to 4094"`
}

// Bridge forwards frames between its ports.
type Bridge struct {
	Ports         []BridgePort `yaml:"ports,omitempty"`
	STP           bool         `yaml:"stp"`
	VLANFiltering bool         `yaml:"vlanFiltering"`
	Untagged      int          `yaml:"untagged,omitempty" limits:"1 to 4094, or 0 for none"`
}

// BridgePort is a link that belongs to a bridge. The field Link has the format of an item of
// Bond.Members.
type BridgePort struct {
	Link     string `yaml:"link" jsonschema:"required"`
	VLANs    []int  `yaml:"vlans,omitempty"`
	Untagged int    `yaml:"untagged,omitempty" limits:"1 to 4094, or 0 for none"`
}

// VRF gives its members a separate routing table. Members has the format of Bond.Members.
type VRF struct {
	Table   uint32   `yaml:"table" jsonschema:"required"`
	Members []string `yaml:"members,omitempty"`
}

// WireGuard is an encrypted tunnel of the machine.
type WireGuard struct {
	PrivateKey EncryptionKey   `yaml:"privateKey" jsonschema:"required"`
	ListenPort int             `yaml:"listenPort" jsonschema:"required" limits:"1 to 65535"`
	Peers      []WireGuardPeer `yaml:"peers,omitempty"`
}

// WireGuardPeer is a machine at the other end of a tunnel.
type WireGuardPeer struct {
	PublicKey    PublicKey      `yaml:"publicKey" jsonschema:"required"`
	PresharedKey EncryptionKey  `yaml:"presharedKey,omitempty"`
	Endpoint     AddrPort       `yaml:"endpoint,omitempty"`
	AllowedIPs   []netip.Prefix `yaml:"allowedIPs" jsonschema:"required"`
	KeepAlive    Duration       `yaml:"keepAlive" limits:"whole seconds, 1s to 1h, or 0s for none"`
}

// PublicKey is the public key of WireGuard, 32 bytes in base64; "" for none.
type PublicKey string

// UnmarshalText parses 32 bytes in standard base64.
func (k *PublicKey) UnmarshalText(text []byte) error {
	key, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(key) != 32 {
		return &wrong{reason: "not a public key", expected: "32 bytes in base64 (44 characters), as wg pubkey prints them"}
	}
	*k = PublicKey(text)
	return nil
}

// MarshalText returns the key.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k), nil }

// Bytes returns the 32 bytes of a key; zeros for the zero value.
func (k PublicKey) Bytes() (out [32]byte) {
	if key, err := base64.StdEncoding.DecodeString(string(k)); err == nil {
		copy(out[:], key)
	}
	return out
}

// AddrPort is an IP address with a port.
type AddrPort struct{ netip.AddrPort }

// UnmarshalText parses an address with a port.
func (a *AddrPort) UnmarshalText(text []byte) error {
	parsed, err := netip.ParseAddrPort(string(text))
	if err != nil || parsed.Port() == 0 || parsed.Addr().Zone() != "" || parsed.Addr().Is4In6() {
		return &wrong{reason: fmt.Sprintf("%s is not an address with a port", quote(string(text))), expected: "an IP address and a port, such as 192.0.2.1:51820 or [2001:db8::1]:51820"}
	}
	a.AddrPort = parsed
	return nil
}

// MarshalText returns the address with its port; "" for none.
func (a AddrPort) MarshalText() ([]byte, error) {
	if !a.IsValid() {
		return nil, nil
	}
	return a.AddrPort.MarshalText()
}

// IsZero reports whether there is no address.
func (a AddrPort) IsZero() bool { return !a.IsValid() }

// Definition returns the name of the field that defines the link; "" for hardware.
func (l *Link) Definition() string {
	if all := l.definitions(); len(all) > 0 {
		return all[0]
	}
	return ""
}

// definitions returns the names of the fields that define the link.
func (l *Link) definitions() (fields []string) {
	for _, d := range []struct {
		field string
		set   bool
	}{
		{"bond", l.Bond != nil}, {"vlan", l.VLAN != nil}, {"bridge", l.Bridge != nil},
		{"vrf", l.VRF != nil}, {"dummy", l.Dummy}, {"wireguard", l.WireGuard != nil},
	} {
		if d.set {
			fields = append(fields, d.field)
		}
	}
	return fields
}

// Members returns the members of the link, and a format string for the path of a member in the
// configuration, with %d for its index.
func (l *Link) Members() (members []string, field string) {
	switch {
	case l.Bond != nil:
		return l.Bond.Members, "bond.members[%d]"
	case l.VRF != nil:
		return l.VRF.Members, "vrf.members[%d]"
	case l.Bridge != nil:
		for _, p := range l.Bridge.Ports {
			members = append(members, p.Link)
		}
		return members, "bridge.ports[%d].link"
	}
	return nil, ""
}

// Parts returns the links that this link consists of: its parent and its members.
func (l *Link) Parts() []string {
	members, _ := l.Members()
	if l.VLAN != nil {
		members = append([]string{l.VLAN.Parent}, members...)
	}
	return members
}
