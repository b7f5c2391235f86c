package membership

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// nodes is a fake API server with Nodes. It records the requests for deletions.
type nodes struct {
	have   []string
	asked  [][]string
	refuse error
}

// forget deletes Nodes, and returns the names of those that existed.
func (n *nodes) forget(ctx context.Context, names []string) ([]string, error) {
	if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
		return nil, errors.New("the context has no deadline, or ends with the caller")
	}
	n.asked = append(n.asked, names)
	if n.refuse != nil {
		return nil, n.refuse
	}
	var there []string
	for _, name := range names {
		if i := slices.Index(n.have, name); i >= 0 {
			n.have, there = slices.Delete(n.have, i, i+1), append(there, name)
		}
	}
	return there, nil
}

// recordRemovals changes the ledger of machine a: machines with these names joined and were removed
// at the same time.
func recordRemovals(t *testing.T, a *machine, at time.Time, names ...string) {
	t.Helper()
	if err := a.Ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		for i, name := range names {
			b.Members = append(b.Members, trust.Member{Name: name, Ticket: "1" + string(rune('a'+i)), Address: "10.0.0.21", Joined: at, Renewed: at, Expires: at.Add(memberTTL)})
		}
		var err error
		for _, name := range names {
			if b, _, err = b.Remove(name, at, "admin"); err != nil {
				return b, err
			}
		}
		return b, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestCollectNodes checks that the Node of a removed machine is deleted, even if it is created
// again. The checks for the Node end after nodeGCChecks checks without a Node. A name that now
// belongs to another machine is skipped.
func TestCollectNodes(t *testing.T) {
	a, n := controlPlane(t), &nodes{have: []string{"w1"}}
	a.deleteNodes = n.forget
	a.NodeGC.Collect(t.Context())
	if len(n.asked) != 0 {
		t.Errorf("no machine was removed, but the check requests %v", n.asked)
	}
	recordRemovals(t, a, time.Now(), "w1", "m1") // m1 is the name of the control-plane machine
	// looks makes more calls of Collect than necessary, and checks that exactly want of them
	// request the deletion of w1, and that no Node remains.
	looks := func(want int) {
		t.Helper()
		n.asked = nil
		for range want + 5 {
			a.NodeGC.Collect(t.Context())
		}
		if len(n.asked) != want || len(n.have) != 0 {
			t.Errorf("%d checks, want %d; the Nodes are %v", len(n.asked), want, n.have)
		}
		for _, names := range n.asked {
			if !slices.Equal(names, []string{"w1"}) {
				t.Errorf("the check requests %v", names)
			}
		}
	}
	if !a.NodeGC.hasNew(a.NodeGC.removedMachines()) {
		t.Error("hasNew returns false before the first check")
	}
	looks(1 + nodeGCChecks)
	if a.NodeGC.hasNew(a.NodeGC.removedMachines()) {
		t.Error("hasNew returns true after the check")
	}
	a.NodeGC.restart([]string{"1a"})
	if !a.NodeGC.hasNew(a.NodeGC.removedMachines()) {
		t.Error("hasNew returns false, although the machine was removed again")
	}
	for range 3 {
		a.NodeGC.Collect(t.Context())
	}
	n.have = []string{"w1"} // created by an API server that did not have the revocation yet
	looks(1 + nodeGCChecks)

	// A check without an answer of the API server is repeated.
	a.NodeGC.restart([]string{"1a"})
	n.refuse = errors.New("the API server does not answer")
	for range 2 * nodeGCChecks {
		a.NodeGC.Collect(t.Context())
	}
	if failures := a.added("the API server does not answer"); failures != 1 {
		t.Errorf("%d events that the API server does not answer", failures)
	}
	n.refuse, n.have = nil, []string{"w1"}
	looks(1 + nodeGCChecks)

	// After a boot, the checks start again, because their progress is unknown. There are no checks
	// for machines with an expired certificate.
	a.NodeGC.remaining = nil
	looks(nodeGCChecks)
	long := controlPlane(t)
	long.deleteNodes = n.forget
	recordRemovals(t, long, time.Now().Add(-memberTTL-time.Hour), "w1")
	n.asked = nil
	if long.NodeGC.Collect(t.Context()); len(n.asked) != 0 {
		t.Errorf("the check requests %v", n.asked)
	}

	// The name w1 now belongs to another machine, which has a ticket.
	_, request := newRequest(t)
	if _, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request}); err != nil {
		t.Fatal(err)
	}
	n.have, n.asked = []string{"w1"}, nil
	a.NodeGC.Collect(t.Context())
	if there, err := a.NodeGC.Delete(t.Context(), a.configuration(), []string{"w1", "m1"}); err != nil || len(there)+len(n.asked) != 0 {
		t.Errorf("the Node of a machine with a new ticket: deleted %v, requested %v, error %v", there, n.asked, err)
	}
}

// TestWithoutReassigned checks that the revocations for the API server contain the name of a
// removed machine only until the name belongs to another machine.
func TestWithoutReassigned(t *testing.T) {
	a := controlPlane(t)
	// m1 is the name of the control-plane machine
	recordRemovals(t, a, time.Now(), "w1", "w2", "m1")
	names := func() (all []string) {
		t.Helper()
		list := a.Ledger.RevocationsForAPIServer(a.configuration())
		if len(list) != 3 {
			t.Errorf("revocations: %v", list)
		}
		for _, r := range list {
			if r.Machine != "" {
				all = append(all, r.Machine)
			}
		}
		slices.Sort(all)
		return all
	}
	if got := names(); !slices.Equal(got, []string{"w1", "w2"}) {
		t.Errorf("the removed names are %v", got)
	}
	changes := a.Ledger.changes.Watch()
	changes.Current()
	a.deleteNodes = func(context.Context, []string) ([]string, error) { return nil, nil }
	_, request := newRequest(t)
	if _, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changes.Changed(): // the API server gets the new revocations after this signal
	default:
		t.Error("the ledger signals no change")
	}
	if got := names(); !slices.Equal(got, []string{"w2"}) {
		t.Errorf("the removed names are %v", got)
	}
	if len(a.Ledger.Current().RemovedSince(time.Time{}, time.Now())) != 2 {
		t.Error("the ledger has lost names of removed machines")
	}
}

// TestRevocationsWithoutCluster checks that a machine without a configuration, or without a Cluster
// document, has no revocations for an API server, although its ledger contains a removed machine.
func TestRevocationsWithoutCluster(t *testing.T) {
	a := controlPlane(t)
	recordRemovals(t, a, time.Now(), "w1")
	for _, c := range []*config.Config{nil, config.New("m1", config.RoleControlPlane)} {
		if got := a.Ledger.RevocationsForAPIServer(c); len(got) != 0 {
			t.Errorf("revoked for an API server: %v", got)
		}
	}
}

// TestNameInUse checks that Reassigned returns true for the name of this machine and for the name
// of an unused ticket.
func TestNameInUse(t *testing.T) {
	a := controlPlane(t)
	_, request := newRequest(t)
	if _, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"m1": true, "w1": true, "m2": false} {
		if got := a.NodeGC.Reassigned(a.configuration(), name); got != want {
			t.Errorf("Reassigned(%s) is %t", name, got)
		}
	}
}

// TestDeleteNodesSyncs checks that a Node is not deleted if the ledger of another control-plane
// machine has a ticket for its name, even if the ledger of this machine does not have the ticket
// yet. A quorum of control-plane machines must answer before a deletion.
func TestDeleteNodesSyncs(t *testing.T) {
	machines, off := three(t)
	a, b, n := machines[0], machines[1], &nodes{have: []string{"w1"}}
	a.deleteNodes = n.forget
	recordRemovals(t, a, time.Now(), "w1")
	for _, last := range []byte{12, 13} {
		off.Store(netip.AddrFrom4([4]byte{10, 0, 0, last}), true)
	}
	if _, err := a.NodeGC.Delete(t.Context(), a.configuration(), []string{"w1"}); err == nil || !strings.Contains(err.Error(), "1 of 3 control-plane machines answered") || len(n.asked) != 0 {
		t.Errorf("a machine deletes a Node without a quorum: %v", err)
	}
	off.Clear()
	off.Store(netip.MustParseAddr("10.0.0.11"), true)
	_, request := newRequest(t)
	if _, err := b.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request}); err != nil {
		t.Fatal(err)
	}
	if there, err := a.NodeGC.Delete(t.Context(), a.configuration(), []string{"w1"}); err != nil || len(there) != 0 || len(n.have) != 1 {
		t.Errorf("deleted %v, %v", there, err)
	}
}

// TestRemoveAgain checks that the Node of a removed machine is deleted even if the removal does not
// become effective (enforce fails) and its caller disconnects. The removal can be repeated.
func TestRemoveAgain(t *testing.T) {
	a, n := controlPlane(t), &nodes{have: []string{"w1"}}
	a.deleteNodes = n.forget
	recordRemovals(t, a, time.Now(), "w0")
	a.enforce = func() error { return errors.New("the certificate cannot be created") }
	for range 30 {
		a.NodeGC.Collect(t.Context())
	}
	n.asked = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"w0", "w0"} {
		_, err := a.Server.RemoveMember(ctx, from(admin, "10.0.0.5:1"), &api.RemoveMemberRequest{Name: name})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "it is stored, but not effective yet") {
			t.Error(err)
		}
	}
	if len(n.asked) != 2 {
		t.Errorf("%d requests for the Node, want 2", len(n.asked))
	}
	if a.NodeGC.Collect(t.Context()); len(n.asked) != 3 {
		t.Error("the Node is not checked again")
	}
	if _, err := a.Server.RemoveMember(ctx, from(admin, "10.0.0.5:1"), &api.RemoveMemberRequest{Name: "w9"}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
}

// TestCheckControlPlane checks that checkControlPlane rejects the certificate of a worker, and that
// checkControlPlane and checkMember reject a revoked certificate.
func TestCheckControlPlane(t *testing.T) {
	a := controlPlane(t)
	recordRemovals(t, a, time.Now(), "w1") // with ticket 1a
	ca, err := pki.NewCA("machines", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, name, ticket string
		controls, still    bool // accepted as a control-plane machine, as a machine of the cluster
	}{{"a control-plane machine", "m2", "", true, true}, {"a worker", "w2", "2b", false, true}, {"a removed worker", "w1", "1a", false, false}} {
		leaf, err := ca.Issue(pki.Spec{CN: c.name, O: []string{pki.RoleMachine}, Usage: pki.Both, TTL: time.Hour, Ticket: c.ticket})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Peers.checkControlPlane(leaf.Cert); (err == nil) != c.controls {
			t.Errorf("%s, as a control-plane machine: %v", c.what, err)
		}
		if err := a.Peers.checkMember(leaf.Cert); (err == nil) != c.still {
			t.Errorf("%s, as a machine of the cluster: %v", c.what, err)
		}
	}
}

// TestNodeGCMeanwhile checks that a removal, or a restore of the etcd data, restarts the checks for
// a Node even if it happens during a check. The end of this check must not undo the restart.
func TestNodeGCMeanwhile(t *testing.T) {
	gone := []trust.RemovedMachine{{Ticket: "1", Name: "a"}}
	for what, meanwhile := range map[string]func(*NodeGC){
		"a restore": func(f *NodeGC) { f.RestartAll() },
		"a removal": func(f *NodeGC) { f.restart([]string{"1"}) },
	} {
		f := &NodeGC{}
		names := f.Due(gone)
		meanwhile(f)
		f.record(gone, names, nil)
		if !f.hasNew(gone) || !slices.Equal(f.Due(gone), []string{"a"}) {
			t.Errorf("%s: the checks for the Node do not start again", what)
		}
	}
}
