package network

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/dhcp"
)

func TestProblems(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	nic := card("eth0", "02:00:00:00:00:01")
	nic.Index = 2
	ready := nic
	ready.Up, ready.Carrier = true, true
	pulled := nic
	pulled.Up = true
	searching := func(since time.Duration, phase dhcp.Phase, problem string) map[int]dhcp.Status {
		return map[int]dhcp.Status{2: {Phase: phase, Attempt: 3, Since: now.Add(-since), Problem: problem}}
	}
	for _, c := range []struct {
		name    string
		config  Config
		links   []Link
		clients map[int]dhcp.Status
		failed  []string
		want    []string
	}{
		{name: "no network card", links: []Link{veth("veth1")}, want: []string{"no Ethernet link: the machine has no network card that this system knows"}},
		{name: "no cable", links: []Link{pulled}, want: []string{"link eth0: no carrier: is the cable connected?"}},
		{name: "not up yet", links: []Link{nic}},
		{name: "a configured link is not there", links: []Link{ready}, config: Config{Links: []LinkConfig{{Name: "eth7"}, {MAC: mac("02:00:00:00:00:09")}}},
			want: []string{"link eth7: is configured but does not exist", "link 02:00:00:00:00:09: is configured but does not exist"}},
		{name: "no answer yet", links: []Link{ready}, clients: searching(time.Second, dhcp.Selecting, "")},
		{name: "no answer", links: []Link{ready}, clients: searching(12*time.Second, dhcp.Selecting, ""),
			want: []string{"link eth0: no DHCP lease after 12s: no DHCP server answers"}},
		{name: "refused", links: []Link{ready}, clients: searching(5*time.Second, dhcp.Requesting, `server 192.0.2.1 refuses: "no"`),
			want: []string{`link eth0: no DHCP lease after 5s: server 192.0.2.1 refuses: "no"`}},
		{name: "an operation failed", links: []Link{ready}, failed: []string{"link eth0: mtu 9000: cannot do: invalid argument"},
			want: []string{"link eth0: mtu 9000: cannot do: invalid argument"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := describe(observation{config: c.config, have: Have{Links: c.links}, clients: c.clients, failed: c.failed}, now)
			if !slices.Equal(s.Problems, c.want) {
				t.Errorf("got  %q\nwant %q", s.Problems, c.want)
			}
			if s.Converged != (len(c.failed) == 0) {
				t.Errorf("converged: %v", s.Converged)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	link := func(managed bool, addresses ...string) LinkState {
		l := LinkState{Managed: managed}
		for _, p := range prefixes(addresses...) {
			l.Addresses = append(l.Addresses, AddressState{Prefix: p})
		}
		return l
	}
	s := State{Links: []LinkState{
		link(true, "fe80::1/64", "2001:db8::1/64", "10.0.0.1/24"), link(true, "10.0.1.1/24"), link(false, "127.0.0.1/8", "10.9.9.9/24"),
	}}
	var got []string
	for _, a := range s.Addresses() {
		got = append(got, a.String())
	}
	if want := []string{"10.0.0.1", "10.0.1.1", "2001:db8::1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTimeServers(t *testing.T) {
	l := lease("192.0.2.5/24", "")
	l.NTP = []netip.Addr{netip.MustParseAddr("192.0.2.123")}
	o := observation{have: Have{Links: []Link{card("eth0", "02:00:00:00:00:01")}}, leases: map[string]*dhcp.Lease{"eth0": l}}
	if got := describe(o, time.Now()).TimeServers; !slices.Equal(got, []string{"192.0.2.123"}) {
		t.Errorf("leased: %q", got)
	}
	o.config.NTP = []string{"time.example.test"}
	if got := describe(o, time.Now()).TimeServers; !slices.Equal(got, []string{"time.example.test"}) {
		t.Errorf("configured: %q", got)
	}
	o.config.NTP, l.NTP = nil, nil
	if got := describe(o, time.Now()).TimeServers; len(got) != 0 {
		t.Errorf("nobody named a server, yet %q would be asked", got)
	}
}
