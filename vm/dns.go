package vm

import (
	"io"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// addName adds addresses to a name in the network's DNS. For a name without a dot, it also adds
// them to the name with the network's domain.
func (n *Network) addName(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addNameLocked(name, addrs...)
}

func (n *Network) addNameLocked(name string, addrs ...netip.Addr) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	n.names[name] = append(n.names[name], addrs...)
	if !strings.Contains(name, ".") {
		n.names[name+"."+n.spec.Domain] = append(n.names[name+"."+n.spec.Domain], addrs...)
	}
}

// Lookup returns the addresses of a name in the network's DNS; empty if the name does not exist.
func (n *Network) Lookup(name string) []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[strings.ToLower(strings.TrimSuffix(name, "."))]
}

// startDNS starts the DNS server of the gateway. It answers from the names of the network, and has
// no upstream. The returned function ends it.
func (n *Network) startDNS() (func(), error) {
	conns, err := n.gateway.listenPackets(53)
	if err != nil {
		return nil, err
	}
	closers := []io.Closer{}
	answer := dns.HandlerFunc(n.answerDNS)
	servers := []*dns.Server{}
	for _, c := range conns {
		closers, servers = append(closers, c), append(servers, &dns.Server{PacketConn: c, Handler: answer})
	}
	var running sync.WaitGroup
	stop := func() {
		for _, c := range closers {
			c.Close()
		}
		running.Wait()
	}
	listener, err := n.gateway.Listen(53)
	if err != nil {
		stop()
		return nil, err
	}
	closers, servers = append(closers, listener), append(servers, &dns.Server{Listener: listener, Handler: answer})
	for _, s := range servers {
		running.Go(func() { s.ActivateAndServe() }) // ends with an error when its socket is closed
	}
	return stop, nil
}

// answerDNS answers a query from the names of the network. The answer for other names below the
// network's domain is NXDOMAIN, and for all other names REFUSED.
func (n *Network) answerDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = false
	if query.Opcode != dns.OpcodeQuery || len(query.Question) != 1 {
		// a disconnected client needs no answer
		w.WriteMsg(reply.SetRcode(query, dns.RcodeNotImplemented))
		return
	}
	q := query.Question[0]
	addrs := n.Lookup(q.Name)
	switch {
	case len(addrs) > 0:
		reply.Authoritative = true
		for _, a := range addrs {
			head := dns.RR_Header{Name: q.Name, Class: dns.ClassINET, Ttl: 5}
			switch {
			case a.Is4() && q.Qtype == dns.TypeA:
				head.Rrtype = dns.TypeA
				reply.Answer = append(reply.Answer, &dns.A{Hdr: head, A: a.AsSlice()})
			case a.Is6() && q.Qtype == dns.TypeAAAA:
				head.Rrtype = dns.TypeAAAA
				reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: head, AAAA: a.AsSlice()})
			}
		}
	case dns.IsSubDomain(dns.Fqdn(n.spec.Domain), strings.ToLower(q.Name)):
		reply.Authoritative = true
		reply.Rcode = dns.RcodeNameError
	default:
		reply.Rcode = dns.RcodeRefused
	}
	w.WriteMsg(reply)
}
