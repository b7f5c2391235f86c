package hosts

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// adoptTest has the CA of an operator, the machine CA of a cluster, and the configuration documents
// of the workers of this cluster.
type adoptTest struct {
	t                  *testing.T
	operator, machines *pki.CA
	documents          []byte
}

func newAdoptTest(t *testing.T) *adoptTest {
	t.Helper()
	c := &adoptTest{t: t}
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

// leaf issues a certificate of the CA by, with a validity of 30 minutes.
func (c *adoptTest) leaf(by *pki.CA, spec pki.Spec) *pki.Leaf {
	c.t.Helper()
	spec.TTL = 30 * time.Minute
	leaf, err := by.Issue(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	return leaf
}

// TestClaimedDocuments checks that a waiting machine accepts a configuration only if it is that of
// a worker, if an operator of the machine has signed it, and if a control-plane machine of the
// cluster in the configuration has sent it.
func TestClaimedDocuments(t *testing.T) {
	c := newAdoptTest(t)
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
		{"a control-plane configuration", sign(replaced("role: worker", "role: controlplane")), c.operator.Cert, []*x509.Certificate{plane}, from, "template"},
	} {
		got, by, err := Adopter{Machines: membership.MachinePool}.documents(test.signed, []*x509.Certificate{test.by}, "sha256:0123456789abcdef", test.from, test.peer, now)
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

// TestAdopter checks in which states a machine applies the configuration of a template. Apply must
// be called with the signer of the template as the caller.
func TestAdopter(t *testing.T) {
	c := newAdoptTest(t)
	from := netip.MustParseAddr("10.0.0.11")
	admin := c.leaf(c.operator, pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client})
	signed, err := claim.Sign(claim.Template{Documents: c.documents, Prefix: "rack7", Expires: time.Now().Add(time.Minute).Truncate(time.Second)}, admin, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	plane := c.leaf(c.machines, pki.Spec{CN: "c1", O: []string{pki.RoleMachine}, Usage: pki.Both, IPs: []netip.Addr{from}})
	answer := inventory.Answer{Listed: true, Template: &signed, Peer: []*x509.Certificate{plane.Cert}}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	want := api.Caller{
		Subject: "CN=alice,O=orlop:admin", Name: "alice", Role: "admin", Serial: pki.Serial(admin.Cert), Issuer: pki.Fingerprint(c.operator.Cert), Peer: "10.0.0.11",
	}
	for _, test := range []struct {
		name   string
		change func(*Adopter)
		err    string // a part of the error
		calls  int    // the expected calls of Apply
	}{
		{"valid", func(*Adopter) {}, "", 1},
		{"an installation runs", func(a *Adopter) { a.Installing = func() bool { return true } }, "", 0},
		{"unclaimed", func(a *Adopter) { a.Owner = func() ([]byte, error) { return nil, nil } }, "this machine has no operator", 0},
		{"an unreadable operator CA", func(a *Adopter) { a.Owner = func() ([]byte, error) { return nil, errors.New("STATE is damaged") } }, "STATE is damaged", 0},
		{"another operator", func(a *Adopter) { a.Owner = func() ([]byte, error) { return c.machines.CertPEM(), nil } }, "is not of an operator of this machine", 0},
		{"no key", func(a *Adopter) { a.Key = func() *ecdsa.PrivateKey { return nil } }, "the machine key is not read yet", 0},
	} {
		calls := 0
		a := Adopter{
			Installing: func() bool { return false }, Owner: func() ([]byte, error) { return c.operator.CertPEM(), nil },
			Key: func() *ecdsa.PrivateKey { return key }, Machines: membership.MachinePool,
			Apply: func(_ context.Context, by api.Caller, documents []byte) error {
				next, problems := config.Parse("", documents)
				if len(problems) > 0 || next.Machine.Metadata.Name != claim.Name("rack7", pki.KeyFingerprint(&key.PublicKey)) || by != want {
					t.Errorf("%s: %v, %+v", test.name, problems, by)
				}
				calls++
				return nil
			},
		}
		test.change(&a)
		err := a.Adopt(t.Context(), from, answer)
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || calls != test.calls {
			t.Errorf("%s: %v, %d calls", test.name, err, calls)
		}
	}
}
