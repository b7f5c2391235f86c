package config

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Announcement is the protocol by which the machines announce an address to the network.
type Announcement string

// The announcements: ARP and NDP on the machines' link, by one machine at a time; or BGP, by all
// suitable machines.
const (
	AnnounceLink Announcement = "link"
	AnnounceBGP  Announcement = "bgp"
)

// Names returns the announcements.
func (Announcement) Names() []string { return []string{string(AnnounceLink), string(AnnounceBGP)} }

func (p *AddressPool) defaults() { p.Announce = AnnounceLink }

// BGP configures the BGP sessions of the machine with routers.
type BGP struct {
	ASN      int64      `yaml:"asn" jsonschema:"required" limits:"1 to 4294967294"`
	RouterID netip.Addr `yaml:"routerID,omitempty"`
	Peers    []BGPPeer  `yaml:"peers" jsonschema:"required"`
}

// BGPPeer is a router. The machine opens the connection to the router; it does not accept
// connections from it.
type BGPPeer struct {
	Address  netip.Addr `yaml:"address" jsonschema:"required"`
	ASN      int64      `yaml:"asn" jsonschema:"required" limits:"1 to 4294967294"`
	Port     int        `yaml:"port" limits:"1 to 65535"`
	HoldTime Duration   `yaml:"holdTime" limits:"whole seconds, 3s to 5m"`
	Password Secret     `yaml:"password,omitempty"`
	Source   netip.Addr `yaml:"source,omitempty"`
	OneHop   bool       `yaml:"oneHop"`
}

// PortBGP is the port of a router (RFC 4271).
const PortBGP = 179

func (p *BGPPeer) defaults() { p.Port, p.HoldTime = PortBGP, Duration(9*time.Second) }

const (
	// maxBGPPeers is the maximum number of routers.
	maxBGPPeers = 16
	// maxBGPPassword is TCP_MD5SIG_MAXKEYLEN of the kernel.
	maxBGPPassword = 80
)

// bgp validates the sessions with routers.
func (v networkValidator) bgp(at string, b *BGP) {
	if id := b.RouterID; id.IsValid() && (!id.Is4() || !id.IsGlobalUnicast()) {
		v.on(at+".routerID", wrong{reason: fmt.Sprintf("%s is not an IPv4 address of a machine", id), expected: "an IPv4 address that no other router has"})
	}
	if len(b.Peers) > maxBGPPeers {
		v.on(at+".peers", wrong{reason: fmt.Sprintf("%d peers", len(b.Peers)), expected: fmt.Sprintf("at most %d", maxBGPPeers)})
	}
	seen := map[string]int{}
	for i, p := range b.Peers {
		path := fmt.Sprintf("%s.peers[%d]", at, i)
		if !p.Address.IsValid() {
			continue
		}
		v.unique(path+".address", "peers", p.Address.String(), i, seen)
		if !isHost(p.Address) {
			v.on(path+".address", wrong{reason: fmt.Sprintf("%s cannot be a router", p.Address), expected: "the address of a router, not of a link only"})
		}
		if s := p.Source; s.IsValid() && (!isHost(s) || s.Is4() != p.Address.Is4()) {
			v.on(path+".source", wrong{reason: fmt.Sprintf("%s cannot reach %s", s, p.Address), expected: "an address of this machine, of the family of the peer"})
		}
		if t := p.Password.Reveal(); len(t) > maxBGPPassword || slices.ContainsFunc([]byte(t), func(c byte) bool { return c < ' ' || c > '~' }) {
			v.on(path+".password", wrong{reason: "the password cannot be used", expected: fmt.Sprintf("at most %d printable ASCII characters", maxBGPPassword)})
		}
	}
}

// announceAPI validates the announcement of the virtual addresses.
func (v clusterValidator) announceAPI(path string, c *ClusterSpec) {
	if c.Networks.AnnounceAPI != AnnounceBGP {
		return
	}
	switch {
	case len(c.VirtualAddresses) == 0:
		v.on(path, wrong{reason: "there is no virtual address", hint: "set Cluster.spec.virtualAddresses, or remove the field"})
	case v.cfg.Machine.Spec.Role == RoleControlPlane && v.cfg.Network.Spec.BGP == nil:
		v.on(path, wrong{reason: "this control-plane machine has no BGP peer, so no router would know it", hint: "set Network.spec.bgp"})
	}
}
