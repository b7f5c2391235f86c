package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// doorRules (nft(8)) drop what one address, or one IPv6 network of 64 bits, wants to begin at the
// API's port faster than apid takes it. apid refuses it as well, but a connection that the kernel
// accepts, hands over and closes costs a hundred times a packet that it drops; and who was dropped
// comes again after a second by himself (RFC 6298), where one who was refused has failed.
//
// What counts is not the first packet of a connection, in which anybody can write any sender to use
// up what somebody else may begin, but the first that only its real sender can know how to write:
// the one that completes the handshake, of a connection that the kernel's table has as established
// and that bears no mark yet. Loopback is the machine's own. The first two lines say: begin from
// nothing, whatever is there.
var doorRules = fmt.Sprintf(`
add table inet orlop_door
delete table inet orlop_door
table inet orlop_door {
	set pace4 { type ipv4_addr; flags dynamic,timeout; timeout 1m; size 65535; }
	set pace6 { type ipv6_addr; flags dynamic,timeout; timeout 1m; size 65535; }
	chain input {
		type filter hook input priority -10; policy accept;
		iifname != "lo" tcp dport %[1]d ct state established ct mark != 0x%[4]x jump pace
	}
	chain pace {
		update @pace4 { ip saddr limit rate over %[2]d/second burst %[3]d packets } counter drop
		update @pace6 { ip6 saddr & ffff:ffff:ffff:ffff:: limit rate over %[2]d/second burst %[3]d packets } counter drop
		ct mark set 0x%[4]x
	}
}
`, paths.PortApid, apid.ConnectionsPerAddress, apid.ConnectionBurst, admittedMark)

// admittedMark is the mark of a connection to the API that has been counted. Marks of connections
// are used by nobody else here.
const admittedMark = 0x646f6f72

// rulesTimeout bounds setting rules, which takes milliseconds on real hardware.
const rulesTimeout = time.Minute

// setRules gives the kernel commands of nft(8), all of them or none. modules are what they need
// beside tables and the state of connections.
func (m *machine) setRules(ctx context.Context, commands string, modules ...string) error {
	ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
	defer cancel()
	if err := m.kernel.LoadModules(append([]string{"nf_tables", "nft_ct", "nf_conntrack"}, modules...)...); err != nil {
		return err
	}
	_, err := m.reaper.RunCommand(ctx, supervise.Command{Args: []string{paths.Nft, "-f", "-"}, Stdin: []byte(commands)})
	return err
}

// paceDoor has the kernel keep strangers from asking for connections faster than apid takes them.
// The API answers without it as well, so it is done when that is up, and a kernel that cannot is no
// reason not to go on.
func (m *machine) paceDoor(ctx context.Context) {
	if err := m.setRules(ctx, doorRules, "nft_limit"); err != nil {
		m.events.add("api", "failure", fmt.Sprintf("the kernel does not keep the pace of new connections, apid alone does: %v", err))
		return
	}
	m.events.add("api", "op", fmt.Sprintf("the kernel takes %d new connections a second from one address, %d at once", apid.ConnectionsPerAddress, apid.ConnectionBurst))
}
