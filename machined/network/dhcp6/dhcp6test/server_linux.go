// Package dhcp6test is a DHCPv6 server for tests, at the other end of a veth pair. It answers
// according to a Plan and records the messages that it receives.
package dhcp6test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/orlop-os/orlop/machined/network/dhcp/dhcptest"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// Plan configures a server. With the zero Plan, the server grants no address and no prefix.
type Plan struct {
	// All clients get the first of Addresses that no client has declined.
	Addresses []netip.Addr
	Prefix    netip.Prefix // the delegated prefix; invalid for none
	// Preferred and Valid are the lifetimes of addresses and prefixes; T1 and T2 are the times of
	// the lease. All are in whole seconds. If T1 and T2 are 0, the client chooses them.
	Preferred, Valid, T1, T2 time.Duration
	Silent                   bool // do not answer
	NoRenew                  bool // do not answer Renew
	NotOnLink                bool // answer Confirm with the status NotOnLink
	Forgot                   bool // answer Renew and Rebind with the status NoBinding
	Rapid                    bool // support rapid commit
	Options                  []dhcpv6.Option
}

// Server is a running server. For each message, its log has the type of the message, followed by
// the addresses and prefixes in the message.
type Server struct {
	*dhcptest.Log
	mu       sync.Mutex
	plan     Plan
	clients  []string // DUIDs of the clients, in hexadecimal
	declined []netip.Addr
}

// id is the DUID of the server.
var id = &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99}}

// Start runs a server on a link of the namespace until the test ends. The server answers from the
// link-local address of the link, which the kernel adds.
func Start(t *testing.T, o *rtnltest.Namespace, link string, plan Plan) *Server {
	t.Helper()
	s := &Server{Log: dhcptest.NewLog("DHCPv6 server"), plan: plan}
	var server *server6.Server
	var err error
	o.Do(func() { server, err = server6.NewServer(link, nil, s.serve) })
	if err != nil {
		t.Fatalf("DHCPv6 server: cannot start: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve() // Serve returns an error when the socket is closed
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return s
}

// Set changes the plan of the server.
func (s *Server) Set(p Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = p
}

// Clients returns the DUIDs of all clients, each once, in hexadecimal.
func (s *Server) Clients() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.clients)
}

// serve is the handler of the library's server.
func (s *Server) serve(conn net.PacketConn, peer net.Addr, d dhcpv6.DHCPv6) {
	m, ok := d.(*dhcpv6.Message)
	if !ok {
		return
	}
	if answer := s.answer(m); answer != nil {
		// An error is ignored, because the client repeats its message.
		_, _ = conn.WriteTo(answer.ToBytes(), peer)
	}
}

// answer records a message, and returns the answer according to the plan; nil if the server does
// not answer. It does not use dhcpv6.NewReplyFromMessage, because this function fails for a
// Decline.
func (s *Server) answer(m *dhcpv6.Message) *dhcpv6.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := fmt.Sprintf("%x", m.Options.ClientID().ToBytes()); !slices.Contains(s.clients, c) {
		s.clients = append(s.clients, c)
	}
	s.Add(describe(m))
	p := s.plan
	if p.Silent || p.NoRenew && m.Type() == dhcpv6.MessageTypeRenew {
		return nil
	}
	out := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: m.TransactionID}
	out.AddOption(m.GetOneOption(dhcpv6.OptionClientID))
	out.AddOption(dhcpv6.OptServerID(id))
	switch m.Type() {
	case dhcpv6.MessageTypeSolicit:
		if p.Rapid && m.GetOneOption(dhcpv6.OptionRapidCommit) != nil {
			out.AddOption(m.GetOneOption(dhcpv6.OptionRapidCommit))
		} else {
			out.MessageType = dhcpv6.MessageTypeAdvertise
		}
	case dhcpv6.MessageTypeConfirm:
		status := &dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess}
		if p.NotOnLink {
			status.StatusCode = iana.StatusNotOnLink
		}
		out.AddOption(status)
		return out
	case dhcpv6.MessageTypeDecline:
		for _, a := range m.Options.OneIANA().Options.Addresses() {
			addr, _ := netip.AddrFromSlice(a.IPv6Addr)
			s.declined = append(s.declined, addr)
		}
		return out
	case dhcpv6.MessageTypeRelease:
		return out
	}
	s.grant(m, out)
	for _, o := range p.Options {
		out.AddOption(o)
	}
	return out
}

// grant adds the answers to the identity associations of the message m to the message out.
func (s *Server) grant(m, out *dhcpv6.Message) {
	p := s.plan
	unknown := p.Forgot && (m.Type() == dhcpv6.MessageTypeRenew || m.Type() == dhcpv6.MessageTypeRebind)
	if ia := m.Options.OneIANA(); ia != nil {
		answer := &dhcpv6.OptIANA{IaId: ia.IaId, T1: p.T1, T2: p.T2}
		free := slices.DeleteFunc(slices.Clone(p.Addresses), func(a netip.Addr) bool { return slices.Contains(s.declined, a) })
		switch {
		case unknown:
			answer.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoBinding})
		case len(free) == 0:
			answer.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "no address is free"})
		default:
			answer.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: free[0].AsSlice(), PreferredLifetime: p.Preferred, ValidLifetime: p.Valid})
		}
		out.AddOption(answer)
	}
	if ia := m.Options.OneIAPD(); ia != nil {
		answer := &dhcpv6.OptIAPD{IaId: ia.IaId, T1: p.T1, T2: p.T2}
		switch {
		case unknown:
			answer.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoBinding})
		case !p.Prefix.IsValid():
			answer.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoPrefixAvail})
		default:
			answer.Options.Add(&dhcpv6.OptIAPrefix{PreferredLifetime: p.Preferred, ValidLifetime: p.Valid,
				Prefix: &net.IPNet{IP: p.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(p.Prefix.Bits(), 128)}})
		}
		out.AddOption(answer)
	}
}

// describe returns the line of a message in the log: its type, addresses and prefixes.
func describe(m *dhcpv6.Message) string {
	words := []string{m.Type().String()}
	if ia := m.Options.OneIANA(); ia != nil {
		for _, a := range ia.Options.Addresses() {
			words = append(words, a.IPv6Addr.String())
		}
	}
	if ia := m.Options.OneIAPD(); ia != nil {
		for _, p := range ia.Options.Prefixes() {
			words = append(words, p.Prefix.String())
		}
	}
	return strings.Join(words, " ")
}
