package api

import (
	"context"
	"fmt"

	"github.com/orlop-os/orlop/pkg/paths"
)

// ConnLimit limits new connections to the API port in the kernel.
type ConnLimit struct {
	// PerSecond bounds the new connections of an address per second. Burst bounds the connections
	// that an address can open at once after a pause.
	PerSecond, Burst int
	// SetRules installs commands of nft(8), all of them or none. modules are the kernel modules
	// that the commands need.
	SetRules func(ctx context.Context, commands string, modules ...string) error
	// Event adds an event.
	Event func(source, kind, message string)
}

// rules returns the rules (nft(8)). They drop new connections of an address, or of an IPv6 network
// of 64 bits, to the API port if they arrive faster than apid accepts them. apid alone could reject
// these connections, but a connection that the kernel accepts, hands over and closes costs a
// hundred times a dropped packet. Also, if the kernel drops a packet, the client repeats it after a
// second by itself (RFC 6298), while the call of a rejected client has failed.
//
// The rules do not count the first packet of a connection: an attacker can forge its source address
// and exhaust the limit of another client. They count the packet that completes the handshake,
// because only the real sender can write it. This packet belongs to a connection that is
// established in the kernel's table and has no mark yet. Loopback is exempt. The first two lines
// delete an existing table.
func (l ConnLimit) rules() string {
	return fmt.Sprintf(`
add table inet orlop_connlimit
delete table inet orlop_connlimit
table inet orlop_connlimit {
	set rate4 { type ipv4_addr; flags dynamic,timeout; timeout 1m; size 65535; }
	set rate6 { type ipv6_addr; flags dynamic,timeout; timeout 1m; size 65535; }
	chain input {
		type filter hook input priority -10; policy accept;
		iifname != "lo" tcp dport %[1]d ct state established ct mark != 0x%[4]x jump new_connection
	}
	chain new_connection {
		update @rate4 { ip saddr limit rate over %[2]d/second burst %[3]d packets } counter drop
		update @rate6 { ip6 saddr & ffff:ffff:ffff:ffff:: limit rate over %[2]d/second burst %[3]d packets } counter drop
		ct mark set 0x%[4]x
	}
}
`, paths.PortApid, l.PerSecond, l.Burst, admittedMark)
}

// admittedMark marks a counted connection to the API. No other component sets connection marks.
const admittedMark = 0x646f6f72

// Install installs the nftables rules that rate-limit new connections to the API port. It runs
// after the API has started, and a failure is only an event: the API works without the rules.
func (l ConnLimit) Install(ctx context.Context) {
	if err := l.SetRules(ctx, l.rules(), "nft_limit"); err != nil {
		l.Event("api", "failure", fmt.Sprintf("the kernel does not limit new connections, only apid does: %v", err))
		return
	}
	l.Event("api", "operation", fmt.Sprintf("the kernel admits %d new connections per second from one address, %d at once", l.PerSecond, l.Burst))
}
