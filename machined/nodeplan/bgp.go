package nodeplan

import (
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// bgp returns the BGP sessions of a machine with the addresses ips, for the orchestrator. It
// returns nil if no BGP is configured.
func bgp(c *config.BGP, ips []netip.Addr) *nodespec.BGP {
	if c == nil {
		return nil
	}
	out := &nodespec.BGP{ASN: uint32(c.ASN), RouterID: routerID(c.RouterID, ips)}
	for _, p := range c.Peers {
		out.Peers = append(out.Peers, nodespec.BGPPeer{
			Address: netip.AddrPortFrom(p.Address, uint16(p.Port)), ASN: uint32(p.ASN), HoldTime: int(time.Duration(p.HoldTime) / time.Second),
			Source: p.Source, OneHop: p.OneHop,
		})
	}
	return out
}

// routerID returns the BGP identifier of the machine: the configured identifier, else the first
// IPv4 address, else a hash of the first address. A hash is sufficient, because the identifier is a
// number that only has to be unique in the AS (RFC 6286).
func routerID(configured netip.Addr, ips []netip.Addr) netip.Addr {
	if configured.IsValid() {
		return configured
	}
	for _, a := range ips {
		if a.Is4() {
			return a
		}
	}
	sum := sha256.Sum256(ips[0].AsSlice())
	sum[0] |= 1 // The identifier 0.0.0.0 is invalid.
	return netip.AddrFrom4([4]byte(sum[:4]))
}

// bgpPasswords returns the passwords of the BGP peers as a JSON object, with the addresses of the
// peers as keys. It returns nil if no peer has a password.
func bgpPasswords(c *config.BGP) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	all := map[netip.Addr]string{}
	for _, p := range c.Peers {
		if !p.Password.IsZero() {
			all[p.Address] = p.Password.Reveal()
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}
