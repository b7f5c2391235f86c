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

// port receives and answers requests on one link for one address family. It uses a packet socket,
// because the kernel does not answer requests for an address that the machine does not have. Some
// of these requests are unicast: with them a neighbor checks reachability.
type port struct {
	link   Link
	six    bool
	conn   *packet.Conn
	groups int // a socket that holds the memberships of IPv6 groups; -1 for IPv4
	joined map[netip.Addr]bool
	roles  atomic.Pointer[map[netip.Addr]Role]
	closed atomic.Bool
}

// filter returns a filter that passes packets to this machine, to a group or to all machines. For
// IPv6 it passes only neighbor solicitations and advertisements. Offsets count from the network
// header.
func filter(six bool) ([]bpf.RawInstruction, error) {
	program := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		// a packet to another machine or from this machine is dropped
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
		// This socket only holds memberships of groups. It sends and receives no packets.
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

// close closes the sockets. A running serve then returns nil.
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

// serve answers requests until close is called, and then returns nil. It returns an error if the
// socket fails. serve calls heard with each claim of another machine.
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
			// If the link is gone, the next read returns the error.
			_, _ = p.conn.WriteTo(answer, &packet.Addr{HardwareAddr: to[:]})
		}
	}
}

// answer returns the answer to a packet and its destination, or nil without an answer. It also
// returns another machine's claim of one of our addresses, with the zero Address if the packet
// contains no claim.
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

// set replaces the roles of the port. The caller must not change the map afterwards.
func (p *port) set(roles map[netip.Addr]Role) error {
	groups := map[netip.Addr]bool{}
	for a, role := range roles {
		// the role Listen needs no group, because claims go to all nodes
		if p.six && role == Answer {
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
			// closing the socket also ends the membership
			_ = p.membership(g, unix.IPV6_LEAVE_GROUP)
			delete(p.joined, g)
		}
	}
	return errors.Join(errs...)
}

// membership joins or leaves a group on the link. At a join, the kernel programs the network card
// and reports the group by MLD. Otherwise a switch might not forward solicitations to the machine.
func (p *port) membership(group netip.Addr, option int) error {
	request := &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(p.link.Index)}
	return unix.SetsockoptIPv6Mreq(p.groups, unix.IPPROTO_IPV6, option, request)
}

// announce sends an announcement of an address to all machines on the link.
func (p *port) announce(a netip.Addr) error {
	if p.six {
		m := announceNDP(p.link.MAC, a)
		m.router = p.role(a) == Present
		return p.send(m.bytes(), groupMAC(allNodes()))
	}
	return p.send(announceARP(p.link.MAC, a).bytes(), broadcast())
}

// probe sends a probe for an address on the link.
func (p *port) probe(a netip.Addr) error {
	if p.six {
		return p.send(probeNDP(a).bytes(), groupMAC(solicitedNode(a)))
	}
	return p.send(probeARP(p.link.MAC, a).bytes(), broadcast())
}

// solicit sends a unicast request to the machine that has sent a claim. The source of the request
// is the address in `from`.
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
