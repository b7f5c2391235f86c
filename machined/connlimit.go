package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// connLimitRules (nft(8)) drop new connections of an address, or of an IPv6 network of 64 bits, to
// the API port if they arrive faster than apid accepts them. apid rejects them too, but a
// connection that the kernel accepts, hands over and closes costs a hundred times a dropped packet;
// and a dropped client repeats its packet after a second by itself (RFC 6298), while a rejected
// client has failed.
//
// The rules do not count the first packet of a connection: an attacker can forge its source address
// and exhaust the limit of another client. They count the first packet that only the real sender
// can write: the packet that completes the handshake, of a connection that is established in the
// kernel's table and has no mark yet. Loopback is exempt. The first two lines delete an existing
// table.
var connLimitRules = fmt.Sprintf(`
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
`, paths.PortApid, apid.ConnectionsPerAddress, apid.ConnectionBurst, admittedMark)

// admittedMark marks a counted connection to the API. No other component sets connection marks.
const admittedMark = 0x646f6f72

// rulesTimeout bounds the installation of rules, which takes milliseconds on real hardware.
const rulesTimeout = time.Minute

// setRules installs commands of nft(8), all of them or none. modules are the kernel modules that
// they need in addition to tables and connection state.
func (m *machine) setRules(ctx context.Context, commands string, modules ...string) error {
	ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
	defer cancel()
	if err := m.kernel.LoadModules(append([]string{"nf_tables", "nft_ct", "nf_conntrack"}, modules...)...); err != nil {
		return err
	}
	_, err := m.reaper.RunCommand(ctx, supervise.Command{Args: []string{paths.Nft, "-f", "-"}, Stdin: []byte(commands)})
	return err
}

// limitNewConnections installs the nftables rules that rate-limit new connections to the API port.
// It runs after the API has started, and a failure is only an event: the API works without the
// rules.
func (m *machine) limitNewConnections(ctx context.Context) {
	if err := m.setRules(ctx, connLimitRules, "nft_limit"); err != nil {
		m.events.add("api", "failure", fmt.Sprintf("the kernel does not limit new connections, only apid does: %v", err))
		return
	}
	m.events.add("api", "operation", fmt.Sprintf("the kernel admits %d new connections per second from one address, %d at once", apid.ConnectionsPerAddress, apid.ConnectionBurst))
}
