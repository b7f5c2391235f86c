package ra

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// t0 is the time at which each test starts.
var t0 = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

var one, two = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")

// option encodes an option of a router advertisement.
func option(kind byte, seconds uint32, content []byte) []byte {
	for len(content)%8 != 0 {
		content = append(content, 0)
	}
	b := binary.BigEndian.AppendUint32([]byte{kind, byte(1 + len(content)/8), 0, 0}, seconds)
	return append(b, content...)
}

func rdnss(seconds uint32, addrs ...string) []byte {
	var content []byte
	for _, a := range addrs {
		content = append(content, netip.MustParseAddr(a).AsSlice()...)
	}
	return option(typeServers, seconds, content)
}

func dnssl(seconds uint32, names ...string) []byte {
	var content []byte
	for _, n := range names {
		for label := range strings.SplitSeq(n, ".") {
			content = append(append(content, byte(len(label))), label...)
		}
		content = append(content, 0)
	}
	return option(typeDomains, seconds, content)
}

// say returns the resolvers, search domains and routers of a table as text.
func say(t Table) string {
	i := t.Info()
	return fmt.Sprintf("%v %v by %v", i.Servers, i.Search, i.Routers)
}

// TestTable checks the content of a table, and the time of its next expiry, after each event of a
// sequence. An event is an option of a router, or only the passage of time.
func TestTable(t *testing.T) {
	type event struct {
		after  time.Duration // time since the previous event
		router netip.Addr
		option []byte
		want   string
		next   time.Duration // time from t0 to the next expiry; 0 if no value expires
	}
	now, table := t0, Table{}
	for i, e := range []event{
		{0, one, rdnss(600, "2001:db8::53", "2001:db8::54"), "[2001:db8::53 2001:db8::54] [] by [fe80::1]", 10 * time.Minute},
		{0, one, dnssl(300, "lan.test"), "[2001:db8::53 2001:db8::54] [lan.test] by [fe80::1]", 5 * time.Minute},
		// a second router advertises a resolver of the first router
		{time.Minute, two, rdnss(120, "2001:db8::53"), "[2001:db8::53 2001:db8::54] [lan.test] by [fe80::1 fe80::2]", 3 * time.Minute},
		// the first router withdraws its resolvers; the resolver of the second router remains
		{0, one, rdnss(0, "2001:db8::53", "2001:db8::54"), "[2001:db8::53] [lan.test] by [fe80::2 fe80::1]", 3 * time.Minute},
		// the resolver of the second router has expired
		{2 * time.Minute, one, nil, "[] [lan.test] by [fe80::1]", 5 * time.Minute},
		{0, one, dnssl(forever, "lan.test"), "[] [lan.test] by [fe80::1]", 0},
		{24 * time.Hour, one, nil, "[] [lan.test] by [fe80::1]", 0},
	} {
		now = now.Add(e.after)
		if table = table.Expire(now); e.option != nil {
			o, err := Parse(e.option)
			if err != nil {
				t.Fatal(err)
			}
			table = table.Add(o, e.router, now)
		}
		next := time.Duration(0)
		if !table.Next().IsZero() {
			next = table.Next().Sub(t0)
		}
		if got := say(table); got != e.want || next != e.next {
			t.Errorf("event %d: %s, next expiry after %v; want %s, next expiry after %v", i, got, next, e.want, e.next)
		}
	}
}

// TestFull checks a full table: a new server replaces the server that expires first, but only if
// the new server expires later.
func TestFull(t *testing.T) {
	var table Table
	add := func(seconds uint32, addr string) {
		o, err := Parse(rdnss(seconds, addr))
		if err != nil {
			t.Fatal(err)
		}
		table = table.Add(o, one, t0)
	}
	for n := range maxServers {
		add(uint32(1000+n), fmt.Sprintf("2001:db8::%x", n+1))
	}
	add(1, "2001:db8::bad")
	add(forever, "2001:db8::53")
	got := table.Info().Servers
	if len(got) != maxServers || slices.Contains(got, netip.MustParseAddr("2001:db8::bad")) || slices.Contains(got, netip.MustParseAddr("2001:db8::1")) ||
		!slices.Contains(got, netip.MustParseAddr("2001:db8::53")) {
		t.Errorf("the table has the servers %v; want 2001:db8::53, and neither 2001:db8::1 nor 2001:db8::bad", got)
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name    string
		in      []byte
		want    string
		problem string
	}{
		{"an unknown option", option(3, 9, make([]byte, 24)), "[] []", ""},
		{"no bytes", nil, "[] []", "wrong length"},
		{"a wrong length", []byte{25, 2, 0, 0, 0, 0, 0, 1}, "[] []", "wrong length"},
		{"half an address", option(25, 9, make([]byte, 8)), "[] []", "does not match a list of addresses"},
		{"addresses that no resolver can have", rdnss(9, "::", "::1", "ff02::fb", "fe80::1", "::ffff:10.0.0.1", "2001:db8::53"), "[2001:db8::53] []", ":: is not usable"},
		{"a domain with a line break", dnssl(9, "a\nb", "lan.test"), "[] [lan.test]", "is not a name"},
	} {
		o, err := Parse(test.in)
		if got := fmt.Sprint(o.Servers, o.Domains); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.problem)
		}
	}
}

// FuzzOption parses arbitrary options and checks that the table stays within its limits.
func FuzzOption(f *testing.F) {
	f.Add(rdnss(600, "2001:db8::53"))
	f.Add(dnssl(600, "lan.test"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, _ := Parse(b)
		i := (Table{}).Add(o, one, t0).Info()
		if len(i.Servers) > maxServers || len(i.Search) > maxDomains || len(i.Routers) > 1 {
			t.Errorf("%d resolvers, %d domains, %d routers", len(i.Servers), len(i.Search), len(i.Routers))
		}
	})
}
