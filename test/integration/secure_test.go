package integration

import (
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/machined/timesync/nts/ntstest"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/vm"
)

// secureName is the name of the secure server. Only the resolver of the secure server resolves it.
const secureName = "secure.site.example"

// These are the ports of the secure server, for DNS over TLS (RFC 7858), the key exchange of NTS
// (RFC 8915), and NTP.
const (
	portDNS = 853
	portNTS = 4460
	portNTP = 123
)

// secureServer is a host of the closed network with a resolver for DNS over TLS and a time server
// with NTS.
type secureServer struct {
	refuses atomic.Bool
}

// secureVerb starts the secure server (start), makes the server's resolver close all connections
// (silent), or makes the resolver answer again (honest).
func (s *story) secureVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 2, "secure start PATCH | silent | honest")
	switch {
	case args[0] == "start" && len(args) == 2:
		s.startSecure(ts, args[1])
	case s.secure == nil:
		ts.Fatalf("secure: the secure server does not run; begin with: secure start PATCH")
	case args[0] == "silent":
		s.secure.refuses.Store(true)
		s.note("the resolver closes all connections")
	case args[0] == "honest":
		s.secure.refuses.Store(false)
		s.note("the secure server works")
	default:
		ts.Fatalf("usage: secure start PATCH | silent | honest")
	}
}

// startSecure starts the secure server, and writes the patch that makes a machine use the server.
func (s *story) startSecure(ts *testscript.TestScript, file string) {
	host, err := s.network.NewHost("secure", netip.Addr{})
	ts.Check(err)
	ca, err := pki.NewCA("story", time.Hour)
	ts.Check(err)
	leaf, err := ca.Issue(pki.Spec{CN: "secure", Usage: pki.Server, IPs: []netip.Addr{host.Addr()}, DNS: []string{secureName}, TTL: time.Hour})
	ts.Check(err)
	cert := tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
	names, err := host.Listen(portDNS)
	ts.Check(err)
	s.startNTS(ts, host, ca)
	s.secure = new(secureServer)
	server := &dns.Server{
		Listener: tls.NewListener(names, &tls.Config{Certificates: []tls.Certificate{cert}}),
		Handler:  s.secure.resolver(host.Addr()),
	}
	go server.ActivateAndServe() // ends with the network
	patch, err := yaml.Marshal(map[string]any{"kind": "Network", "spec": map[string]any{
		"dns": map[string]any{"servers": []string{host.Addr().String()}, "tls": map[string]any{"ca": string(ca.CertPEM())}},
		"ntp": map[string]any{"servers": []string{host.Addr().String()}, "nts": map[string]any{"ca": string(ca.CertPEM())}},
	}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(file), patch, 0o600))
	s.note("a resolver with DNS over TLS, and a time server with NTS, are at %s", host.Addr())
}

// startNTS starts the time server of the secure server.
func (s *story) startNTS(ts *testscript.TestScript, host *vm.Host, ca *pki.CA) {
	server, err := ntstest.New(ca, pki.Spec{CN: "secure", IPs: []netip.Addr{host.Addr()}, TTL: time.Hour})
	ts.Check(err)
	server.Now = s.network.Clock().Now
	exchanges, err := host.Listen(portNTS)
	ts.Check(err)
	packets, err := host.ListenPacket(portNTP)
	ts.Check(err)
	go server.Serve(exchanges, packets) // ends with the network
}

// resolver returns a DNS handler that resolves the name of the secure server to the given address.
// For all other names, it answers that the name does not exist.
func (r *secureServer) resolver(address netip.Addr) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		if r.refuses.Load() {
			w.Close()
			return
		}
		answer := new(dns.Msg).SetReply(m)
		switch q := m.Question[0]; {
		case q.Name != secureName+".":
			answer.Rcode = dns.RcodeNameError
		case q.Qtype == dns.TypeA:
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IP(address.AsSlice())}}
		}
		w.WriteMsg(answer) // a client repeats its query if the answer is lost
	})
}
