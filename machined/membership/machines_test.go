package membership

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestMachines checks the list of other machines on a control-plane machine: the other
// control-plane machines of the configuration, with the names that they have reported, and the
// members. It also checks calls of these machines.
func TestMachines(t *testing.T) {
	all, off := three(t)
	m, c := all[0], all[0].configuration()
	planes := []netip.Addr{netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.13")}
	if err := m.Ledger.recordControlPlane(planes[1], "m3", planes); err != nil {
		t.Fatal(err)
	}
	if err := m.Ledger.update(func(l trust.Ledger) (trust.Ledger, error) {
		for i, name := range []string{"w2", "w1"} {
			l.Members = append(l.Members, trust.Member{Name: name, Ticket: []string{"1a", "1b"}[i], Key: "sha256:" + string(slices.Repeat([]byte("a"), 64)),
				Address: []string{"10.0.0.22", "10.0.0.21"}[i], Joined: time.Now(), Renewed: time.Now(), Expires: time.Now().Add(time.Hour)})
		}
		return l, nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []Machine{
		{Address: planes[0], ControlPlane: true}, {Name: "m3", Address: planes[1], ControlPlane: true},
		{Name: "w1", Address: netip.MustParseAddr("10.0.0.21")}, {Name: "w2", Address: netip.MustParseAddr("10.0.0.22")},
	}
	if got := m.Peers.Machines(c); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := m.Peers.Machines(nil); len(got) != 2 {
		t.Errorf("without a configuration: %v", got)
	}

	// The first machine is off, the second answers, and the third does not exist.
	off.Store(planes[0], true)
	called := 0
	call := func(i int) error {
		return m.Peers.CallMachine(t.Context(), want[i], func(*client.Client) error { called++; return nil })
	}
	if err := call(0); !errors.Is(err, client.ErrUnreachable) {
		t.Error(err)
	}
	if err := call(1); err != nil || called != 1 {
		t.Errorf("%v, %d calls", err, called)
	}
	if err := call(2); !errors.Is(err, client.ErrUnreachable) {
		t.Error(err)
	}
}
