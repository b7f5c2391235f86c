package main

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/joinrequest"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestJoinRequests: a machine without a ticket asks, is listed, denied, approved, and joins with
// the key that it has shown, and no other does.
func TestJoinRequests(t *testing.T) {
	a := controlPlane(t)
	a.m.asking = newApplicants()
	door := doorAPI{m: a.m}
	admin := from(t, &x509.Certificate{Subject: pkix.Name{CommonName: "admin", Organization: []string{pki.RoleAdmin}}, SerialNumber: big.NewInt(1)}, "10.0.0.5:1")
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	print := pki.KeyFingerprint(&key.PublicKey)
	ask := func(name, peer string, request []byte) *api.AskResponse {
		t.Helper()
		answer, err := door.Ask(t.Context(), &api.AskRequest{Name: name, Request: request, Peer: peer})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	const peer = "10.0.0.21:4711"

	// Where it is not configured nobody can ask, and nobody is told that somebody could.
	if r := ask("w1", peer, request); r.Standing != string(joinrequest.Rejected) || !strings.Contains(r.Reason, "takes no requests") {
		t.Errorf("%v", r)
	}
	if _, err := a.Pending(admin, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v", err)
	}
	if _, err := a.Invite(admin, &api.InviteRequest{Name: "w1"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "joinRequests") {
		t.Errorf("%v", err)
	}
	now, _ := a.m.config.Get()
	c := *now.config
	cluster := *c.Cluster
	cluster.Spec.JoinRequests = true
	c.Cluster = &cluster
	a.m.config.Set(applied{config: &c})

	// Its configuration has no secret at all, and says that it may ask.
	made, err := a.Invite(admin, &api.InviteRequest{Name: "w1"})
	if err != nil || len(made.Certificate) > 0 {
		t.Fatal(made, err)
	}
	worker, problems := config.Parse("w1", made.Documents)
	if len(problems) > 0 || !worker.Cluster.Spec.JoinRequests || strings.Contains(string(made.Documents), "KEY") {
		t.Fatalf("%v, %s", problems, made.Documents)
	}
	if problems := config.Check(worker.WithJoin(config.Join{From: made.From})); len(problems) > 0 {
		t.Error(problems)
	}

	for what, refused := range map[string]*api.AskResponse{
		"own name":     ask("m1", peer, request),
		"no name":      ask("W 1", peer, request),
		"no key":       ask("w1", peer, []byte("key")),
		"a pod":        ask("w1", "10.244.0.9:1", request),
		"itself":       ask("w1", "10.0.0.11:1", request),
		"no address":   ask("w1", "somewhere", request),
		"the loopback": ask("w1", "127.0.0.1:1", request),
	} {
		if refused.Standing != string(joinrequest.Rejected) || refused.Reason == "" {
			t.Errorf("%s: %v", what, refused)
		}
	}
	if r := ask("w1", peer, request); r.Standing != string(joinrequest.Pending) {
		t.Errorf("%v", r)
	}
	list, err := a.Pending(admin, nil)
	if err != nil || len(list.Machines) != 1 || list.Machines[0].Fingerprint != print || list.Machines[0].Address != "10.0.0.21" {
		t.Fatal(list, err)
	}
	wrong := "sha256:" + strings.Repeat("0", 64)
	if _, err := a.Approve(admin, &api.ApproveRequest{Name: "w1", Fingerprint: wrong}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "another fingerprint") {
		t.Errorf("%v", err)
	}
	if _, err := a.Approve(admin, &api.ApproveRequest{Name: "w1", Fingerprint: "sha256:12"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	if _, err := a.Deny(admin, &api.DenyRequest{Name: "w1", Fingerprint: print}); err != nil {
		t.Error(err)
	}
	if r := ask("w1", peer, request); r.Standing != string(joinrequest.Denied) {
		t.Errorf("%v", r)
	}
	if list, err = a.Pending(admin, nil); err != nil || len(list.Machines) != 0 {
		t.Error(list, err)
	}
	if open, err := a.Members(admin, nil); err != nil || len(open.Tickets) != 0 {
		t.Errorf("before anybody is approved: %v, %v", open, err)
	}

	// Approved it gets a ticket, which goes when it is taken back, and comes anew.
	approve := func() *x509.Certificate {
		t.Helper()
		if _, err := a.Approve(admin, &api.ApproveRequest{Name: "w1", Fingerprint: print}); err != nil {
			t.Fatal(err)
		}
		r := ask("w1", peer, request)
		ticket, err := x509.ParseCertificate(r.Certificate)
		if err != nil || r.Standing != string(joinrequest.Approved) || !pki.Matches(ticket, key) || ticket.Subject.CommonName != "w1" {
			t.Fatal(r, err)
		}
		return ticket
	}
	approve()
	if err := a.m.book.update(func(b trust.Ledger) (trust.Ledger, error) {
		next, _, err := b.Remove("w1", time.Now(), "CN=admin")
		return next, err
	}); err != nil {
		t.Fatal(err)
	}
	if r := ask("w1", peer, request); r.Standing != string(joinrequest.Pending) {
		t.Errorf("%v", r)
	}
	ticket := approve()
	if _, err := a.Deny(admin, &api.DenyRequest{Name: "w1", Fingerprint: print}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nodes remove w1") {
		t.Errorf("denied after it was approved: %v", err)
	}

	// It joins by it, and then nobody can ask by its name.
	r := &api.JoinRequest{Machine: request, Leaves: map[string][]byte{}}
	for _, l := range credentials.NodeLeaves("w1", nil) {
		leaf, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		if r.Leaves[l.Cert], err = pki.NewRequest(leaf); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Join(from(t, ticket, peer), r); err != nil {
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
	if r := ask("w1", peer, others); r.Standing != string(joinrequest.Rejected) || !strings.Contains(r.Reason, "nodes remove w1") {
		t.Errorf("%v", r)
	}
	// But it itself, if the power went before it had what it was given: by the same ticket. Who
	// approves it again has had no answer.
	if r := ask("w1", peer, request); r.Standing != string(joinrequest.Approved) || !bytes.Equal(r.Certificate, ticket.Raw) {
		t.Errorf("%v", r)
	}
	if _, err := a.Join(from(t, ticket, peer), r); err != nil {
		t.Error(err)
	}
	if _, err := a.Approve(admin, &api.ApproveRequest{Name: "w1", Fingerprint: print}); err != nil {
		t.Error(err)
	}
	// Where the ticket is not known any more, an operator takes it out.
	a.m.asking = newApplicants()
	if r := ask("w1", peer, request); r.Standing != string(joinrequest.Rejected) || !strings.Contains(r.Reason, "nodes remove w1") {
		t.Errorf("%v", r)
	}
}

// TestJoinRequestsAreFew: who asks over and over again is told to wait, and others are not.
func TestJoinRequestsAreFew(t *testing.T) {
	a := controlPlane(t)
	a.m.asking = newApplicants()
	door := doorAPI{m: a.m}
	last := ""
	for range 30 {
		answer, err := door.Ask(t.Context(), &api.AskRequest{Name: "w1", Peer: "10.0.0.21:1"})
		if err != nil {
			t.Fatal(err)
		}
		last = answer.Reason
	}
	other, err := door.Ask(t.Context(), &api.AskRequest{Name: "w1", Peer: "10.0.0.22:1"})
	if err != nil || !strings.Contains(last, "too many requests") || strings.Contains(other.Reason, "too many requests") {
		t.Errorf("%q, %v, %v", last, other, err)
	}
}

// TestARackAsks: machines of one IPv6 network do not take each other's places.
func TestARackAsks(t *testing.T) {
	a := controlPlane(t)
	a.m.asking = newApplicants()
	for n := range 40 {
		answer, err := doorAPI{m: a.m}.Ask(t.Context(), &api.AskRequest{Name: "w1", Peer: fmt.Sprintf("[fd00::%x]:1", n+1)})
		if err != nil || strings.Contains(answer.Reason, "too many requests") {
			t.Fatalf("machine %d: %v, %v", n, answer, err)
		}
	}
}

// TestDeniedByOthers: what one control-plane machine is told holds at the others.
func TestDeniedByOthers(t *testing.T) {
	a := controlPlane(t)
	a.m.asking = newApplicants()
	if _, err := a.Tell(called(t, "machine", ""), &api.TellRequest{Denied: []string{"sha256:12"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	print := "sha256:" + strings.Repeat("1", 64)
	if _, err := a.Tell(called(t, "machine", ""), &api.TellRequest{Denied: []string{print}}); err != nil || !a.m.asking.list[print].Denied {
		t.Errorf("%v, %v", err, a.m.asking.list)
	}
}
