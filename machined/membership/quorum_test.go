package membership

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestReplicateRemoval checks that the key of an operator CA is not sufficient to bypass the
// approvals of calls: it can issue a certificate with the role of a machine, and this certificate
// can call ReplicateMembership with a removal. If removals are guarded, only a certificate of the
// machine CA may replicate them.
func TestReplicateRemoval(t *testing.T) {
	a := controlPlane(t)
	c := *a.configuration()
	ofMachineCA := pki.Fingerprint(c.Cluster.Spec.PKI.Machine.Cert.X509())
	for _, one := range []struct {
		rule   *config.Approvals
		issuer string
		want   codes.Code
	}{
		{nil, "sha256:other", codes.OK},
		{&config.Approvals{}, "sha256:other", codes.PermissionDenied},
		{&config.Approvals{Calls: []config.ApprovalCalls{config.CallsWipe}}, "sha256:other", codes.OK},
		{&config.Approvals{}, ofMachineCA, codes.OK},
	} {
		c.Machine.Spec.Trust.Approvals = one.rule
		changed := c
		a.config.Set(&changed)
		by := called("machine", "")
		by.Issuer = one.issuer
		_, err := a.ReplicateMembership(by, &api.ReplicateMembershipRequest{Revocations: []*api.Revocation{{Lineage: "1a", Machine: "w1", At: timestamppb.Now(), By: "CN=m2", Generation: 1}}})
		if status.Code(err) != one.want {
			t.Errorf("%+v, %s: %v", one.rule, one.issuer, err)
		}
	}
}

// TestReplicateMembership checks that ReplicateMembership stores a ticket that another machine has
// issued. A request with an invalid ticket, denial or revocation is rejected and changes nothing;
// the revocation of the name of a user is invalid here.
func TestReplicateMembership(t *testing.T) {
	a := controlPlane(t)
	ctx := called("machine", "")
	ticket := func(name string) *api.Ticket {
		return &api.Ticket{Serial: "1a", Name: name, At: timestamppb.Now(), Expires: timestamppb.New(time.Now().Add(time.Hour)), Voters: []string{strings.Repeat("0", 32)}, Quorum: 1}
	}
	if _, err := a.ReplicateMembership(ctx, &api.ReplicateMembershipRequest{Membership: &api.Membership{Tickets: []*api.Ticket{ticket("m1")}}}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a ticket for the name of this machine: %v", err)
	}
	denied := "sha256:" + strings.Repeat("1", 64)
	for _, r := range []*api.ReplicateMembershipRequest{
		{Denied: []string{denied}, Membership: &api.Membership{Tickets: []*api.Ticket{ticket("m1")}}},
		{Denied: []string{denied, "sha256:12"}, Membership: &api.Membership{Tickets: []*api.Ticket{ticket("w1")}}},
		{Denied: []string{denied}, Revocations: []*api.Revocation{{Name: "dora"}}},
	} {
		_, err := a.ReplicateMembership(ctx, r)
		if known := a.Ledger.Current(); err == nil || len(a.Requests.list) > 0 || len(known.Tickets) > 0 || len(known.Revoked) > 0 {
			t.Errorf("a rejected request: %v, denied %v, ledger %v", err, a.Requests.list, known)
		}
	}
	answer, err := a.ReplicateMembership(ctx, &api.ReplicateMembershipRequest{Membership: &api.Membership{Tickets: []*api.Ticket{ticket("w1")}}})
	if err != nil || len(answer.StoredTickets) != 1 || len(answer.Ledger) != 32 {
		t.Fatal(answer, err)
	}
	a.start()
	list := a.Server.ListMembers()
	if len(list.Tickets) != 1 {
		t.Errorf("after a restart: %v", list)
	}
	// This machine has no vote, because the ticket does not name its ledger.
	vouch := &api.VoteRequest{Candidate: &api.Member{Name: "w1", Ticket: "1a", Fingerprint: "sha256:" + strings.Repeat("0", 64), Address: "10.0.0.21"}}
	if answer, err := a.Server.Vote(ctx, vouch); err != nil || !strings.Contains(answer.RejectionReason, "is not a voter of the ticket") {
		t.Errorf("%v, %v", answer, err)
	}
	for _, r := range []*api.Revocation{{Name: "dora"}, {Name: "dora", Lineage: "1a"}, {}, {Lineage: "1a", Restored: true}, {Lineage: "0x"}} {
		if _, err := a.ReplicateMembership(ctx, &api.ReplicateMembershipRequest{Revocations: []*api.Revocation{r}}); err == nil {
			t.Errorf("the revocation %v is accepted", r)
		}
	}
	known := a.Ledger.currentLocked()
	if len(known.Revoked) != 0 {
		t.Errorf("revoked: %v", known.Revoked)
	}
	known, _, err = known.MergeRevocations([]trust.Revocation{{Lineage: "1a", Generation: 1}}, time.Now())
	if err != nil || len(known.Tickets) != 0 {
		t.Errorf("%v, %v", known.Tickets, err)
	}
}

// TestVote checks that a machine votes only for the first key that presents a ticket. It stores
// this key before it votes, so this is also true after a restart.
func TestVote(t *testing.T) {
	a := controlPlane(t)
	ctx := called("machine", "")
	membership, err := a.Server.GetMembership(ctx, &api.GetMembershipRequest{})
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("1", 32)
	ticket := &api.Membership{Tickets: []*api.Ticket{{Serial: "1a", Name: "w1", At: timestamppb.Now(), Expires: timestamppb.New(time.Now().Add(time.Hour)), Voters: []string{membership.Ledger, other}, Quorum: 2}}}
	vouch := func(key int, address string) *api.VoteResponse {
		t.Helper()
		answer, err := a.Server.Vote(ctx, &api.VoteRequest{Membership: ticket, Candidate: &api.Member{Name: "w1", Ticket: "1a", Fingerprint: fmt.Sprintf("sha256:%064x", key), Address: address}})
		if err != nil || answer.Ledger != membership.Ledger {
			t.Fatal(answer, err)
		}
		return answer
	}
	if r := vouch(1, "10.0.0.21").RejectionReason; !strings.Contains(r, "has not synced with all voters of the ticket") {
		t.Errorf("the vote before the sync with the others: %q", r)
	}
	a.Ledger.session.MarkSynced(other)
	// These are addresses of the voter itself, or of its pods.
	for _, address := range []string{"10.0.0.11", "10.244.0.1", "127.0.0.1"} {
		if r := vouch(1, address).RejectionReason; !strings.Contains(r, "which is the address of") {
			t.Errorf("%s: %q", address, r)
		}
	}
	if r := vouch(1, "10.0.0.21"); r.RejectionReason != "" || len(r.Bindings) != 1 || r.Bindings[0].Voter != membership.Ledger {
		t.Errorf("%v", r)
	}
	a.start()
	if r := vouch(2, "10.0.0.22"); !strings.Contains(r.RejectionReason, "another machine has presented it before") || len(r.Bindings) != 1 || r.Bindings[0].Key != fmt.Sprintf("sha256:%064x", 1) {
		t.Errorf("after a restart: %v", r)
	}
	if r := vouch(1, "10.0.0.22").RejectionReason; r != "" {
		t.Errorf("the same key again, from another address: %q", r)
	}
}

// TestSyncMembership checks that a machine stores the membership that it gets by a sync, and that
// the next sync does not transfer the same membership again.
func TestSyncMembership(t *testing.T) {
	a, b := controlPlane(t), controlPlane(t)
	ctx := called("machine", "")
	_, request := newRequest(t)
	if _, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request}); err != nil {
		t.Fatal(err)
	}
	var sent *api.GetMembershipResponse
	for range 2 {
		if _, err := b.Ledger.syncMembership(func(r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
			var err error
			sent, err = a.Server.GetMembership(ctx, r)
			return sent, err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if sent.Membership != nil {
		t.Errorf("the second sync transfers the membership again: %v", sent)
	}
	b.start()
	if list := b.Server.ListMembers(); len(list.Tickets) != 1 || list.Tickets[0].Name != "w1" {
		t.Errorf("%v", list)
	}
	if _, err := b.RemoveMember(from(admin, "10.0.0.5:1"), &api.RemoveMemberRequest{Name: "w9"}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
}

// TestNoQuorum checks that a machine cannot issue a ticket without a quorum, and that a machine
// outside the control plane is no voter.
func TestNoQuorum(t *testing.T) {
	a := controlPlane(t)
	now, _ := a.config.Get()
	now.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.13")}
	if of := a.Server.quorum.voters(now); !of.self || of.all() != 3 || of.majority() != 2 {
		t.Errorf("%+v", of)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, request := newRequest(t)
	_, err := a.Server.CreateTicket(ctx, from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "1 of 3 control-plane machines store the ticket; quorum: 2") {
		t.Error(err)
	}
	a.addresses.Set(at())
	if of := a.Server.quorum.voters(now); of.self || of.all() != 3 {
		t.Errorf("a machine outside the control plane: %+v", of)
	}
}

// TestThree checks a control plane of three machines. A ticket of one machine is valid at another
// while the first is off, but for a single key only. A member can renew its certificates while two
// of the three machines answer, but not while only one answers.
func TestThree(t *testing.T) {
	machines, off := three(t)
	a, b, c := machines[0], machines[1], machines[2]
	// hear syncs each machine with the two others.
	hear := func() {
		for _, m := range machines {
			now, _ := m.config.Get()
			if books, silent := m.Server.quorum.sync(t.Context(), m.Server.quorum.voters(now).others, 2); len(books) != 2 {
				t.Fatal(silent)
			}
		}
	}
	hear()
	newKey := func() *ecdsa.PrivateKey {
		key, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	request := func(key *ecdsa.PrivateKey) []byte {
		der, err := pki.NewRequest(key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	invite := func(by *machine, name string) *x509.Certificate {
		t.Helper()
		answer, err := by.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: name, Csr: request(newKey())})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.ControlPlanes) != 3 {
			t.Errorf("the ticket is stored on %v", answer.ControlPlanes)
		}
		ticket, err := x509.ParseCertificate(answer.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	join := func(at *machine, shown *x509.Certificate, key *ecdsa.PrivateKey, peer string) (*x509.Certificate, error) {
		r := &api.JoinRequest{MachineCsr: request(key), NodeCsrs: map[string][]byte{}}
		for _, l := range nodespec.NodeLeaves("w", nil) {
			r.NodeCsrs[l.Cert] = request(newKey())
		}
		answer, err := at.Join(from(shown, peer), r)
		if err != nil {
			return nil, err
		}
		return x509.ParseCertificate(answer.MachineCertificate)
	}
	ticket := invite(b, "w1")
	if _, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request(newKey())}); err != nil {
		t.Errorf("a second ticket for the name: %v", err)
	}
	off.Store(netip.MustParseAddr("10.0.0.12"), true)
	own, thief := newKey(), newKey()
	held, err := join(c, ticket, own, "10.0.0.21:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*machine{a, c} {
		if list := m.Server.ListMembers(); len(list.Members) != 1 || list.Members[0].Address != "10.0.0.21" {
			t.Errorf("%v", list)
		}
		if _, err := join(m, ticket, thief, "10.0.0.66:1"); err == nil || !strings.Contains(err.Error(), "another machine has used it") {
			t.Errorf("two keys: %v", err)
		}
		if _, err := m.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request(newKey())}); err == nil {
			t.Error("a ticket for the name of a member is issued")
		}
	}
	if held, err = join(a, held, own, "10.0.0.22:1"); err != nil || held.IPAddresses[1].String() != "10.0.0.22" {
		t.Fatalf("renewal: %v", err)
	}
	off.Store(netip.MustParseAddr("10.0.0.13"), true)
	if _, err := join(a, held, own, "10.0.0.22:1"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "1 of 3 control-plane machines voted for w1; quorum: 2") {
		t.Errorf("a renewal while one of three machines answers: %v", err)
	}
	off.Clear()
	hear()
	if list := b.Server.ListMembers(); len(list.Members) != 1 || list.Members[0].Address != "10.0.0.22" {
		t.Errorf("%v", list)
	}

	// Two keys present the same ticket at the same time, at different machines.
	for n := range 5 {
		ticket := invite(machines[n%3], fmt.Sprint("x", n))
		var got [2]error
		var both sync.WaitGroup
		for i, key := range []*ecdsa.PrivateKey{own, thief} {
			both.Go(func() { _, got[i] = join(machines[(n+i)%3], ticket, key, fmt.Sprintf("10.0.0.%d:1", 100+2*n+i)) })
		}
		both.Wait()
		if got[0] == nil && got[1] == nil {
			t.Fatal("two keys have joined with the same ticket")
		}
		hear()
	}
}

// TestControlPlaneNames checks that the name of a control-plane machine is reserved as long as the
// machine belongs to the control plane, even while it is off. A member with this name is reported.
func TestControlPlaneNames(t *testing.T) {
	machines, off := three(t)
	_, request := newRequest(t)
	invite := func(by *machine, name string) error {
		_, err := by.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: name, Csr: request})
		return err
	}
	for i, m := range machines[1:] {
		now, _ := m.config.Get()
		own := *now
		own.Machine.Metadata.Name = fmt.Sprint("m", i+2)
		m.config.Set(&own)
	}
	// learn lets each machine poll the others and record their names.
	learn := func() {
		for _, m := range machines {
			m.Sync.pollPeers(t.Context(), m.configuration())
		}
	}
	learn()
	off.Store(netip.MustParseAddr("10.0.0.13"), true)
	for _, m := range machines[:2] {
		if err := invite(m, "m3"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "the control plane has this name") {
			t.Errorf("a ticket for the name of a machine that is off: %v", err)
		}
		m.start() // machined restarts
		if err := invite(m, "m3"); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a ticket for this name after a restart of machined: %v", err)
		}
	}
	a := machines[0]
	told := &api.ReplicateMembershipRequest{Membership: &api.Membership{Tickets: []*api.Ticket{{
		Serial: "1a", Name: "m3", At: timestamppb.Now(), Expires: timestamppb.New(time.Now().Add(time.Hour)), Voters: []string{strings.Repeat("0", 32)}, Quorum: 1,
	}}}}
	if _, err := a.ReplicateMembership(called("machine", ""), told); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a replicated ticket for the name: %v", err)
	}
	vouch := &api.VoteRequest{Candidate: &api.Member{Name: "m3", Ticket: "1a", Fingerprint: "sha256:" + strings.Repeat("0", 64), Address: "10.0.0.21"}}
	if answer, err := a.Server.Vote(called("machine", ""), vouch); err != nil || !strings.Contains(answer.RejectionReason, "the control plane has this name") {
		t.Errorf("%v, %v", answer, err)
	}

	// A member has joined with the name before the control plane knew the machine.
	if err := a.Ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b.Members = append(b.Members, trust.Member{Name: "m3", Ticket: "2b", Key: "sha256:" + strings.Repeat("0", 64), Address: "10.0.0.22"})
		return b, nil
	}); err != nil {
		t.Fatal(err)
	}
	learn()
	learn()
	for i, m := range machines[:2] { // the second machine gets the member by sync
		if said := m.added("it joined with a name of the control plane"); said != 1 {
			t.Errorf("machine %d has reported the member %d times, want once", i, said)
		}
	}

	// The machine m3 is removed from the control plane.
	b := machines[1]
	now, _ := b.config.Get()
	now.Cluster.Spec.ControlPlanes = now.Cluster.Spec.ControlPlanes[:2]
	if err := b.Ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, _, err := b.Remove("m3", time.Now(), "admin")
		return b, err
	}); err != nil {
		t.Fatal(err)
	}
	// A ticket for the name m3 can be issued only after the Node m3 was deleted.
	var asked []string
	b.deleteNodes = func(_ context.Context, names []string) ([]string, error) {
		asked = names
		return nil, errors.New("the API server does not answer")
	}
	if err := invite(b, "m3"); status.Code(err) != codes.Unavailable || !slices.Equal(asked, []string{"m3"}) {
		t.Errorf("a ticket while the Node may exist: %v, requested deletions %q", err, asked)
	}
	b.deleteNodes = func(context.Context, []string) ([]string, error) { return nil, nil }
	if err := invite(b, "m3"); err != nil {
		t.Errorf("a ticket after the Node was deleted: %v", err)
	}
}

// TestFirstAnswer checks that firstAnswer calls the machines one after the other until one answers.
// If none answers, the error contains the errors of all machines.
func TestFirstAnswer(t *testing.T) {
	var asked []string
	answer, err := firstAnswer(t.Context(), []string{"a", "b", "c"}, func(_ context.Context, from string) (*api.JoinResponse, error) {
		if asked = append(asked, from); from != "b" {
			return nil, fmt.Errorf("%s: no", from)
		}
		return &api.JoinResponse{}, nil
	})
	if err != nil || answer == nil || len(asked) != 2 {
		t.Errorf("%v, called %v", err, asked)
	}
	if _, err := firstAnswer(t.Context(), []string{"a", "c"}, func(_ context.Context, from string) (*api.JoinResponse, error) {
		return nil, fmt.Errorf("%s: no", from)
	}); err == nil || err.Error() != "a: no; c: no" {
		t.Error(err)
	}
}
