package main

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// claimTest has the CAs of an operator and of a cluster, and the documents of its workers.
type claimTest struct {
	t                  *testing.T
	operator, machines *pki.CA
	documents          []byte
}

func newClaimTest(t *testing.T) *claimTest {
	t.Helper()
	c := &claimTest{t: t}
	ca := func(name string) *pki.CA {
		made, err := pki.NewCA(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	c.operator, c.machines = ca("operator"), ca("machines")
	cert := func(of *pki.CA) config.CertKey {
		pair, err := config.NewCertKey(string(of.CertPEM()), string(of.KeyPEM()))
		if err != nil {
			t.Fatal(err)
		}
		return config.CertKey{Cert: pair.Cert}
	}
	endpoint, err := config.ParseEndpoint("https://10.0.0.11:6443")
	if err != nil {
		t.Fatal(err)
	}
	next := config.New("rack7", config.RoleWorker).WithCluster("orlop", endpoint, config.PKI{Kubernetes: cert(ca("kubernetes")), Machine: cert(c.machines)}, config.EncryptionKey{})
	next.Cluster.Spec.JoinRequests = true
	c.documents = config.Marshal(next.WithJoin(config.Join{From: []string{"10.0.0.11"}, OnRemoval: config.RemovalWipe}))
	return c
}

// leaf issues a certificate.
func (c *claimTest) leaf(by *pki.CA, spec pki.Spec) *pki.Leaf {
	c.t.Helper()
	spec.TTL = 30 * time.Minute
	leaf, err := by.Issue(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	return leaf
}

// TestClaimedDocuments checks that a waiting machine accepts only the configuration of a worker
// with the signature of its own operator, and only from a control-plane machine of its cluster.
func TestClaimedDocuments(t *testing.T) {
	c := newClaimTest(t)
	now := time.Now().Truncate(time.Second)
	from := netip.MustParseAddr("10.0.0.11")
	sign := func(documents []byte) claim.Signed {
		s, err := claim.Sign(claim.Template{Documents: documents, Prefix: "rack7", Expires: now.Add(time.Minute)}, c.leaf(c.operator, pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client}), now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	server := pki.Spec{CN: "c1", O: []string{pki.RoleMachine}, Usage: pki.Both, IPs: []netip.Addr{from}}
	worker := server
	worker.Ticket = "ab"
	plane := c.leaf(c.machines, server).Cert
	replaced := func(old, with string) []byte {
		text := strings.Replace(string(c.documents), old, with, 1)
		if text == string(c.documents) {
			t.Fatalf("the documents have no %q", old)
		}
		return []byte(text)
	}
	for _, test := range []struct {
		name   string
		signed claim.Signed
		by     *x509.Certificate
		peer   []*x509.Certificate
		from   netip.Addr
		want   string // part of the error
	}{
		{"valid", sign(c.documents), c.operator.Cert, []*x509.Certificate{plane}, from, ""},
		{"another operator", sign(c.documents), c.machines.Cert, []*x509.Certificate{plane}, from, "is not of an operator of this machine"},
		{"changed documents", claim.Signed{Documents: replaced("10.0.0.11", "10.0.0.12"), Signature: sign(c.documents).Signature}, c.operator.Cert, []*x509.Certificate{plane}, from, "the signature is not that of this text"},
		{"another cluster", sign(c.documents), c.operator.Cert, []*x509.Certificate{c.leaf(c.operator, server).Cert}, from, "is no machine of the cluster"},
		{"no certificate", sign(c.documents), c.operator.Cert, nil, from, "the server has no certificate"},
		{"another address", sign(c.documents), c.operator.Cert, []*x509.Certificate{plane}, netip.MustParseAddr("10.0.0.12"), "is no machine of the cluster"},
		{"a worker", sign(c.documents), c.operator.Cert, []*x509.Certificate{c.leaf(c.machines, worker).Cert}, from, "only a control-plane machine gives a configuration"},
		{"no configuration", sign([]byte("kind: Pod\n")), c.operator.Cert, []*x509.Certificate{plane}, from, "Pod"},
		{"no worker", sign(replaced("role: worker", "role: controlplane")), c.operator.Cert, []*x509.Certificate{plane}, from, "template"},
	} {
		got, by, err := claimedDocuments(test.signed, []*x509.Certificate{test.by}, "sha256:0123456789abcdef", test.from, test.peer, now)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", test.name, err, test.want)
			}
			continue
		}
		if err != nil || by.Subject.CommonName != "alice" {
			t.Fatalf("%s: %v", test.name, err)
		}
		next, problems := config.Parse("", got)
		if len(problems) > 0 || next.Machine.Metadata.Name != "rack7-01234567" || next.Machine.Spec.Join.OnRemoval != config.RemovalWipe {
			t.Errorf("%s: %v\n%s", test.name, problems, got)
		}
	}
}

func TestAcceptsClaims(t *testing.T) {
	for _, objects := range []config.MachineObjects{{}, {Enabled: true, Inventory: true}, {Enabled: true, Claims: true}, {Enabled: true, Inventory: true, Claims: true}} {
		c := config.New("a", config.RoleControlPlane)
		c.Cluster = &config.Cluster{}
		c.Cluster.Spec.Kubernetes.MachineObjects = objects
		if got, want := acceptsClaims(c), objects.Inventory && objects.Claims; got != want {
			t.Errorf("%+v: %t", objects, got)
		}
	}
}

// TestReadClaims checks that machined reads a regular file only, and not too much of it: the
// directory belongs to a process with fewer rights. Without the directory, no controllers lead.
func TestReadClaims(t *testing.T) {
	missing, empty := filepath.Join(t.TempDir(), "missing"), t.TempDir()
	for _, dir := range []string{missing, empty} {
		if _, err := readClaims(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without a file: %v", err)
		}
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		write func(file string) error
		want  string // part of the error
	}{
		{"a list", func(file string) error { return os.WriteFile(file, make([]byte, claim.MaxList), 0o600) }, ""},
		{"too long", func(file string) error { return os.WriteFile(file, make([]byte, claim.MaxList+1), 0o600) }, "at most 2097152 are taken"},
		{"a link", func(file string) error { return os.Symlink(other, file) }, "is not a plain file"},
		{"a pipe", func(file string) error { return unix.Mkfifo(file, 0o600) }, "is not a plain file"},
		{"a directory", func(file string) error { return os.Mkdir(file, 0o700) }, "is not a plain file"},
	} {
		dir := t.TempDir()
		if err := test.write(filepath.Join(dir, nodespec.ClaimsFile)); err != nil {
			t.Fatal(err)
		}
		text, err := readClaims(dir)
		if test.want == "" && (err != nil || len(text) != claim.MaxList) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %d bytes, %v", test.name, len(text), err)
		}
	}
}

// TestMatchesHost checks the request to the orchestrator, and its answers.
func TestMatchesHost(t *testing.T) {
	for _, c := range []struct {
		answer string
		failed error
		want   bool
		err    string // part of it
	}{
		{`{"matches":true}`, nil, true, ""},
		{`{"matches":false}`, nil, false, ""},
		{`{"matches":false,"problem":"is neither true nor false, but int"}`, nil, false, "match: the expression is neither true nor false"},
		{`no`, nil, false, "match-host cannot be read"},
		{``, errors.New("killed"), false, "killed"},
	} {
		run := func(_ context.Context, uid uint32, command string, request any, _ ...*os.File) ([]byte, error) {
			r, ok := request.(nodespec.HostMatchRequest)
			if !ok || uid != paths.UserAPI || command != "match-host" || r.Expression != "host.cpus == 2" || string(r.Inventory) != `{"serial":"SN-1","cpus":2}` {
				t.Errorf("%d %s %+v", uid, command, request)
			}
			return []byte(c.answer), c.failed
		}
		got, err := matchesHost(t.Context(), run, "host.cpus == 2", inventory.Host{Serial: "SN-1", CPUs: 2})
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.answer, got, err)
		}
	}
}
