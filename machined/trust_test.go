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
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// issuing is a machine of a cluster with a client CA.
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
	return &machine{ledger: newLedger(file), config: cell.New(applied{config: c})}
}

// by is a call with a certificate.
func by(t *testing.T, cert *x509.Certificate) context.Context {
	role := ""
	origin, root := pki.LineageOf(cert)
	if len(cert.Subject.Organization) > 0 {
		role = strings.TrimPrefix(cert.Subject.Organization[0], pki.RolePrefix)
	}
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs(apid.MetadataSubject, cert.Subject.String(), apid.MetadataName, cert.Subject.CommonName,
		apid.MetadataSerial, pki.Serial(cert), apid.MetadataLineage, origin, apid.MetadataRole, role, apid.MetadataIssuer, cmp.Or(root, "sha256:"+strings.Repeat("0", 64))))
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

func TestIssueAndRenew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trust", "ledger.json")
	a := trustAPI{m: issuing(t, file)}
	key, request := newRequest(t)
	parsed := func(r *api.IssueResponse, err error) *x509.Certificate {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(r.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	within := func(cert *x509.Certificate, want time.Duration) {
		t.Helper()
		if got := time.Until(cert.NotAfter); got < want-time.Minute || got > want {
			t.Errorf("valid for %s, want %s", got, want)
		}
	}
	admin := &x509.Certificate{Subject: pkix.Name{CommonName: "admin", Organization: []string{pki.RoleAdmin}}, SerialNumber: big.NewInt(1)}
	hour := durationpb.New(time.Hour)
	first := parsed(a.Issue(by(t, admin), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request, Ttl: hour}))
	within(first, time.Hour)
	if got := first.Subject.String(); got != "CN=dora,O=orlop:reader" || !pki.Matches(first, key) || first.IsCA {
		t.Errorf("issued for %s", got)
	}
	// A renewed certificate has the same name and role, and no longer TTL.
	second := parsed(a.Renew(by(t, first), &api.RenewRequest{Csr: request}))
	within(second, time.Hour)
	if got := second.Subject.String(); got != "CN=dora,O=orlop:reader" {
		t.Errorf("renewed for %s", got)
	}
	third := parsed(a.Renew(by(t, second), &api.RenewRequest{Csr: request}))
	for _, c := range []*x509.Certificate{second, third} {
		if origin, root := pki.LineageOf(c); origin != pki.Serial(first) || root != "sha256:"+strings.Repeat("0", 64) {
			t.Errorf("renewed from %s by %s", origin, root)
		}
	}
	if _, err := a.Renew(by(t, second), &api.RenewRequest{Csr: request, Ttl: durationpb.New(2 * time.Hour)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an hour was made two: %v", err)
	}
	// A certificate of an operator CA.
	within(parsed(a.Renew(by(t, admin), &api.RenewRequest{Csr: request})), trust.DefaultTTL)
	within(parsed(a.Issue(by(t, admin), &api.IssueRequest{Name: "emil", Role: "admin", Csr: request})), trust.DefaultTTL)

	for _, c := range []struct {
		name string
		r    *api.IssueRequest
	}{
		{"no name", &api.IssueRequest{Role: "reader", Csr: request}},
		{"two organisations", &api.IssueRequest{Name: "dora", Role: "reader,O=orlop:admin", Csr: request}},
		{"a machine's role", &api.IssueRequest{Name: "dora", Role: "machine", Csr: request}},
		{"no role", &api.IssueRequest{Name: "dora", Csr: request}},
		{"no key", &api.IssueRequest{Name: "dora", Role: "reader"}},
		{"too long", &api.IssueRequest{Name: "dora", Role: "reader", Csr: request, Ttl: durationpb.New(trust.MaxTTL + time.Second)}},
		{"in the past", &api.IssueRequest{Name: "dora", Role: "reader", Csr: request, Ttl: durationpb.New(-time.Hour)}},
	} {
		if _, err := a.Issue(by(t, admin), c.r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	list, err := a.ListCertificates(t.Context(), &api.ListCertificatesRequest{})
	if err != nil || len(list.Issued) != 5 || list.Issued[1].Lineage != pki.Serial(first) || list.Issued[1].By != "CN=dora,O=orlop:reader" {
		t.Errorf("%v, %v", list, err)
	}

	// The ledger outlives the process, and contains every issued certificate.
	a.m.ledger = newLedger(file)
	if again, err := a.ListCertificates(t.Context(), &api.ListCertificatesRequest{}); err != nil || len(again.Issued) != 5 {
		t.Errorf("%v, %v", again, err)
	}
	a.m.ledger = newLedger(filepath.Join(file, "no-folder"))
	if _, err := a.Issue(by(t, admin), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("issued without a book: %v", err)
	}
	a.m.config.Set(applied{config: config.New("m1", config.RoleControlPlane)})
	if _, err := a.Issue(by(t, admin), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("issued without a CA: %v", err)
	}
}

func TestRevokedCallers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trust", "ledger.json")
	m := issuing(t, file)
	m.events = newEventLog()
	now, _ := m.config.Get()
	// any CA will do
	now.config.Machine.Spec.Trust.OperatorCAs = []config.Certificate{now.config.Cluster.Spec.PKI.Client.Cert}
	revoke := func(name string, r *api.RevokeRequest) error {
		_, _, err := m.ledger.changeRevocation(trust.Revocation{Name: name, At: time.Now()}, r, "1f", "admin")
		return err
	}
	if err := revoke("dora", &api.RevokeRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := revoke("admin", &api.RevokeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an admin has revoked himself: %v", err)
	}
	for _, b := range []*ledger{{file: file}, {file: file}} { // written, and read again
		m.ledger.loaded, m.ledger.content = b.loaded, b.content
		callers, err := m.callers(now.config)
		var revoked []trust.Revocation
		if err == nil {
			err = json.Unmarshal(callers.Revoked, &revoked)
		}
		if err != nil || len(revoked) != 1 || revoked[0].Name != "dora" || len(callers.Clients) == 0 {
			t.Errorf("%v, %v", revoked, err)
		}
	}
	// If the revocations are unknown, no issued certificate is valid.
	if err := os.WriteFile(file, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.ledger.loaded = false
	callers, err := m.callers(now.config)
	if err != nil || len(callers.Clients) != 0 || len(callers.Operators) == 0 {
		t.Errorf("%d bytes of client CAs, %d of operators', %v", len(callers.Clients), len(callers.Operators), err)
	}
	_, request := newRequest(t)
	if _, err := (trustAPI{m: m}).Issue(t.Context(), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("issued over a book that cannot be read: %v", err)
	}
	if err := revoke("emil", &api.RevokeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("revoked over a book that cannot be read: %v", err)
	}
	if err := revoke("admin", &api.RevokeRequest{NewList: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an admin has revoked himself: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "{torn" {
		t.Errorf("what was refused has changed the file: %q, %v", text, err)
	}
	if err := revoke("emil", &api.RevokeRequest{NewList: true}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file + ".damaged"); err != nil || string(text) != "{torn" {
		t.Errorf("the damaged file was not kept: %q, %v", text, err)
	}
	if callers, err = m.callers(now.config); err != nil || len(callers.Clients) == 0 {
		t.Errorf("after a new book was begun: %d bytes of client CAs, %v", len(callers.Clients), err)
	}
}

// TestCheckLockout checks that a configuration has to trust the caller's CA, for each kind of CA.
func TestCheckLockout(t *testing.T) {
	m := issuing(t, "")
	now, _ := m.config.Get()
	client := now.config.Cluster.Spec.PKI.Client
	other := issuing(t, "")
	next, _ := other.config.Get()
	// any CA will do
	next.config.Machine.Spec.Trust.OperatorCAs = []config.Certificate{next.config.Cluster.Spec.PKI.Client.Cert}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(apid.MetadataIssuer, pki.Fingerprint(client.Cert.X509())))
	check := func() error {
		caller, err := callerFacts(ctx, next.config)
		if err != nil {
			t.Fatal(err)
		}
		r := &api.ApplyRequest{}
		return transition.Check(nil, next.config, transition.Facts{Request: r, Caller: caller, Machine: transition.Machine{Memory: transition.MinMemory, CPUs: 64}}).Err()
	}
	if err := check(); err == nil || !strings.Contains(err.Error(), "would lock you out") {
		t.Error("whoever applies it would not get in again")
	}
	next.config.Cluster.Spec.PKI.Client.Cert = client.Cert
	if err := check(); err != nil {
		t.Error(err)
	}
	next.config.Cluster.Spec.PKI.Client = config.CertKey{}
	next.config.Machine.Spec.Trust.OperatorCAs = []config.Certificate{client.Cert}
	if err := check(); err != nil {
		t.Error(err)
	}
}

// TestSync checks that a machine rejects a certificate revoked on another machine after a sync,
// also after a restart, until it is restored on either.
func TestSync(t *testing.T) {
	dir := t.TempDir()
	a, b := issuing(t, filepath.Join(dir, "a", "ledger.json")), issuing(t, filepath.Join(dir, "b", "ledger.json"))
	change := func(m *machine, r *api.RevokeRequest) {
		t.Helper()
		if _, _, err := m.ledger.changeRevocation(trust.Revocation{Name: r.Name, At: time.Now().UTC(), By: "CN=admin"}, r, "1f", "admin"); err != nil {
			t.Fatal(err)
		}
	}
	var sent int
	learn := func(m, from *machine) int {
		t.Helper()
		news, err := m.ledger.syncRevocations(func(r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
			answer, err := trustAPI{m: from}.GetRevocations(t.Context(), r)
			sent = len(answer.GetRevocations())
			return answer, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return len(news)
	}
	revoked := func(m *machine) string {
		callers, err := m.callers(nil)
		if err != nil {
			t.Fatal(err)
		}
		var list []trust.Revocation
		if err := json.Unmarshal(callers.Revoked, &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range list {
			names = append(names, r.Name)
		}
		return strings.Join(names, " ")
	}
	change(a, &api.RevokeRequest{Name: "dora"})
	if n := learn(b, a); n != 1 || revoked(b) != "dora" {
		t.Errorf("%d news, revoked: %s", n, revoked(b))
	}
	if n := learn(b, a); n != 0 || sent != 0 {
		t.Errorf("%d news, %d were sent of what is known", n, sent)
	}
	b.ledger.loaded, b.ledger.content = false, trust.Ledger{}
	if revoked(b) != "dora" {
		t.Errorf("after a restart: %s", revoked(b))
	}
	change(b, &api.RevokeRequest{Name: "dora", Restore: true})
	if n := learn(b, a); n != 0 || revoked(b) != "" {
		t.Errorf("%d news of what was before, revoked: %s", n, revoked(b))
	}
	if n := learn(a, b); n != 1 || revoked(a) != "" {
		t.Errorf("%d news, revoked: %s", n, revoked(a))
	}
	if list, err := (trustAPI{m: a}).ListCertificates(t.Context(), nil); err != nil || len(list.Revoked) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	// A machine with a damaged ledger neither sends nor merges revocations.
	if err := os.WriteFile(a.ledger.file, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.ledger.loaded = false
	if _, err := (trustAPI{m: a}).GetRevocations(t.Context(), &api.GetRevocationsRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("teaches what it does not know: %v", err)
	}
	if _, err := a.ledger.syncRevocations(nil); err == nil {
		t.Error("learns over a book that cannot be read")
	}
}

// TestSyncPeers checks that a machine polls the others of its configuration.
func TestSyncPeers(t *testing.T) {
	m := issuing(t, "")
	m.networkState = cell.New(network.State{Links: []network.LinkState{{Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.11/24")}}}}})
	now, _ := m.config.Get()
	now.config.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")}
	if got := m.syncPeers(now.config); len(got) != 1 || got[0] != netip.MustParseAddr("10.0.0.12") {
		t.Errorf("asks %v", got)
	}
	if got := m.syncPeers(nil); got != nil {
		t.Errorf("without a configuration it asks %v", got)
	}
}

// TestLedgerFloor checks that entries expire by the time that has certainly passed, for every
// access to the ledger.
func TestLedgerFloor(t *testing.T) {
	want := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	b := newLedger(filepath.Join(t.TempDir(), "ledger.json"))
	b.floor = func() time.Time { return want }
	b.Lock()
	defer b.Unlock()
	if got := b.currentLocked().Floor; !got.Equal(want) {
		t.Errorf("a new book: %s", got)
	}
	if begun, err := b.withIDLocked(); err != nil || !begun.Floor.Equal(want) {
		t.Errorf("begun: %s, %v", begun.Floor, err)
	}
	want = want.Add(time.Hour)
	if again, err := b.withIDLocked(); err != nil || !again.Floor.Equal(want) {
		t.Errorf("later: %s, %v", again.Floor, err)
	}
}
