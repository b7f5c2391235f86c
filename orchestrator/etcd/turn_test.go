package etcd

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/orlop-os/orlop/pkg/disruption"
)

// turnOf returns the request of a machine for the turn.
func turnOf(p *testMachine, force bool) disruption.TurnRequest {
	now := time.Now()
	return disruption.TurnRequest{
		Turn:  disruption.Turn{Machine: p.spec.Node.Name, Operation: disruption.Reboot, By: "dora", At: now, Ends: now.Add(disruption.TurnLife)},
		Life:  disruption.TurnLife,
		Force: force,
	}
}

// TestTurn checks that only one of three machines gets the turn. The machine has the turn until it
// returns it, or another machine takes the turn by force. The turn has a lease.
func TestTurn(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 91, 3)
	startAll(all)
	var asking sync.WaitGroup
	seen := make([]disruption.ControlPlane, len(all))
	for i, p := range all {
		asking.Go(func() { seen[i] = turns{p.local().members()}.take(t.Context(), turnOf(p, false)) })
	}
	asking.Wait()
	holder := seen[0].Turn.Machine
	for i, s := range seen {
		if !s.Counts() || s.Problem != "" || len(s.Members) != 3 || s.Turn.Machine != holder || holder == "" {
			t.Fatalf("%s sees %+v; according to the first machine, %s has the turn", all[i].spec.Node.Name, s, holder)
		}
		for _, m := range s.Members {
			if m.Own != (m.Name == all[i].spec.Node.Name) || m.Address == "" || m.APIServer == "" {
				t.Errorf("%s sees member %+v", all[i].spec.Node.Name, m)
			}
		}
	}
	take := func(p *testMachine, force bool) string {
		return turns{p.local().members()}.take(t.Context(), turnOf(p, force)).Turn.Machine
	}
	giveBack := func(p *testMachine) {
		t.Helper()
		if err := (turns{p.local().members()}).giveBack(t.Context(), p.spec.Node.Name); err != nil {
			t.Fatal(err)
		}
	}
	leases := func() (n int) {
		t.Helper()
		all[0].withClient(func(ctx context.Context, c *clientv3.Client) {
			list, err := c.Leases(ctx)
			if err != nil {
				t.Fatal(err)
			}
			n = len(list.Leases)
		})
		return n
	}
	first, second := all[0], all[1]
	if holder == second.spec.Node.Name {
		first, second = second, first
	} else if holder == all[2].spec.Node.Name {
		first = all[2]
	}
	giveBack(second) // this machine does not have the turn
	if got := take(second, false); got != holder {
		t.Errorf("%s had the turn, and without force it went to %s", holder, got)
	}
	if got := take(first, false); got != holder { // the holder renews the turn
		t.Errorf("%s lost the turn to %s at the renewal", holder, got)
	}
	if n := leases(); n != 1 {
		t.Errorf("%d leases for one turn", n)
	}
	if got := take(second, true); got != second.spec.Node.Name {
		t.Errorf("a machine took the turn by force, but %s has it", got)
	}
	giveBack(first)
	if got := take(first, false); got != second.spec.Node.Name {
		t.Errorf("a machine returned the turn of another machine; now %s has it", got)
	}
	giveBack(second)
	if n := leases(); n != 0 {
		t.Errorf("%d leases without a turn", n)
	}
	if got := take(first, false); got != holder {
		t.Errorf("the first machine took the returned turn, but %s has it", got)
	}

	// A turn without a lease, as in restored data, blocks no machine, even if the turn ends in
	// the future.
	giveBack(first)
	stored := func(lease clientv3.LeaseID) {
		t.Helper()
		turn := turnOf(second, false).Turn
		turn.Ends = time.Now().Add(24 * time.Hour)
		text, err := json.Marshal(turn)
		if err != nil {
			t.Fatal(err)
		}
		all[0].withClient(func(ctx context.Context, c *clientv3.Client) {
			if _, err := c.Put(ctx, turnKey, string(text), clientv3.WithLease(lease)); err != nil {
				t.Fatal(err)
			}
		})
	}
	stored(clientv3.NoLease)
	if got := take(first, false); got != holder {
		t.Errorf("a turn without a lease blocks: %s has the turn", got)
	}
	for _, p := range all { // the leader, and machines with an etcd that has to ask the leader
		p.withClient(func(ctx context.Context, c *clientv3.Client) {
			have, err := readTurn(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			if ended, err := have.ended(ctx, c); ended || err != nil {
				t.Errorf("%s: the turn that was just taken has ended: %v, %v", p.spec.Node.Name, ended, err)
			}
			have.lease++
			if ended, err := have.ended(ctx, c); !ended || err != nil {
				t.Errorf("%s: the turn without its lease has not ended: %v, %v", p.spec.Node.Name, ended, err)
			}
		})
	}

	// A machine that is no longer an etcd member returns its turn by a request to another
	// member.
	(turns{first.local().members()}).giveBackElsewhere(t.Context(), first.spec.Node.Name)
	if n := leases(); n != 0 {
		t.Errorf("%d leases after a return by another member", n)
	}

	// Without a quorum, no machine can take the turn.
	first.stop()
	if s := (turns{first.local().members()}).take(t.Context(), turnOf(first, false)); !s.Stopped || s.Leader || s.Problem == "" {
		t.Errorf("etcd does not run: %+v", s)
	}
	for _, p := range all {
		if p != first && p != second {
			p.stop()
		}
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
		s := turns{second.local().members()}.take(t.Context(), turnOf(second, false))
		if !s.Counts() && s.Turn == (disruption.Turn{}) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("without a quorum: %+v", s)
		}
	}
}

// TestLeads checks that exactly one of three machines leads, and that Leads returns an error if
// etcd does not run.
func TestLeads(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 93, 3)
	if _, err := Leads(t.Context(), all[0].dirs); err == nil {
		t.Error("without etcd: no error")
	}
	startAll(all)
	leaders := 0
	for _, p := range all {
		yes, err := Leads(t.Context(), p.dirs)
		if err != nil {
			t.Fatal(err)
		}
		if yes {
			leaders++
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
}
