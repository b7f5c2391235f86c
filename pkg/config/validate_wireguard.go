package config

import (
	"crypto/ecdh"
	"encoding/base64"
	"fmt"
	"net/netip"
)

func (v networkValidator) wireguard(path string, l *Link) {
	w := l.WireGuard
	if l.DHCP4 {
		v.on(path+".dhcp4", wrong{reason: "a WireGuard link has no DHCP", expected: "addresses"})
	}
	if l.IPv6 != nil {
		v.on(path+".ipv6", wrong{reason: "a WireGuard link has no link-local address, and so no DHCP and no router advertisements", expected: "addresses"})
	}
	v.listenPort(path+".wireguard.listenPort", l)
	keys, allowed := map[string]int{}, map[netip.Prefix]string{}
	for i, p := range w.Peers {
		at := fmt.Sprintf("%s.wireguard.peers[%d]", path, i)
		v.unique(at+".publicKey", "peers", string(p.PublicKey), i, keys)
		v.peer(at, w, p)
		for j, a := range p.AllowedIPs {
			here := fmt.Sprintf("%s.allowedIPs[%d]", at, j)
			if first := allowed[a]; v.wholeNetwork(here, a) && first != "" {
				v.on(here, wrong{reason: fmt.Sprintf("%s is also in %s", a, first), expected: "each network at one peer"})
			}
			allowed[a] = here
		}
	}
}

// listenPort checks that no earlier WireGuard link and no tunnel of the pod network uses the port.
func (v networkValidator) listenPort(path string, l *Link) {
	port := l.WireGuard.ListenPort
	for i := range v.cfg.Network.Spec.Links {
		o := &v.cfg.Network.Spec.Links[i]
		if o == l {
			break
		}
		if o.WireGuard != nil && o.WireGuard.ListenPort == port && port != 0 {
			v.on(path, wrong{reason: fmt.Sprintf("UDP port %d is also in Network.spec.links[%d].wireguard.listenPort", port, i), expected: "a port for each tunnel"})
			return
		}
	}
	c := v.cfg.Cluster
	if c == nil {
		return
	}
	if tunnel := podPorts[c.Spec.Networks.Encapsulation]; port == tunnel && port != 0 {
		v.on(path, wrong{reason: "the tunnels between the cluster's pods use this port", expected: "another port, such as 51821"})
	}
}

// podPorts are the UDP ports of the tunnels between pods of different machines
// (PortWireGuard and PortVXLAN of package paths).
var podPorts = map[Encapsulation]int{EncapsulationWireGuard: 51820, EncapsulationVXLAN: 8472}

// peer validates a peer independently of the other peers. It rejects the machine's own public key,
// because the kernel ignores such a peer.
func (v networkValidator) peer(at string, w *WireGuard, p WireGuardPeer) {
	if own := w.PrivateKey.publicKey(); own != "" && own == p.PublicKey {
		v.on(at+".publicKey", wrong{reason: "it is the public key of privateKey, the machine's own", expected: "the public key of the other end"})
	}
	if len(p.AllowedIPs) == 0 && !v.broken[at+".allowedIPs"] {
		v.on(at+".allowedIPs", wrong{reason: "is empty", expected: "the networks of the peer; 0.0.0.0/0 and ::/0 are all"})
	}
	if a := p.Endpoint.Addr(); a.IsValid() && (a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() && a.Is6()) {
		v.on(at+".endpoint", wrong{reason: fmt.Sprintf("%s cannot be the address of a peer", a), expected: "an address that the machine reaches by its routes"})
	}
}

// publicKey returns the public key that belongs to a private key of WireGuard; "" for an invalid
// key.
func (k EncryptionKey) publicKey() PublicKey {
	private, err := ecdh.X25519().NewPrivateKey(k.Bytes())
	if err != nil {
		return ""
	}
	return PublicKey(base64.StdEncoding.EncodeToString(private.PublicKey().Bytes()))
}
