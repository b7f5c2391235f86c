package coredns

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// outside has three external resolvers: every is the upstream for all names; corp and lab are the
// resolvers of the stub domains corp.example and lab.corp.example.
type outside struct{ every, corp, lab *resolver }

func newOutside(t *testing.T) outside {
	return outside{
		every: newResolver(t, "example.org. 300 IN A 192.0.2.1",
			"7.0.0.10.in-addr.arpa. 300 IN PTR m7.example.org.", "www.corp.example. 300 IN A 192.0.2.99"),
		corp: newResolver(t, "www.corp.example. 300 IN A 192.0.2.2",
			"db.corp.example. 300 IN A 192.0.2.3", "www.lab.corp.example. 300 IN A 192.0.2.99"),
		lab: newResolver(t, "www.lab.corp.example. 300 IN A 192.0.2.4", "1.1.10.10.in-addr.arpa. 300 IN PTR www.lab.corp.example."),
	}
}

func (o outside) spec() nodespec.Spec {
	s := testSpec()
	s.DNS = nodespec.DNS{
		Upstreams: []netip.AddrPort{o.every.at}, CacheTTL: cacheTTL,
		StubDomains: []nodespec.StubDomain{
			{Domain: "corp.example", Servers: []netip.AddrPort{o.corp.at}},
			{Domain: "lab.corp.example", Servers: []netip.AddrPort{o.lab.at}},
			{Domain: "10.10.in-addr.arpa", Servers: []netip.AddrPort{o.lab.at}},
		},
	}
	return s
}

// testSpec is a cluster without external resolvers.
func testSpec() nodespec.Spec {
	return nodespec.Spec{
		Network: nodespec.Network{
			DNSDomain:    "cluster.local",
			PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")},
		},
		DNS: nodespec.DNS{CacheTTL: cacheTTL},
	}
}

// cacheTTL is longer than the TTL of the cluster's names, and shorter than that of external names.
const cacheTTL = 60

func silent(string, bool, string) {}

const known = "kubernetes.default.svc.cluster.local."

// describe returns the relevant parts of an answer: the response code, or "NODATA" if the name
// exists without such a record; and the sorted records. In an external record, "-" stands for a TTL
// from 1 to cacheTTL.
func describe(m *dns.Msg) string {
	var lines []string
	for _, rr := range m.Answer {
		if ttl := rr.Header().Ttl; !strings.Contains(rr.String(), "cluster.local.") && ttl > 0 && ttl <= cacheTTL {
			lines = append(lines, regexp.MustCompile(`\t\d+\t`).ReplaceAllString(rr.String(), " - "))
			continue
		}
		lines = append(lines, rr.String())
	}
	slices.Sort(lines)
	if m.Rcode == dns.RcodeSuccess && len(lines) == 0 {
		lines = []string{"NODATA"}
	}
	if m.Rcode != dns.RcodeSuccess {
		lines = append([]string{dns.RcodeToString[m.Rcode]}, lines...)
	}
	return strings.Join(strings.Fields(strings.Join(lines, " | ")), " ")
}

// TestSpecification queries the names of Kubernetes' DNS specification (schema 1.1.0), and external
// names.
func TestSpecification(t *testing.T) {
	o := newOutside(t)
	url, _ := newAPI(t, cluster())
	n := start(t, o.spec(), url, silent)
	n.until(t, known, dns.TypeA, dns.RcodeSuccess)
	const a, aaaa, srv, ptr, txt = dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT
	for _, test := range []struct {
		name string
		kind uint16
		want string
	}{
		// 2.2: the version of the schema
		{"dns-version.cluster.local.", txt, `dns-version.cluster.local. 28800 IN TXT "1.1.0"`},
		// 2.3: Services with an address
		{"web.default.svc.cluster.local.", a, "web.default.svc.cluster.local. 30 IN A 10.96.0.20"},
		{"web.default.svc.cluster.local.", aaaa, "web.default.svc.cluster.local. 30 IN AAAA fd00:96::20"},
		{"WEB.Default.svc.cluster.local.", a, "WEB.Default.svc.cluster.local. 30 IN A 10.96.0.20"},
		{"_http._tcp.web.default.svc.cluster.local.", srv, "_http._tcp.web.default.svc.cluster.local. 30 IN SRV 0 50 80 web.default.svc.cluster.local."},
		{"20.0.96.10.in-addr.arpa.", ptr, "20.0.96.10.in-addr.arpa. 30 IN PTR web.default.svc.cluster.local."},
		{reverse(t, "fd00:96::20"), ptr, reverse(t, "fd00:96::20") + " 30 IN PTR web.default.svc.cluster.local."},
		// 2.4: headless Services; unready endpoints are omitted
		{"db.default.svc.cluster.local.", a, "db.default.svc.cluster.local. 30 IN A 10.244.0.5 | db.default.svc.cluster.local. 30 IN A 10.244.0.6"},
		{"db.default.svc.cluster.local.", aaaa, "db.default.svc.cluster.local. 30 IN AAAA fd00:244::5"},
		{"db-0.db.default.svc.cluster.local.", a, "db-0.db.default.svc.cluster.local. 30 IN A 10.244.0.5"},
		{"db-9.db.default.svc.cluster.local.", a, "NXDOMAIN"},
		{"10-244-0-6.db.default.svc.cluster.local.", a, "10-244-0-6.db.default.svc.cluster.local. 30 IN A 10.244.0.6"},
		{"_sql._tcp.db.default.svc.cluster.local.", srv,
			"_sql._tcp.db.default.svc.cluster.local. 30 IN SRV 0 33 5432 10-244-0-6.db.default.svc.cluster.local. | " +
				"_sql._tcp.db.default.svc.cluster.local. 30 IN SRV 0 33 5432 db-0.db.default.svc.cluster.local."},
		{"5.0.244.10.in-addr.arpa.", ptr, "5.0.244.10.in-addr.arpa. 30 IN PTR db-0.db.default.svc.cluster.local."},
		{reverse(t, "fd00:244::5"), ptr, reverse(t, "fd00:244::5") + " 30 IN PTR db-0.db.default.svc.cluster.local."},
		{"8.0.0.10.in-addr.arpa.", ptr, "8.0.0.10.in-addr.arpa. 30 IN PTR 10-0-0-8.agent.default.svc.cluster.local."},
		// NXDOMAIN, as the specification requires if no endpoint is ready
		{"idle.default.svc.cluster.local.", a, "NXDOMAIN"},
		// 2.5: Services for an external name
		{"out.default.svc.cluster.local.", a, "db.corp.example. - IN A 192.0.2.3 | out.default.svc.cluster.local. 30 IN CNAME db.corp.example."},
		{"out.default.svc.cluster.local.", dns.TypeCNAME, "out.default.svc.cluster.local. 30 IN CNAME db.corp.example."},
		// names of pods by address, which the specification no longer contains but programs still
		// use
		{"10-244-0-7.default.pod.cluster.local.", a, "10-244-0-7.default.pod.cluster.local. 30 IN A 10.244.0.7"},
		{"fd00-244--7.default.pod.cluster.local.", aaaa, "fd00-244--7.default.pod.cluster.local. 30 IN AAAA fd00:244::7"},
		{"nonsense.default.pod.cluster.local.", a, "NXDOMAIN"},
		{"10-244-0-7.nowhere.pod.cluster.local.", a, "NXDOMAIN"},
		// the name exists, but has no record of this type
		{known, aaaa, "NODATA"},
		{known, txt, "NODATA"},
		{known, dns.TypeHTTPS, "NODATA"},
		{"default.svc.cluster.local.", a, "NODATA"},
		{"svc.cluster.local.", a, "NODATA"},
		// no such name
		{"nobody.default.svc.cluster.local.", a, "NXDOMAIN"},
		{"nobody.default.svc.cluster.local.", aaaa, "NXDOMAIN"},
		{"web.nowhere.svc.cluster.local.", a, "NXDOMAIN"},
		{"_ftp._tcp.web.default.svc.cluster.local.", srv, "NXDOMAIN"},
		{"example.org.cluster.local.", a, "NXDOMAIN"},
		{"9.9.244.10.in-addr.arpa.", ptr, "NXDOMAIN"},
		{reverse(t, "fd00:244::99"), ptr, "NXDOMAIN"},
		// external names, where the longest stub domain has priority
		{"example.org.", a, "example.org. - IN A 192.0.2.1"},
		{"example.org.", aaaa, "NODATA"},
		{"missing.example.org.", a, "NXDOMAIN"},
		{"www.corp.example.", a, "www.corp.example. - IN A 192.0.2.2"},
		{"missing.corp.example.", a, "NXDOMAIN"},
		{"www.lab.corp.example.", a, "www.lab.corp.example. - IN A 192.0.2.4"},
		{"www.notcorp.example.", a, "NXDOMAIN"},
		{"7.0.0.10.in-addr.arpa.", ptr, "7.0.0.10.in-addr.arpa. - IN PTR m7.example.org."},
		{"1.1.10.10.in-addr.arpa.", ptr, "1.1.10.10.in-addr.arpa. - IN PTR www.lab.corp.example."},
	} {
		for _, network := range []string{"udp", "tcp"} {
			m, err := n.ask(network, test.name, test.kind, 1232)
			if err != nil {
				t.Errorf("%s %s %s: %v", network, test.name, dns.TypeToString[test.kind], err)
				continue
			}
			if got := describe(m); got != test.want {
				t.Errorf("%s %s %s:\n got %s\nwant %s", network, test.name, dns.TypeToString[test.kind], got, test.want)
			}
			// A negative answer of the cluster contains an SOA record, with the time for which it
			// may be cached (RFC 2308, 3).
			if ours := strings.HasSuffix(test.name, "cluster.local.") || strings.HasSuffix(test.name, "244.10.in-addr.arpa."); ours && len(m.Answer) == 0 {
				if len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA || m.Ns[0].Header().Ttl != clusterTTL {
					t.Errorf("%s %s: the authority section of a negative answer is %v, want one SOA record with the TTL of the cluster", network, test.name, m.Ns)
				}
			}
		}
	}
	if o.every.about("9.9.244.10.in-addr.arpa.") || o.every.about("nobody.default.svc.cluster.local.") {
		t.Error("an external resolver received a query for the cluster's names")
	}
}

// TestNoNameOutside checks that CoreDNS does not cache the answer of an external resolver that an
// address has no name (a PTR query), because the cluster may have a name for the address later.
// CoreDNS caches all other external answers.
func TestNoNameOutside(t *testing.T) {
	o := newOutside(t)
	url, _ := newAPI(t, cluster())
	n := start(t, o.spec(), url, silent)
	n.until(t, known, dns.TypeA, dns.RcodeSuccess)
	for name, want := range map[string]int{
		"9.0.0.10.in-addr.arpa.": 3, reverse(t, "2001:db8::9"): 3, "missing.example.org.": 1, "7.0.0.10.in-addr.arpa.": 1,
	} {
		for range 3 {
			if _, err := n.ask("udp", name, dns.TypePTR, 0); err != nil {
				t.Fatal(err)
			}
		}
		if got := o.every.times(name); got != want {
			t.Errorf("%s: the external resolver received %d of 3 queries, want %d", name, got, want)
		}
	}
}

func reverse(t *testing.T, address string) string {
	t.Helper()
	name, err := dns.ReverseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestLargeAnswers checks that an answer that is too large for the client's limit over UDP is
// truncated and marked as truncated. With a higher limit (EDNS), and over TCP, the answer is
// complete.
func TestLargeAnswers(t *testing.T) {
	url, _ := newAPI(t, cluster())
	n := start(t, testSpec(), url, silent)
	n.until(t, known, dns.TypeA, dns.RcodeSuccess)
	for _, test := range []struct {
		network string
		size    uint16
		cut     bool
	}{{"udp", 0, true}, {"udp", 512, true}, {"udp", 1232, true}, {"udp", 4096, false}, {"tcp", 0, false}, {"tcp", 1232, false}} {
		m, err := n.ask(test.network, "big.default.svc.cluster.local.", dns.TypeA, test.size)
		if err != nil {
			t.Errorf("%+v: %v", test, err)
			continue
		}
		room := int(max(test.size, dns.MinMsgSize))
		if m.Truncated != test.cut || !test.cut && len(m.Answer) != crowd || test.network == "udp" && packed(t, m) > room {
			t.Errorf("%+v: truncated %t, %d of %d records, %d bytes", test, m.Truncated, len(m.Answer), crowd, packed(t, m))
		}
		if (m.IsEdns0() != nil) != (test.size > 0) {
			t.Errorf("%+v: EDNS in the answer: %v", test, m.IsEdns0())
		}
	}
	// Many clients use only the first address, so the order has to vary.
	first := map[string]bool{}
	for range 50 {
		m, err := n.ask("tcp", "big.default.svc.cluster.local.", dns.TypeA, 0)
		if err != nil {
			t.Fatal(err)
		}
		first[m.Answer[0].String()] = true
	}
	if len(first) < 2 {
		t.Error("the first of many addresses is always the same")
	}
}

func packed(t *testing.T, m *dns.Msg) int {
	t.Helper()
	m.Compress = true
	text, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// TestAPIDies checks that CoreDNS answers the cluster's names from memory while the API server is
// unavailable.
func TestAPIDies(t *testing.T) {
	o := newOutside(t)
	url, die := newAPI(t, cluster())
	ready := make(chan struct{}, 1)
	n := start(t, o.spec(), url, component.Announce(func(_ string, is bool, _ string) {
		if is {
			select {
			case ready <- struct{}{}:
			default: // ready is full already
			}
		}
	}))
	n.until(t, known, dns.TypeA, dns.RcodeSuccess)
	select {
	case <-ready:
	case <-time.After(waiting):
		t.Fatal("CoreDNS does not become ready")
	}
	die()
	for name, want := range map[string]string{
		"web.default.svc.cluster.local.":     "web.default.svc.cluster.local. 30 IN A 10.96.0.20",
		"db-0.db.default.svc.cluster.local.": "db-0.db.default.svc.cluster.local. 30 IN A 10.244.0.5",
		"nobody.default.svc.cluster.local.":  "NXDOMAIN",
		"out.default.svc.cluster.local.":     "db.corp.example. - IN A 192.0.2.3 | out.default.svc.cluster.local. 30 IN CNAME db.corp.example.",
		"example.org.":                       "example.org. - IN A 192.0.2.1",
		"www.corp.example.":                  "www.corp.example. - IN A 192.0.2.2",
	} {
		m, err := n.ask("udp", name, dns.TypeA, 0)
		if err != nil || describe(m) != want {
			t.Errorf("%s: %v, %v; want %s", name, m, err, want)
		}
	}
}

// TestStartsWithoutAPI starts CoreDNS without an API server. CoreDNS answers external names. It
// answers the cluster's names with SERVFAIL, because a client would cache NXDOMAIN.
func TestStartsWithoutAPI(t *testing.T) {
	o := newOutside(t)
	closed := testSpec()
	closed.DNS.StubDomains = o.spec().DNS.StubDomains
	for name, spec := range map[string]nodespec.Spec{"upstreams": o.spec(), "no upstreams": closed} {
		t.Run(name, func(t *testing.T) {
			unavailable := "http://" + freePort(t).String()
			n := start(t, spec, unavailable, silent)
			n.until(t, "www.corp.example.", dns.TypeA, dns.RcodeSuccess)
			example := "NXDOMAIN"
			if len(spec.DNS.Upstreams) > 0 {
				example = "example.org. - IN A 192.0.2.1"
			}
			for _, test := range []struct {
				name string
				kind uint16
				want string
			}{
				{"www.corp.example.", dns.TypeA, "www.corp.example. - IN A 192.0.2.2"},
				{"www.lab.corp.example.", dns.TypeA, "www.lab.corp.example. - IN A 192.0.2.4"},
				{"missing.corp.example.", dns.TypeA, "NXDOMAIN"},
				{"1.1.10.10.in-addr.arpa.", dns.TypePTR, "1.1.10.10.in-addr.arpa. - IN PTR www.lab.corp.example."},
				{"example.org.", dns.TypeA, example},
				{known, dns.TypeA, "SERVFAIL"},
				{known, dns.TypeAAAA, "SERVFAIL"},
				{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, "SERVFAIL"},
				{"10-244-0-7.default.pod.cluster.local.", dns.TypeA, "SERVFAIL"},
				{"20.0.96.10.in-addr.arpa.", dns.TypePTR, "SERVFAIL"},
				{reverse(t, "fd00:244::5"), dns.TypePTR, "SERVFAIL"},
			} {
				for _, network := range []string{"udp", "tcp"} {
					m, err := n.ask(network, test.name, test.kind, 0)
					if err != nil {
						t.Errorf("%s %s: %v", network, test.name, err)
					} else if got := describe(m); got != test.want {
						t.Errorf("%s %s: %s, want %s", network, test.name, got, test.want)
					}
				}
			}
			if o.every.about("20.0.96.10.in-addr.arpa.") {
				t.Error("an external resolver received a query for the cluster's addresses")
			}
		})
	}
}

// TestSeveralResolvers checks that resolvers are used in order: if a resolver fails, CoreDNS uses
// the next one. This also applies to a stub domain.
func TestSeveralResolvers(t *testing.T) {
	// Each try uses names that are in no cache, so a random choice of the resolver would change
	// the answers.
	const tries = 10
	var inside, public, all []string
	for n := range tries {
		inside = append(inside, fmt.Sprintf("w%d.corp.example. 300 IN A 192.0.2.2", n))
		public = append(public, fmt.Sprintf("w%d.example.org. 300 IN A 192.0.2.1", n))
	}
	all = append(append(all, inside...), public...)
	dead := &resolver{at: freePort(t)} // nothing listens there
	for name, test := range map[string]struct {
		servers []*resolver
		inside  string // the answer for names in corp.example
		public  string // the answer for names in example.org
	}{
		"only the first has the names of corp.example": {[]*resolver{newResolver(t, all...), newResolver(t, public...)}, "192.0.2.2", "192.0.2.1"},
		"only the second has them, and gets no query":  {[]*resolver{newResolver(t, public...), newResolver(t, all...)}, "NXDOMAIN", "192.0.2.1"},
		"the first refuses other names":                {[]*resolver{newFailing(t, dns.RcodeRefused, inside...), newResolver(t, public...)}, "192.0.2.2", "192.0.2.1"},
		"the first fails (SERVFAIL)":                   {[]*resolver{newFailing(t, dns.RcodeServerFailure), newResolver(t, all...)}, "192.0.2.2", "192.0.2.1"},
		"the first rejects this type of query":         {[]*resolver{newFailing(t, dns.RcodeNotImplemented), newResolver(t, all...)}, "192.0.2.2", "192.0.2.1"},
		"the first does not listen":                    {[]*resolver{dead, newResolver(t, all...)}, "192.0.2.2", "192.0.2.1"},
		"the second does not listen":                   {[]*resolver{newResolver(t, all...), dead}, "192.0.2.2", "192.0.2.1"},
		"all refuse":                                   {[]*resolver{newFailing(t, dns.RcodeRefused), newFailing(t, dns.RcodeRefused)}, "REFUSED", "REFUSED"},
		"only the third answers": {
			[]*resolver{newFailing(t, dns.RcodeRefused), newFailing(t, dns.RcodeServerFailure), newResolver(t, all...)}, "192.0.2.2", "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := newAPI(t, cluster())
			spec := testSpec()
			var servers []netip.AddrPort
			for _, r := range test.servers {
				servers = append(servers, r.at)
			}
			spec.DNS.Upstreams = servers
			spec.DNS.StubDomains = []nodespec.StubDomain{{Domain: "example.org", Servers: servers}}
			n := start(t, spec, url, silent)
			n.until(t, known, dns.TypeA, dns.RcodeSuccess)
			for try := range tries {
				for zone, want := range map[string]string{"corp.example.": test.inside, "example.org.": test.public} {
					host := fmt.Sprintf("w%d.%s", try, zone)
					m, err := n.ask([]string{"udp", "tcp"}[try%2], host, dns.TypeA, 0)
					if err != nil {
						t.Fatal(err)
					}
					if got := describe(m); !strings.HasSuffix(got, want) {
						t.Errorf("%s: %s, want %s", host, got, want)
					}
				}
			}
		})
	}
}
