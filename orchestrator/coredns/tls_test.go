package coredns

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestTLS checks that CoreDNS sends queries to upstreams over TLS. If the certificate of an
// upstream is wrong, CoreDNS sends it no query, not even a query without TLS.
func TestTLS(t *testing.T) {
	ca, err := pki.NewCA("dns", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: "dns", Usage: pki.Server, DNS: []string{"dns.example"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}}})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var encrypted, open atomic.Int32
	handle := func(count *atomic.Int32) dns.Handler {
		return dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			r := new(dns.Msg).SetReply(m)
			if m.Question[0].Name == "example.org." {
				count.Add(1)
				r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "example.org.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.IPv4(192, 0, 2, 1)}}
			}
			w.WriteMsg(r)
		})
	}
	for _, s := range []*dns.Server{{Listener: listener, Handler: handle(&encrypted)}, {PacketConn: plain, Handler: handle(&open)}} {
		go s.ActivateAndServe() // ends when its socket is closed
		t.Cleanup(func() { s.Shutdown() })
	}
	for _, c := range []struct {
		name string
		tls  nodespec.TLS
		want string
	}{
		{"certificate with the configured name", nodespec.TLS{ServerName: "dns.example", CA: string(ca.CertPEM())}, "example.org. - IN A 192.0.2.1"},
		{"certificate with the address of the resolver", nodespec.TLS{CA: string(ca.CertPEM())}, "example.org. - IN A 192.0.2.1"},
		{"certificate without the configured name", nodespec.TLS{ServerName: "other.example", CA: string(ca.CertPEM())}, "SERVFAIL"},
		{"certificate that no public CA has issued", nodespec.TLS{ServerName: "dns.example"}, "SERVFAIL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, _ := newAPI(t, cluster())
			spec := testSpec()
			spec.DNS.Upstreams, spec.DNS.TLS = []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()}, &c.tls
			n := start(t, spec, url, silent)
			n.until(t, known, dns.TypeA, dns.RcodeSuccess)
			m, err := n.ask("udp", "example.org.", dns.TypeA, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(m); got != c.want {
				t.Errorf("%s; want %s", got, c.want)
			}
		})
	}
	if encrypted.Load() != 2 || open.Load() != 0 {
		t.Errorf("%d queries with TLS and %d without TLS, want 2 and 0", encrypted.Load(), open.Load())
	}
}
