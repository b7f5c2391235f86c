package network

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// memory is state that the kernel does not have. It has the configured addresses of WireGuard
// peers, because the kernel replaces the address of a peer that changes its address. It also has
// the settings of hardware before their first change.
type memory struct {
	mu        sync.Mutex
	endpoints map[string]netip.AddrPort // by endpointKey
	hardware  formerHardware
}

func endpointKey(link string, peer wgtypes.Key) string { return link + " " + peer.String() }

func (m *memory) recordEndpoint(link string, p Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.endpoints == nil {
		m.endpoints = map[string]netip.AddrPort{}
	}
	m.endpoints[endpointKey(link, p.Key)] = p.Endpoint
}

func (m *memory) recordHardware(links []Link, ops []Op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hardware == nil {
		m.hardware = formerHardware{}
	}
	m.hardware.record(links, ops)
}

func (m *memory) formerHardware() map[int]map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[int]map[string]string{}
	for index, settings := range m.hardware {
		out[index] = maps.Clone(settings)
	}
	return out
}

// configured returns the configured address of a peer. If no configured address is recorded, it
// returns the present address.
func (m *memory) configured(link string, peer wgtypes.Peer) netip.AddrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.endpoints[endpointKey(link, peer.PublicKey)]; ok {
		return a
	}
	if peer.Endpoint == nil {
		return netip.AddrPort{}
	}
	a := peer.Endpoint.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// readWireGuard reads the definition of a tunnel from the kernel.
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
		p := Peer{Key: peer.PublicKey, Preshared: SecretKey{peer.PresharedKey}, KeepAlive: peer.PersistentKeepaliveInterval, Endpoint: k.memory.configured(link, peer)}
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

// setWireGuard changes the settings of a tunnel that an operation names, and removes the peers that
// are not wanted. The session of a peer without a change continues.
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
			k.memory.recordEndpoint(o.Link, p)
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
