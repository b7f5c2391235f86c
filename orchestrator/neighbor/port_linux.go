package neighbor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// port answers on a link for a family. A packet socket receives packets that the kernel ignores:
// requests for an address that the machine does not have, also unicast requests with which a
// neighbor checks its reachability.
type port struct {
	link   Link
	six    bool
	conn   *packet.Conn
	groups int // a socket that holds the memberships of groups, with IPv6
	joined map[netip.Addr]bool
	roles  atomic.Pointer[map[netip.Addr]Role]
	closed atomic.Bool
}

// filter returns a filter that passes packets for this machine or a group, and for IPv6 only the
// two relevant messages. Offsets are from the network header.
func filter(six bool) ([]bpf.RawInstruction, error) {
	program := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		// to another machine, or from this machine
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: unix.PACKET_MULTICAST, SkipTrue: 1},
		bpf.RetConstant{Val: 1500},
		bpf.RetConstant{},
	}
	if six {
		program = []bpf.Instruction{
			bpf.LoadExtension{Num: bpf.ExtType},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: unix.PACKET_MULTICAST, SkipTrue: 6},
			bpf.LoadAbsolute{Off: 6, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmpv6, SkipTrue: 4},
			bpf.LoadAbsolute{Off: ipv6Head, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: solicitation, SkipTrue: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: advertising, SkipTrue: 1},
			bpf.RetConstant{Val: 1500},
			bpf.RetConstant{},
		}
	}
	return bpf.Assemble(program)
}

func openPort(link Link, six bool) (*port, error) {
	fail := func(err error) (*port, error) { return nil, fmt.Errorf("link %s: cannot listen: %w", link.Name, err) }
	program, err := filter(six)
	if err != nil {
		return fail(err)
	}
	p := &port{link: link, six: six, groups: -1, joined: map[netip.Addr]bool{}}
	p.roles.Store(&map[netip.Addr]Role{})
	protocol := unix.ETH_P_ARP
	if six {
		protocol = unix.ETH_P_IPV6
		// The socket sends and receives no packets and has no port.
		if p.groups, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fail(err)
		}
	}
	on := &net.Interface{Index: link.Index, Name: link.Name, HardwareAddr: link.MAC[:]}
	if p.conn, err = packet.Listen(on, packet.Datagram, protocol, &packet.Config{Filter: program}); err != nil {
		p.closeGroups()
		return fail(err)
	}
	return p, nil
}

// close ends serve.
func (p *port) close() {
	p.closed.Store(true)
	p.conn.Close()
	p.closeGroups()
}

func (p *port) closeGroups() {
	if p.groups >= 0 {
		unix.Close(p.groups)
	}
}

// serve answers until the port is closed and then returns nil, or returns an error. heard receives
// the claims of other machines.
func (p *port) serve(heard func(SeenAddress)) error {
	b := make([]byte, 1500)
	for {
		n, sender, err := p.conn.ReadFrom(b)
		if p.closed.Load() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("link %s: cannot receive: %w", p.link.Name, err)
		}
		from, ok := sender.(*packet.Addr)
		if !ok || len(from.HardwareAddr) != len(MAC{}) {
			continue
		}
		answer, to, other := p.answer(b[:n], MAC(from.HardwareAddr))
		if other.Address.IsValid() {
			heard(other)
		}
		if answer != nil {
			// The next read reports a disappearing link.
			_, _ = p.conn.WriteTo(answer, &packet.Addr{HardwareAddr: to[:]})
		}
	}
}

// answer returns the answer to a packet and its destination, and another machine's claim of an
// address of ours.
func (p *port) answer(b []byte, from MAC) (answer []byte, to MAC, other SeenAddress) {
	if p.six {
		if question, ok := parseNDP(b); ok {
			reply, to, answers, address := answerNDP(question, from, p.link.MAC, p.role)
			if answers {
				return reply.bytes(), to, SeenAddress{}
			}
			return nil, MAC{}, SeenAddress{address, from, p.link.Name, !question.solicited}
		}
		return nil, MAC{}, SeenAddress{}
	}
	if question, ok := parseARP(b); ok {
		reply, answers, address := answerARP(question, p.link.MAC, p.role)
		if answers {
			answer, to = reply.bytes(), reply.targetMAC
		}
		return answer, to, SeenAddress{address, question.senderMAC, p.link.Name, question.sender == question.target}
	}
	return nil, MAC{}, SeenAddress{}
}

func (p *port) role(a netip.Addr) Role { return (*p.roles.Load())[a] }

// set replaces the roles of the port. The caller must not change roles afterwards.
func (p *port) set(roles map[netip.Addr]Role) error {
	groups := map[netip.Addr]bool{}
	for a, role := range roles {
		if p.six && role == Answer { // claims go to all nodes
			groups[solicitedNode(a)] = true
		}
	}
	p.roles.Store(&roles)
	var errs []error
	for g := range groups {
		if !p.joined[g] {
			if err := p.membership(g, unix.IPV6_JOIN_GROUP); err != nil {
				errs = append(errs, fmt.Errorf("link %s: cannot join the group %s: %w", p.link.Name, g, err))
				continue
			}
			p.joined[g] = true
		}
	}
	for g := range p.joined {
		if !groups[g] {
			_ = p.membership(g, unix.IPV6_LEAVE_GROUP) // it ends with the socket at the latest
			delete(p.joined, g)
		}
	}
	return errors.Join(errs...)
}

// membership joins or leaves a group on the link. The kernel informs the network card and, by MLD,
// the switches, which otherwise may not forward the requests to the machine.
func (p *port) membership(group netip.Addr, option int) error {
	request := &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(p.link.Index)}
	return unix.SetsockoptIPv6Mreq(p.groups, unix.IPPROTO_IPV6, option, request)
}

// announce announces an address to all machines on the link.
func (p *port) announce(a netip.Addr) error {
	if p.six {
		m := announceNDP(p.link.MAC, a)
		m.router = p.role(a) == Present
		return p.send(m.bytes(), groupMAC(allNodes()))
	}
	return p.send(announceARP(p.link.MAC, a).bytes(), broadcast())
}

// probe probes an address on the link.
func (p *port) probe(a netip.Addr) error {
	if p.six {
		return p.send(probeNDP(a).bytes(), groupMAC(solicitedNode(a)))
	}
	return p.send(probeARP(p.link.MAC, a).bytes(), broadcast())
}

// solicit sends a unicast request to a machine.
func (p *port) solicit(from netip.Addr, whom SeenAddress) error {
	if p.six {
		return p.send(solicitNDP(p.link.MAC, from, whom.Address).bytes(), whom.MAC)
	}
	return p.send(solicitARP(p.link.MAC, from, whom.Address).bytes(), whom.MAC)
}

func (p *port) send(b []byte, to MAC) error {
	if _, err := p.conn.WriteTo(b, &packet.Addr{HardwareAddr: to[:]}); err != nil {
		return fmt.Errorf("link %s: cannot send: %w", p.link.Name, err)
	}
	return nil
}
