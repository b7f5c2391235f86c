// Package dhcptest is a DHCPv4 server for tests, at the other end of a veth pair. It answers
// according to a Plan and records the messages that it receives.
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

// Plan configures a server. With the zero Plan, the server does not answer.
type Plan struct {
	// Offer is the address that all clients get. If it is invalid, the server does not answer.
	Offer     netip.Addr
	Lease     time.Duration // duration of the lease, in whole seconds
	Refuse    bool          // answer requests with a NAK
	IgnoreAll bool          // answer DISCOVER, but no REQUEST
	NoRenew   bool          // do not answer a unicast REQUEST (phase Renewing)
	Rapid     bool          // support Rapid Commit
	Options   []dhcpv4.Option
}

// Server is a running server. Its log contains "DISCOVER", "REQUEST selecting", "REQUEST
// rebooting", "REQUEST renewing" or "REQUEST rebinding" for each message (RFC 2131 table 4),
// followed by the host name if the client has sent a host name.
type Server struct {
	*Log
	self netip.Prefix
	mu   sync.Mutex
	plan Plan
}

// Start adds the address self to a link of the namespace, and runs a server on the link until the
// test ends.
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

// serve answers messages until the socket is closed.
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
			// The answer goes to the client's address if the client has an address. Otherwise the
			// server broadcasts it. A NAK is always broadcast (RFC 2131 section 4.1).
			to := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
			if c := m.ClientIPAddr; !c.IsUnspecified() && answer.MessageType() != dhcpv4.MessageTypeNak {
				to.IP = c
			}
			// An error is ignored, because the client repeats its message.
			_, _ = conn.WriteTo(answer.ToBytes(), nil, to)
		}
	}
}

// answer records a message, and returns the answer according to the plan; nil if the server does
// not answer. toMe is true if the client has sent the message by unicast.
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

// classify returns the name of a message in the log (RFC 2131 table 4).
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

// Seconds returns an option with a duration in seconds, for T1 (58) and T2 (59).
func Seconds(code dhcpv4.OptionCode, d time.Duration) dhcpv4.Option {
	return dhcpv4.OptGeneric(code, binary.BigEndian.AppendUint32(nil, uint32(d/time.Second)))
}
