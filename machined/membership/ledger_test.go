package membership

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestIssueAndRenew checks the subject, the TTL and the lineage of issued and renewed client
// certificates, the requests that are rejected, and that the ledger contains each issued
// certificate.
func TestIssueAndRenew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trust", "ledger.json")
	a := issuing(t, file)
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
	// within checks that a certificate is valid for the time want from now on.
	within := func(cert *x509.Certificate, want time.Duration) {
		t.Helper()
		if got := time.Until(cert.NotAfter); got < want-time.Minute || got > want {
			t.Errorf("valid for %s, want %s", got, want)
		}
	}
	hour := durationpb.New(time.Hour)
	first := parsed(a.Server.Issue(by(admin), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request, Ttl: hour}))
	within(first, time.Hour)
	if got := first.Subject.String(); got != "CN=dora,O=orlop:reader" || !pki.Matches(first, key) || first.IsCA {
		t.Errorf("issued for %s", got)
	}
	// A renewed certificate has the same name and role as the first. Its TTL is at most that of the
	// first.
	second := parsed(a.Server.Renew(by(first), &api.RenewRequest{Csr: request}))
	within(second, time.Hour)
	if got := second.Subject.String(); got != "CN=dora,O=orlop:reader" {
		t.Errorf("renewed for %s", got)
	}
	third := parsed(a.Server.Renew(by(second), &api.RenewRequest{Csr: request}))
	for _, c := range []*x509.Certificate{second, third} {
		if origin, root := pki.LineageOf(c); origin != pki.Serial(first) || root != "sha256:"+strings.Repeat("0", 64) {
			t.Errorf("the lineage of a renewed certificate is %s, with the root %s", origin, root)
		}
	}
	if _, err := a.Server.Renew(by(second), &api.RenewRequest{Csr: request, Ttl: durationpb.New(2 * time.Hour)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a renewal with a longer TTL: %v", err)
	}
	// A certificate of an operator CA can be renewed, too.
	within(parsed(a.Server.Renew(by(admin), &api.RenewRequest{Csr: request})), trust.DefaultTTL)
	within(parsed(a.Server.Issue(by(admin), &api.IssueRequest{Name: "emil", Role: "admin", Csr: request})), trust.DefaultTTL)

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
		if _, err := a.Server.Issue(by(admin), c.r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	list := a.Server.ListCertificates()
	if len(list.Issued) != 5 || list.Issued[1].Lineage != pki.Serial(first) || list.Issued[1].By != "CN=dora,O=orlop:reader" {
		t.Errorf("%v", list)
	}

	// After a restart, the ledger still contains each issued certificate.
	a.start()
	if again := a.Server.ListCertificates(); len(again.Issued) != 5 {
		t.Errorf("%v", again)
	}
	a.with(filepath.Join(file, "no-directory"))
	if _, err := a.Server.Issue(by(admin), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("issued with a damaged ledger: %v", err)
	}
	a.config.Set(config.New("m1", config.RoleControlPlane))
	if _, err := a.Server.Issue(by(admin), &api.IssueRequest{Name: "dora", Role: "reader", Csr: request}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("issued without a CA: %v", err)
	}
}

// TestSync revokes a name on one machine. After a sync, the other machine also has the revocation,
// and still has it after a restart. If the name is restored on one machine, a sync restores it on
// the other.
func TestSync(t *testing.T) {
	dir := t.TempDir()
	a, b := issuing(t, filepath.Join(dir, "a", "ledger.json")), issuing(t, filepath.Join(dir, "b", "ledger.json"))
	change := func(m *machine, r *api.RevokeRequest) {
		t.Helper()
		if _, _, err := m.Ledger.changeRevocation(trust.Revocation{Name: r.Name, At: time.Now().UTC(), By: "CN=admin"}, r, "1f", "admin"); err != nil {
			t.Fatal(err)
		}
	}
	var sent int
	// learn syncs the revocations of machine m with those of another machine, and returns the
	// number of revocations that are new to m.
	learn := func(m, from *machine) int {
		t.Helper()
		news, err := m.Ledger.syncRevocations(func(r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
			answer, err := from.Server.GetRevocations(r)
			sent = len(answer.GetRevocations())
			return answer, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return len(news)
	}
	revoked := func(m *machine) string {
		list, err := m.Ledger.Revocations()
		if err != nil {
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
		t.Errorf("%d new revocations, revoked: %s", n, revoked(b))
	}
	if n := learn(b, a); n != 0 || sent != 0 {
		t.Errorf("%d new revocations; %d revocations were sent, although the machine has them", n, sent)
	}
	b.Ledger.loaded, b.Ledger.content = false, trust.Ledger{}
	b.Ledger.present.Store(nil)
	if revoked(b) != "dora" {
		t.Errorf("after a restart: %s", revoked(b))
	}
	change(b, &api.RevokeRequest{Name: "dora", Restore: true})
	if n := learn(b, a); n != 0 || revoked(b) != "" {
		t.Errorf("a sync with the older revocation: %d new revocations, revoked: %s", n, revoked(b))
	}
	if n := learn(a, b); n != 1 || revoked(a) != "" {
		t.Errorf("%d new revocations, revoked: %s", n, revoked(a))
	}
	if list := a.Server.ListCertificates(); len(list.Revoked) != 0 {
		t.Errorf("%v", list)
	}
	// A machine with a damaged ledger sends no revocations, and merges none.
	if err := os.WriteFile(a.deps.Files.Ledger, []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Ledger.loaded = false
	a.Ledger.present.Store(nil)
	if _, err := a.Server.GetRevocations(&api.GetRevocationsRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a machine sends revocations from a damaged ledger: %v", err)
	}
	if _, err := a.Ledger.syncRevocations(nil); err == nil {
		t.Error("a machine merges revocations into a damaged ledger")
	}
}

// TestSyncPeers checks that a machine polls the other control-plane machines of its configuration.
func TestSyncPeers(t *testing.T) {
	m := issuing(t, "")
	m.addresses.Set(at(netip.MustParseAddr("10.0.0.11")))
	now, _ := m.config.Get()
	now.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")}
	if got := m.Peers.Others(now); len(got) != 1 || got[0] != netip.MustParseAddr("10.0.0.12") {
		t.Errorf("the polled machines are %v", got)
	}
	if got := m.Peers.Others(nil); got != nil {
		t.Errorf("without a configuration, the polled machines are %v", got)
	}
}

// TestLedgerFloor checks that each access to the ledger sets its field Floor. This is a time that
// has certainly passed: an entry that expires before it has expired.
func TestLedgerFloor(t *testing.T) {
	want := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	b := newLedger(&Deps{Files: Files{Ledger: filepath.Join(t.TempDir(), "ledger.json")}, Floor: func() time.Time { return want }})
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := b.currentLocked().Floor; !got.Equal(want) {
		t.Errorf("a new ledger: %s", got)
	}
	if begun, err := b.withIDLocked(); err != nil || !begun.Floor.Equal(want) {
		t.Errorf("the first ledger with an ID: %s, %v", begun.Floor, err)
	}
	want = want.Add(time.Hour)
	if again, err := b.withIDLocked(); err != nil || !again.Floor.Equal(want) {
		t.Errorf("the ledger an hour later: %s, %v", again.Floor, err)
	}
}

// TestReadersDuringChange checks that a change of the ledger does not block readers of the ledger,
// even if STATE does not answer and the change holds the lock.
func TestReadersDuringChange(t *testing.T) {
	a := issuing(t, filepath.Join(t.TempDir(), "ledger.json"))
	if _, _, err := a.Server.Revoke(t.Context(), by(admin), &api.RevokeRequest{Name: "dora"}); err != nil {
		t.Fatal(err)
	}
	l := a.Ledger
	l.mu.Lock() // as a change does
	defer l.mu.Unlock()
	read := make(chan string)
	go func() {
		known, damaged := l.readable()
		revoked, _ := l.Revocations()
		read <- fmt.Sprintln(known.Revoked[0].Name, damaged, len(l.Current().Revoked), revoked[0].Name, len(l.RevocationsForAPIServer(a.deps.config())))
	}()
	select {
	case got := <-read:
		if got != "dora <nil> 1 dora 1\n" {
			t.Errorf("read %s", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("a reader of the ledger waits for the change")
	}
}
