package config

import (
	"net/netip"
	"time"
)

// Link is a network interface: hardware, identified by name or hardware address, or a link that the
// system creates, with a name and one definition.
type Link struct {
	Name      string         `yaml:"name,omitempty"`
	MAC       MAC            `yaml:"mac,omitempty"`
	MTU       int            `yaml:"mtu,omitempty" jsonschema:"minimum=68,maximum=65535"`
	DHCP4     bool           `yaml:"dhcp4"`
	Addresses []netip.Prefix `yaml:"addresses,omitempty"`
	Routes    []Route        `yaml:"routes,omitempty"`
	Bond      *Bond          `yaml:"bond,omitempty"`
	VLAN      *VLAN          `yaml:"vlan,omitempty"`
}

// Route is a route through a link.
type Route struct {
	To     netip.Prefix `yaml:"to" jsonschema:"required"`
	Via    netip.Addr   `yaml:"via,omitempty"`
	Metric uint32       `yaml:"metric,omitempty"`
}

// Bond combines links. Members and Primary are the names of links, patterns for the names of
// hardware, or patterns for hardware addresses.
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

// MIIMonitor tests the carriers of the members.
type MIIMonitor struct {
	Interval  Duration `yaml:"interval" limits:"10ms to 10s"`
	UpDelay   Duration `yaml:"upDelay" limits:"0s to 5m"`
	DownDelay Duration `yaml:"downDelay" limits:"0s to 5m"`
}

// ARPMonitor sends ARP requests through the members.
type ARPMonitor struct {
	Interval Duration     `yaml:"interval" limits:"100ms to 1m"`
	Targets  []netip.Addr `yaml:"targets" jsonschema:"required"`
}

// MIIInterval is the default interval of carrier tests.
const MIIInterval = Duration(100 * time.Millisecond)

func (b *Bond) defaults() { b.HashPolicy = HashLayer2 }

func (m *MIIMonitor) defaults() { m.Interval = MIIInterval }

func (a *ARPMonitor) defaults() { a.Interval = Duration(time.Second) }

// BondMode is how a bond uses its members.
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

// LACPRate is how often the partner sends LACPDUs.
type LACPRate string

// The rates.
const (
	LACPSlow LACPRate = "slow"
	LACPFast LACPRate = "fast"
)

// Names returns the rates.
func (LACPRate) Names() []string { return []string{string(LACPSlow), string(LACPFast)} }

// HashPolicy assigns packets to members.
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

// VLAN is the part of the parent's frames with a tag. Parent is a link, in the form of a member of a
// bond.
type VLAN struct {
	Parent string `yaml:"parent" jsonschema:"required"`
	ID     int    `yaml:"id" jsonschema:"required" limits:"1 to 4094"`
}

// Definition returns the name of the field that defines the link; "" for hardware.
func (l *Link) Definition() string {
	switch {
	case l.Bond != nil:
		return "bond"
	case l.VLAN != nil:
		return "vlan"
	}
	return ""
}

// Members returns the members of the link, and the name of the field with them.
func (l *Link) Members() (members []string, field string) {
	if l.Bond != nil {
		return l.Bond.Members, "bond.members"
	}
	return nil, ""
}

// Parts returns the links below the link: its parent and its members.
func (l *Link) Parts() []string {
	members, _ := l.Members()
	if l.VLAN != nil {
		members = append([]string{l.VLAN.Parent}, members...)
	}
	return members
}
