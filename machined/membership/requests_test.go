package membership

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestJoinRequests sends the join request of a machine without a ticket. It checks that an operator
// can list, deny and approve the request, and that the approved machine gets a ticket with which it
// joins.
func TestJoinRequests(t *testing.T) {
	a := controlPlane(t)
	admin := from(admin, "10.0.0.5:1")
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	print := pki.KeyFingerprint(&key.PublicKey)
	ask := func(name, peer string, request []byte) *api.RequestJoinResponse {
		t.Helper()
		return a.Requests.RequestJoin(&api.RequestJoinRequest{Name: name, Csr: request, Peer: peer})
	}
	const peer = "10.0.0.21:4711"

	// If the configuration does not permit join requests, all of them are rejected.
	if r := ask("w1", peer, request); r.State != string(joinrequest.Rejected) || !strings.Contains(r.Reason, "accepts no join requests") {
		t.Errorf("%v", r)
	}
	if _, err := a.Requests.ListPending(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v", err)
	}
	if _, err := a.CreateTicket(admin, &api.CreateTicketRequest{Name: "w1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "joinRequests") {
		t.Errorf("%v", err)
	}
	now, _ := a.config.Get()
	c := *now
	cluster := *c.Cluster
	cluster.Spec.JoinRequests = true
	c.Cluster = &cluster
	a.config.Set(&c)

	// After the configuration permits join requests, an operator gets the configuration of a
	// worker. It contains no secret.
	made, err := a.CreateTicket(admin, &api.CreateTicketRequest{Name: "w1"})
	if err != nil || len(made.Certificate) > 0 {
		t.Fatal(made, err)
	}
	worker, problems := config.Parse("w1", made.Documents)
	if len(problems) > 0 || !worker.Cluster.Spec.JoinRequests || strings.Contains(string(made.Documents), "KEY-") {
		t.Fatalf("%v, %s", problems, made.Documents)
	}
	if problems := config.Check(worker.WithJoin(config.Join{From: made.ControlPlanes})); len(problems) > 0 {
		t.Error(problems)
	}

	for what, refused := range map[string]*api.RequestJoinResponse{
		"the name of the control-plane machine":    ask("m1", peer, request),
		"an invalid name":                          ask("W 1", peer, request),
		"an invalid CSR":                           ask("w1", peer, []byte("key")),
		"the address of a pod":                     ask("w1", "10.244.0.9:1", request),
		"the address of the control-plane machine": ask("w1", "10.0.0.11:1", request),
		"an invalid address":                       ask("w1", "somewhere", request),
		"the loopback address":                     ask("w1", "127.0.0.1:1", request),
	} {
		if refused.State != string(joinrequest.Rejected) || refused.Reason == "" {
			t.Errorf("%s: %v", what, refused)
		}
	}
	if r := ask("w1", peer, request); r.State != string(joinrequest.Pending) {
		t.Errorf("%v", r)
	}
	list, err := a.Requests.ListPending()
	if err != nil || len(list.Machines) != 1 || list.Machines[0].Fingerprint != print || list.Machines[0].Address != "10.0.0.21" {
		t.Fatal(list, err)
	}
	wrong := "sha256:" + strings.Repeat("0", 64)
	if _, err := a.Requests.Approve(t.Context(), admin, &api.ApproveRequest{Name: "w1", Fingerprint: wrong}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "another fingerprint") {
		t.Errorf("%v", err)
	}
	if _, err := a.Requests.Approve(t.Context(), admin, &api.ApproveRequest{Name: "w1", Fingerprint: "sha256:12"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	if _, err := a.Requests.Deny(t.Context(), &api.DenyRequest{Name: "w1", Fingerprint: print}); err != nil {
		t.Error(err)
	}
	if r := ask("w1", peer, request); r.State != string(joinrequest.Denied) {
		t.Errorf("%v", r)
	}
	if list, err = a.Requests.ListPending(); err != nil || len(list.Machines) != 0 {
		t.Error(list, err)
	}
	if open := a.Server.ListMembers(); len(open.Tickets) != 0 {
		t.Errorf("tickets before an approval: %v", open)
	}

	// After an approval, the machine gets a ticket. A revocation removes the ticket, and a new
	// approval creates another one.
	approve := func() *x509.Certificate {
		t.Helper()
		if _, err := a.Requests.Approve(t.Context(), admin, &api.ApproveRequest{Name: "w1", Fingerprint: print}); err != nil {
			t.Fatal(err)
		}
		r := ask("w1", peer, request)
		ticket, err := x509.ParseCertificate(r.Certificate)
		if err != nil || r.State != string(joinrequest.Approved) || !pki.Matches(ticket, key) || ticket.Subject.CommonName != "w1" {
			t.Fatal(r, err)
		}
		return ticket
	}
	approve()
	if err := a.Ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		next, _, err := b.Remove("w1", time.Now(), "CN=admin")
		return next, err
	}); err != nil {
		t.Fatal(err)
	}
	if r := ask("w1", peer, request); r.State != string(joinrequest.Pending) {
		t.Errorf("%v", r)
	}
	ticket := approve()
	if _, err := a.Requests.Deny(t.Context(), &api.DenyRequest{Name: "w1", Fingerprint: print}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nodes remove w1") {
		t.Errorf("a denial after the approval: %v", err)
	}

	// The machine joins with the ticket. Afterwards, no other machine can request its name.
	r := &api.JoinRequest{MachineCsr: request, NodeCsrs: map[string][]byte{}}
	for _, l := range nodespec.NodeLeaves("w1", nil) {
		leaf, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		if r.NodeCsrs[l.Cert], err = pki.NewRequest(leaf); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Join(from(ticket, peer), r); err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	others, err := pki.NewRequest(other)
	if err != nil {
		t.Fatal(err)
	}
	if r := ask("w1", peer, others); r.State != string(joinrequest.Rejected) || !strings.Contains(r.Reason, "nodes remove w1") {
		t.Errorf("%v", r)
	}
	// The machine that has joined can repeat its request, and gets the same ticket. It needs this
	// after a power cut before the certificates arrived. Another approval changes nothing.
	if r := ask("w1", peer, request); r.State != string(joinrequest.Approved) || !bytes.Equal(r.Certificate, ticket.Raw) {
		t.Errorf("%v", r)
	}
	if _, err := a.Join(from(ticket, peer), r); err != nil {
		t.Error(err)
	}
	if _, err := a.Requests.Approve(t.Context(), admin, &api.ApproveRequest{Name: "w1", Fingerprint: print}); err != nil {
		t.Error(err)
	}
	// After a restart, the control-plane machine does not know the ticket. An operator then has to
	// remove the machine.
	a.start()
	if r := ask("w1", peer, request); r.State != string(joinrequest.Rejected) || !strings.Contains(r.Reason, "nodes remove w1") {
		t.Errorf("%v", r)
	}
}

// TestJoinRequestsAreFew checks that the requests from an address are limited, and that requests
// from another address are not affected.
func TestJoinRequestsAreFew(t *testing.T) {
	a := controlPlane(t)
	last := ""
	for range 30 {
		last = a.Requests.RequestJoin(&api.RequestJoinRequest{Name: "w1", Peer: "10.0.0.21:1"}).Reason
	}
	other := a.Requests.RequestJoin(&api.RequestJoinRequest{Name: "w1", Peer: "10.0.0.22:1"})
	if !strings.Contains(last, "too many requests") || strings.Contains(other.Reason, "too many requests") {
		t.Errorf("%q, %v", last, other)
	}
}

// TestARackAsks checks that 40 machines of the same IPv6 network can each send a request: the
// common limit of a network is high enough.
func TestARackAsks(t *testing.T) {
	a := controlPlane(t)
	for n := range 40 {
		answer := a.Requests.RequestJoin(&api.RequestJoinRequest{Name: "w1", Peer: fmt.Sprintf("[fd00::%x]:1", n+1)})
		if strings.Contains(answer.Reason, "too many requests") {
			t.Fatalf("machine %d: %v", n, answer)
		}
	}
}

// TestDeniedByOthers checks that a machine stores the denial of a key that another control-plane
// machine replicates, and rejects an invalid fingerprint.
func TestDeniedByOthers(t *testing.T) {
	a := controlPlane(t)
	if _, err := a.ReplicateMembership(called("machine", ""), &api.ReplicateMembershipRequest{Denied: []string{"sha256:12"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	print := "sha256:" + strings.Repeat("1", 64)
	if _, err := a.ReplicateMembership(called("machine", ""), &api.ReplicateMembershipRequest{Denied: []string{print}}); err != nil || !a.Requests.list[print].Denied {
		t.Errorf("%v, %v", err, a.Requests.list)
	}
}

// TestRequestLimits checks that a flood of join requests, from one address or from many addresses
// of a network, does not reduce the number of requests that other machines can send.
func TestRequestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRequests(nil, nil)
		allowed := func(n int, peer func(i int) string) (count int) {
			for i := range n {
				if q.callers.Allow(peer(i)) {
					count++
				}
			}
			return count
		}
		if n := allowed(1000, func(int) string { return "[2001:db8::1]:1" }); n != 20 {
			t.Errorf("%d requests of an address are allowed at the same time, want 20", n)
		}
		if n := allowed(20, func(int) string { return "[2001:db8::2]:1" }); n != 20 {
			t.Errorf("after a flood of an address, %d requests of another address of the network are allowed", n)
		}
		if n := allowed(5000, func(i int) string { return fmt.Sprintf("[2001:db8::1:%x]:1", i) }); n != 160 {
			t.Errorf("%d requests of a network are allowed at the same time, want 160", n)
		}
		if n := allowed(20, func(i int) string { return fmt.Sprintf("10.0.0.%d:1", i%2) }); n != 20 {
			t.Errorf("after a flood of a network, %d requests of another network are allowed", n)
		}
	})
}

// TestCheckSource checks that CheckSource rejects the address of a machine of the cluster or of a
// pod, and an address that does not identify a single machine.
func TestCheckSource(t *testing.T) {
	a := controlPlane(t)
	if err := a.Ledger.update(func(l trust.Ledger) (trust.Ledger, error) {
		l.Members = append(l.Members, trust.Member{Name: "w1", Address: "10.0.0.21"})
		return l, nil
	}); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"10.0.0.77":  "",
		"10.0.0.21":  "machine w1; if w1 is gone, an operator removes it first (`orlopctl nodes remove w1`)",
		"10.244.0.9": "a pod or a service",
		"10.0.0.11":  "the control plane",
		"127.0.0.1":  "no single machine",
		"fe80::1":    "no single machine",
	} {
		err := a.Requests.CheckSource(netip.MustParseAddr(address))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	a.config.Set(nil)
	if err := a.Requests.CheckSource(netip.MustParseAddr("10.0.0.77")); err == nil || !strings.Contains(err.Error(), "belongs to no cluster") {
		t.Errorf("without a configuration: %v", err)
	}
}
