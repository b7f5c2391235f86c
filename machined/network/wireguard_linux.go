package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// endpoints are the configured addresses of peers. The kernel replaces an address when a peer
// roams; without this record, the difference would look like a change of the configuration.
type endpoints struct {
	mu  sync.Mutex
	set map[string]netip.AddrPort // by endpointKey
}

func endpointKey(link string, peer wgtypes.Key) string { return link + " " + peer.String() }

func (e *endpoints) record(link string, p Peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set == nil {
		e.set = map[string]netip.AddrPort{}
	}
	e.set[endpointKey(link, p.Key)] = p.Endpoint
}

// configured returns the configured address of a peer, else its present address.
func (e *endpoints) configured(link string, peer wgtypes.Peer) netip.AddrPort {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.set[endpointKey(link, peer.PublicKey)]; ok {
		return a
	}
	if peer.Endpoint == nil {
		return netip.AddrPort{}
	}
	a := peer.Endpoint.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// readWireGuard returns the definition of a tunnel.
func (k *Kernel) readWireGuard(link string) (*WireGuard, error) {
	control, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("link %s: cannot read WireGuard: %w", link, err)
	}
	defer control.Close()
	device, err := control.Device(link)
	if err != nil {
		return nil, fmt.Errorf("link %s: cannot read WireGuard: %w", link, err)
	}
	w := &WireGuard{Key: SecretKey{device.PrivateKey}, Port: device.ListenPort}
	for _, peer := range device.Peers {
		p := Peer{Key: peer.PublicKey, Preshared: SecretKey{peer.PresharedKey}, KeepAlive: peer.PersistentKeepaliveInterval, Endpoint: k.endpoints.configured(link, peer)}
		for _, n := range peer.AllowedIPs {
			ones, _ := n.Mask.Size()
			if a := toAddr(n.IP); a.IsValid() {
				p.Allowed = append(p.Allowed, netip.PrefixFrom(a.Unmap(), ones))
			}
		}
		w.Peers = append(w.Peers, p)
	}
	w.Peers = SortPeers(w.Peers)
	return w, nil
}

// setWireGuard changes some settings of a tunnel. A peer that does not change keeps its session.
func (k *Kernel) setWireGuard(o Op) error {
	w, c := o.Change.To.WireGuard, wgtypes.Config{}
	for _, s := range o.Change.Settings {
		switch s {
		case settingKey:
			c.PrivateKey = &w.Key.key
		case settingPort:
			c.ListenPort = &w.Port
		}
	}
	have, err := k.readWireGuard(o.Link)
	if err != nil {
		return err
	}
	for _, p := range have.Peers {
		if !slices.ContainsFunc(w.Peers, func(wanted Peer) bool { return wanted.Key == p.Key }) {
			c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: p.Key, Remove: true})
		}
	}
	for _, p := range w.Peers {
		if slices.Contains(o.Change.Settings, settingPeer+p.Key.String()) {
			c.Peers = append(c.Peers, peerConfig(p))
		}
	}
	control, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer control.Close()
	if err := control.ConfigureDevice(o.Link, c); err != nil {
		return err
	}
	for _, p := range w.Peers {
		if slices.Contains(o.Change.Settings, settingPeer+p.Key.String()) {
			k.endpoints.record(o.Link, p)
		}
	}
	return nil
}

func peerConfig(p Peer) wgtypes.PeerConfig {
	out := wgtypes.PeerConfig{
		PublicKey: p.Key, PresharedKey: &p.Preshared.key, PersistentKeepaliveInterval: &p.KeepAlive, ReplaceAllowedIPs: true,
	}
	if p.Endpoint.IsValid() {
		out.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint)
	}
	for _, a := range p.Allowed {
		out.AllowedIPs = append(out.AllowedIPs, net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())})
	}
	return out
}
