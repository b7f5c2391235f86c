package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// issuing returns a machine of a cluster with a client CA. Its ledger is in a file.
func issuing(t *testing.T, file string) *machine {
	ca, err := pki.NewCA("clients", 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := config.New("m1", config.RoleControlPlane)
	c.Cluster = &config.Cluster{}
	if c.Cluster.Spec.PKI.Client, err = config.NewCertKey(string(ca.CertPEM()), string(ca.KeyPEM())); err != nil {
		t.Fatal(err)
	}
	m := &machine{reports: newReports()}
	m.config.active, m.domains.network.State = activeconfig.New(activeconfig.Deps{}), cell.New(network.State{})
	m.config.active.Cell().Set(activeconfig.Active{Config: c})
	m.setMembers(func(d *membership.Deps) { d.Files.Ledger = file })
	return m
}

// setMembers gives a machine a membership with changed dependencies. Revocations have no effect on
// connections, and the cluster has no Nodes.
func (m *machine) setMembers(change func(*membership.Deps)) {
	if m.power == nil {
		m.power = power.NewController(power.Deps{})
	}
	d := memberDeps(m)
	d.Floor, d.Running = nil, context.Background()
	d.Enforce = func(context.Context) error { return nil }
	d.DeleteNodes = func(context.Context, nodespec.NodeGCRequest) ([]string, error) { return nil, nil }
	change(&d)
	m.members = membership.New(d)
}

// newRequest returns a new key and a CSR for it.
func newRequest(t *testing.T) (key *ecdsa.PrivateKey, request []byte) {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if request, err = pki.NewRequest(key); err != nil {
		t.Fatal(err)
	}
	return key, request
}

// operator is the certificate of an operator.
var operator = &x509.Certificate{Subject: pkix.Name{CommonName: "admin", Organization: []string{pki.RoleAdmin}}, SerialNumber: big.NewInt(1)}

// controlPlane returns the only control-plane machine of a cluster, at 10.0.0.11.
func controlPlane(t *testing.T) *machine {
	file := filepath.Join(t.TempDir(), "ledger.json")
	m := issuing(t, file)
	now := m.config.active.Current()
	c := now.Config
	ca := func(name string) config.CertKey {
		made, err := pki.NewCA(name, 1000*24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := config.NewCertKey(string(made.CertPEM()), string(made.KeyPEM()))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	endpoint, err := config.ParseEndpoint("https://10.0.0.11:6443")
	if err != nil {
		t.Fatal(err)
	}
	whole := c.WithCluster("orlop", endpoint, config.PKI{
		Kubernetes: ca("kubernetes"), Machine: ca("machines"), Etcd: ca("etcd"), Client: c.Cluster.Spec.PKI.Client,
	}, config.EncryptionKey{})
	m.config.active.Cell().Set(activeconfig.Active{Config: whole})
	m.domains.network.State = cell.New(network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.11/24")}}}}})
	m.setMembers(func(d *membership.Deps) { d.Files.Ledger = file })
	m.domains.drain = newDrainer(m)
	m.upgrade = newUpgrade(m)
	return m
}

// The function from returns the caller with a certificate from an address.
func from(cert *x509.Certificate, peer string) api.Caller {
	lineage, root := pki.LineageOf(cert)
	return api.Caller{
		Subject: cert.Subject.String(), Name: cert.Subject.CommonName, Role: strings.TrimPrefix(cert.Subject.Organization[0], pki.RolePrefix),
		Serial: pki.Serial(cert), Lineage: lineage, Issuer: cmp.Or(root, "sha256:"+strings.Repeat("0", 64)),
		Ticket: pki.TicketOf(cert), Key: pki.Fingerprint(cert), Peer: peer,
	}
}

// TestControlPlaneAmongItself checks that only control-plane machines can make the calls that
// control-plane machines make to each other.
func TestControlPlaneAmongItself(t *testing.T) {
	server := controlPlane(t).members.Server
	calls := map[string]func(api.Caller) error{
		"GetMembership": func(by api.Caller) error {
			_, err := server.GetMembership(by, &api.GetMembershipRequest{})
			return err
		},
		"ReplicateMembership": func(by api.Caller) error {
			_, err := server.ReplicateMembership(t.Context(), by, &api.ReplicateMembershipRequest{})
			return err
		},
		"Vote": func(by api.Caller) error {
			_, err := server.Vote(by, &api.VoteRequest{Candidate: &api.Member{Name: "w1", Ticket: "1a", Fingerprint: "sha256:" + strings.Repeat("0", 64), Address: "10.0.0.21"}})
			return err
		},
	}
	called := func(role, ticket string) api.Caller {
		return api.Caller{Role: role, Ticket: ticket, Name: "m2"}
	}
	for name, call := range calls {
		if err := call(called("machine", "")); err != nil {
			t.Errorf("%s of a control-plane machine: %v", name, err)
		}
		for _, who := range []api.Caller{
			called("machine", "1a"), called("join", ""), called("reader", ""), called("admin", ""), called("", ""), {},
		} {
			if err := call(who); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s of %v: %v", name, who, err)
			}
		}
	}
}

// TestRevokedCallers checks that a revocation remains effective after a restart. While the ledger
// cannot be read, no issued certificate is valid, and the machine issues and revokes nothing, until
// an operator begins a new list.
func TestRevokedCallers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trust", "ledger.json")
	m := issuing(t, file)
	restart := func() { m.setMembers(func(d *membership.Deps) { d.Files.Ledger = file }) }
	caller := api.Caller{Lineage: "1f", Name: "admin"}
	now := m.config.active.Current()
	// the content of this CA is irrelevant for the test
	now.Config.Machine.Spec.Trust.OperatorCAs = []config.Certificate{now.Config.Cluster.Spec.PKI.Client.Cert}
	revoke := func(name string, r *api.RevokeRequest) error {
		r.Name = name
		_, _, err := m.members.Server.Revoke(t.Context(), caller, r)
		return err
	}
	if err := revoke("dora", &api.RevokeRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := revoke("admin", &api.RevokeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an admin can revoke the own name of the admin: %v", err)
	}
	accepted := func() (credentials.CallerCAs, error) {
		t := newFacts(m).Trust(now.Config)
		return t.Callers, t.Problem
	}
	for range 2 { // the second time, the revocation is read from the file
		restart()
		callers, err := accepted()
		var revoked []trust.Revocation
		if err == nil {
			err = json.Unmarshal(callers.Revoked, &revoked)
		}
		if err != nil || len(revoked) != 1 || revoked[0].Name != "dora" || len(callers.Clients) == 0 {
			t.Errorf("the revocations are %v, %v; want dora", revoked, err)
		}
	}
	// If the revocations are unknown, no issued certificate is valid.
	if err := os.WriteFile(file, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	restart()
	callers, err := accepted()
	if err != nil || len(callers.Clients) != 0 || len(callers.Operators) == 0 {
		t.Errorf("with an unreadable ledger: %d bytes of client CAs, want none; %d bytes of operator CAs, %v", len(callers.Clients), len(callers.Operators), err)
	}
	_, request := newRequest(t)
	if _, err := m.members.Server.Issue(api.Caller{}, &api.IssueRequest{Name: "dora", Role: "reader", Csr: request}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Issue with a ledger that cannot be read: got %v, want FailedPrecondition", err)
	}
	if err := revoke("emil", &api.RevokeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Revoke with a ledger that cannot be read: got %v, want FailedPrecondition", err)
	}
	if err := revoke("admin", &api.RevokeRequest{NewList: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an admin can revoke the own name of the admin: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "{torn" {
		t.Errorf("a rejected call has changed the ledger: %q, %v", text, err)
	}
	if err := revoke("emil", &api.RevokeRequest{NewList: true}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file + ".damaged"); err != nil || string(text) != "{torn" {
		t.Errorf("the damaged ledger was not saved: %q, %v", text, err)
	}
	if callers, err = accepted(); err != nil || len(callers.Clients) == 0 {
		t.Errorf("after a new list was begun: %d bytes of client CAs, %v", len(callers.Clients), err)
	}
}
