package network

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// WireGuard is a tunnel of the machine itself. Another component manages the tunnels between nodes.
type WireGuard struct {
	Key   SecretKey // the private key
	Port  int       // UDP port
	Peers []Peer    // sorted by key
}

// Peer is the other end of a tunnel.
type Peer struct {
	Key       wgtypes.Key // the public key
	Preshared SecretKey   // the zero key if the peer has no preshared key
	// Endpoint is the configured address of the peer. It is invalid if only the peer starts
	// connections. When a peer changes its address, the kernel replaces the endpoint; Kernel.Read
	// nevertheless returns the configured address.
	Endpoint  netip.AddrPort
	Allowed   []netip.Prefix // the peer's addresses, masked and sorted
	KeepAlive time.Duration  // whole seconds; 0 turns it off
}

// SecretKey is a key that package fmt does not print.
type SecretKey struct{ key wgtypes.Key }

// NewSecretKey returns the secret form of a key.
func NewSecretKey(k [32]byte) SecretKey { return SecretKey{k} }

// String returns a text without the key.
func (SecretKey) String() string { return "(redacted)" }

// GoString returns a text without the key.
func (SecretKey) GoString() string { return "(redacted)" }

func (k SecretKey) isZero() bool { return k.key == wgtypes.Key{} }

// fingerprint returns a short hash of the key, for comparisons; it returns "" for the zero key. The
// hash does not help to guess a key of 32 random bytes.
func (k SecretKey) fingerprint() string {
	if k.isZero() {
		return ""
	}
	sum := sha256.Sum256(append([]byte("orlop: the name of a WireGuard key\n"), k.key[:]...))
	return hex.EncodeToString(sum[:4])
}

// Names of settings of WireGuard.
const (
	settingKey  = "public key"
	settingPort = "port"
	settingPeer = "peer " // followed by the public key of the peer
)

func (w *WireGuard) settings() []setting {
	key, port := "", ""
	if w.Port != 0 {
		port = strconv.Itoa(w.Port)
	}
	if !w.Key.isZero() {
		key = w.Key.key.PublicKey().String()
	}
	out := []setting{{settingPort, port, false}, {settingKey, key, false}}
	for _, p := range w.Peers {
		out = append(out, setting{settingPeer + p.Key.String(), p.String(), false})
	}
	return out
}

// String describes the settings of a peer.
func (p Peer) String() string {
	var parts []string
	for _, a := range p.Allowed {
		parts = append(parts, a.String())
	}
	if p.Endpoint.IsValid() {
		parts = append(parts, "at "+p.Endpoint.String())
	}
	if p.KeepAlive != 0 {
		parts = append(parts, fmt.Sprintf("keepalive %v", p.KeepAlive))
	}
	if !p.Preshared.isZero() {
		parts = append(parts, "preshared key "+p.Preshared.fingerprint())
	}
	return strings.Join(parts, " ")
}

// SortPeers sorts peers by key, and the allowed addresses of each peer. It changes peers itself and
// returns it.
func SortPeers(peers []Peer) []Peer {
	for i := range peers {
		slices.SortFunc(peers[i].Allowed, netip.Prefix.Compare)
	}
	slices.SortFunc(peers, func(a, b Peer) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return peers
}
