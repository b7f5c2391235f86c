// Package dhcptest is a DHCP server for tests, at the other end of a veth pair. It behaves
// according to a Plan and records its requests.
package dhcptest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/mdlayher/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// Plan configures a server. A server with the zero Plan does not answer.
type Plan struct {
	Offer     netip.Addr    // the address offered to all clients; invalid: no answer
	Lease     time.Duration // whole seconds
	Refuse    bool          // answer requests with a NAK
	IgnoreAll bool          // answer only discovers, no requests
	NoRenew   bool          // do not answer unicast requests (RENEWING)
	Rapid     bool          // support Rapid Commit
	Options   []dhcpv4.Option
}

// Server is a running server. Its log has "DISCOVER", "REQUEST selecting", "REQUEST rebooting",
// "REQUEST renewing", "REQUEST rebinding" (RFC 2131 table 4), each with the host name if the client
// sent one.
type Server struct {
	*Log
	self netip.Prefix
	mu   sync.Mutex
	plan Plan
}

// Start adds the address self to link in the namespace and runs a server there until the test ends.
func Start(t *testing.T, o *rtnltest.Namespace, link string, self netip.Prefix, plan Plan) *Server {
	t.Helper()
	s := &Server{Log: NewLog("DHCP server"), self: self, plan: plan}
	var conn *net.UDPConn
	var err error
	o.Do(func() {
		if err = addAddress(link, self); err != nil {
			return
		}
		conn, err = server4.NewIPv4UDPConn(link, nil)
	})
	var packets *ipv4.PacketConn
	if err == nil {
		packets = ipv4.NewPacketConn(conn)
		err = packets.SetControlMessage(ipv4.FlagDst, true)
	}
	if err != nil {
		t.Fatalf("DHCP server: cannot start: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve(packets)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return s
}

func addAddress(link string, p netip.Prefix) error {
	// net.InterfaceByName uses the namespace of this thread.
	i, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	return rtnl.SetAddress(c, rtnl.Address{Index: i.Index, Prefix: p})
}

// Set changes the plan of the server.
func (s *Server) Set(p Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = p
}

// serve answers until the socket is closed.
func (s *Server) serve(conn *ipv4.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, control, _, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		m, err := dhcpv4.FromBytes(buf[:n])
		if err != nil {
			continue
		}
		toMe := control != nil && control.Dst.Equal(s.self.Addr().AsSlice())
		if answer := s.answer(m, toMe); answer != nil {
			// RFC 2131 section 4.1: to the client's address if it has one; otherwise, and for a
			// NAK, by broadcast.
			to := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
			if c := m.ClientIPAddr; !c.IsUnspecified() && answer.MessageType() != dhcpv4.MessageTypeNak {
				to.IP = c
			}
			_, _ = conn.WriteTo(answer.ToBytes(), nil, to) // the client repeats its message
		}
	}
}

// answer records a message and returns the answer according to the plan, or nil.
func (s *Server) answer(m *dhcpv4.DHCPv4, toMe bool) *dhcpv4.DHCPv4 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Add(classify(m, toMe))
	p := s.plan
	discover := m.MessageType() == dhcpv4.MessageTypeDiscover
	if !p.Offer.IsValid() || !discover && (p.IgnoreAll || p.NoRenew && toMe) {
		return nil
	}
	reply := dhcpv4.MessageTypeAck
	mods := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptServerIdentifier(s.self.Addr().AsSlice()))}
	switch rapid := p.Rapid && m.Options.Has(dhcpv4.OptionRapidCommit); {
	case discover && rapid:
		mods = append(mods, dhcpv4.WithGeneric(dhcpv4.OptionRapidCommit, nil))
	case discover:
		reply = dhcpv4.MessageTypeOffer
	case p.Refuse:
		reply = dhcpv4.MessageTypeNak
	}
	mods = append(mods, dhcpv4.WithMessageType(reply))
	if reply != dhcpv4.MessageTypeNak {
		mods = append(mods,
			dhcpv4.WithYourIP(p.Offer.AsSlice()),
			dhcpv4.WithNetmask(net.CIDRMask(s.self.Bits(), 32)),
			dhcpv4.WithLeaseTime(uint32(p.Lease/time.Second)))
		for _, o := range p.Options {
			mods = append(mods, dhcpv4.WithOption(o))
		}
	}
	answer, err := dhcpv4.NewReplyFromRequest(m, mods...)
	if err != nil {
		return nil
	}
	return answer
}

// classify names a message by the distinctions of RFC 2131 table 4.
func classify(m *dhcpv4.DHCPv4, toMe bool) string {
	name := ""
	switch {
	case m.MessageType() == dhcpv4.MessageTypeDiscover:
		name = "DISCOVER"
	case m.ServerIdentifier() != nil:
		name = "REQUEST selecting"
	case m.RequestedIPAddress() != nil:
		name = "REQUEST rebooting"
	case toMe:
		name = "REQUEST renewing"
	default:
		name = "REQUEST rebinding"
	}
	if h := m.HostName(); h != "" {
		name += " " + h
	}
	return name
}

// Seconds is an option with a number of seconds, for T1 (58) and T2 (59).
func Seconds(code dhcpv4.OptionCode, d time.Duration) dhcpv4.Option {
	return dhcpv4.OptGeneric(code, binary.BigEndian.AppendUint32(nil, uint32(d/time.Second)))
}
