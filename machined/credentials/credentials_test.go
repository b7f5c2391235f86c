package credentials

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

func node() nodespec.Spec {
	return nodespec.Spec{
		Cluster:  "demo",
		Node:     nodespec.Node{Name: "one", ControlPlane: true, IPs: []netip.Addr{netip.MustParseAddr("10.77.0.11")}},
		Endpoint: "https://api.example.net:6443",
		Network:  nodespec.Network{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, DNSDomain: "cluster.local"},
	}
}

func authorities(t *testing.T) Authorities {
	t.Helper()
	ca := func(name string) Authority {
		ca, err := pki.NewCA(name, time.Hour*24*365*10)
		if err != nil {
			t.Fatal(err)
		}
		return Authority{CA: ca}
	}
	private, public, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	return Authorities{ca("kubernetes"), ca("etcd"), ca("front-proxy"), private, public, []config.EncryptionKey{config.NewEncryptionKey([32]byte{1})}, KMS{}, Access{}, []byte("null"), []byte("[]"), []byte("{}"), []byte("{}"), []byte(`{"192.0.2.1":"secret"}`), nil}
}

// plan calls Plan, and moves every path below the directory root, with the user of the test as
// owner.
func plan(t *testing.T, node nodespec.Spec, a Authorities, root string) Want {
	t.Helper()
	w, err := Plan(node, a)
	if err != nil {
		t.Fatal(err)
	}
	return below(w, root)
}

// below moves every path below a directory of the test, and gives it to the user of the test.
func below(w Want, root string) Want {
	uid := uint32(os.Getuid())
	for i := range w.Dirs {
		w.Dirs[i] = Dir{filepath.Join(root, w.Dirs[i].Path), uid, w.Dirs[i].Shared}
	}
	for i := range w.Strays {
		w.Strays[i] = filepath.Join(root, w.Strays[i])
	}
	for i := range w.Files {
		w.Files[i].Path, w.Files[i].UID = filepath.Join(root, w.Files[i].Path), uid
	}
	for i, l := range w.Leaves {
		w.Leaves[i].Cert, w.Leaves[i].Key, w.Leaves[i].UID = filepath.Join(root, l.Cert), filepath.Join(root, l.Key), uid
	}
	return w
}

func diff(t *testing.T, w Want) []reconcile.Op {
	t.Helper()
	have, err := Read(w)
	if err != nil {
		t.Fatal(err)
	}
	return Diff(have, w)
}

// TestGolden compares the files of every identity on a machine, with their owners, with golden
// files.
func TestGolden(t *testing.T) {
	for name, controlPlane := range map[string]bool{"controlplane": true, "worker": false} {
		t.Run(name, func(t *testing.T) {
			spec := node()
			spec.Node.ControlPlane = controlPlane
			a := authorities(t)
			if !controlPlane { // a worker has no key of a CA
				a = Authorities{Kubernetes: Authority{CA: &pki.CA{Cert: a.Kubernetes.Cert}}, Issued: nodespec.IssuedCerts{}}
				for _, l := range nodespec.NodeLeaves(spec.Node.Name, spec.Node.IPs) {
					leaf, err := pki.SelfSigned(pki.Spec{CN: "given", Usage: pki.Client, TTL: time.Hour})
					if err != nil {
						t.Fatal(err)
					}
					a.Issued[l.Cert] = leaf
				}
			}
			w, err := Plan(spec, a)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, op := range Diff(Have{Now: time.Now()}, w) {
				got.WriteString(op.String() + "\n")
			}
			golden.Assert(t, got.String(), name+".txt")
		})
	}
}

// TestLaws checks that the operations leave no difference, and that a restart after any operation
// converges.
func TestLaws(t *testing.T) {
	a := authorities(t)
	all := len(diff(t, plan(t, node(), a, t.TempDir())))
	for stop := 0; stop <= all; stop++ {
		w := plan(t, node(), a, t.TempDir())
		for i, op := range diff(t, w) {
			if i == stop {
				break
			}
			if err := op.Do(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		rest := diff(t, w)
		if len(rest) != all-stop {
			t.Errorf("after %d of %d operations %d are left", stop, all, len(rest))
		}
		for _, op := range rest {
			if err := op.Do(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if left := diff(t, w); len(left) != 0 {
			t.Fatalf("the diff is not empty after all operations: %v", left)
		}
	}
}

// TestMetrics checks the files of metricsd. It checks the two laws when the configuration of
// metricsd is added, changed and removed, and the certificate that metricsd gets on a worker.
func TestMetrics(t *testing.T) {
	a, root := authorities(t), t.TempDir()
	own := filepath.Join(root, paths.MetricsdDir)
	leaf, err := a.Kubernetes.Issue(pki.Spec{CN: "system:node:one", DNS: []string{"one"}, Usage: pki.Server, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	worker := Authorities{Kubernetes: Authority{CA: &pki.CA{Cert: a.Kubernetes.Cert}}, RevokedSet: []byte("{}"), Issued: nodespec.IssuedCerts{nodespec.KubeletServing: leaf}}
	on, narrow := &nodespec.MetricsSettings{Tokens: true}, &nodespec.MetricsSettings{Tokens: true, From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for i, step := range []struct {
		from     Authorities
		settings *nodespec.MetricsSettings
		ops      int
		files    string
	}{
		{a, nil, 0, ""},
		{a, on, 5, "caller-cas.pem revoked.json serving.crt serving.key settings.json"},
		{a, narrow, 1, "caller-cas.pem revoked.json serving.crt serving.key settings.json"},
		{worker, narrow, 3, "caller-cas.pem revoked.json serving.crt serving.key settings.json"},
		{worker, nil, 5, ""},
		{worker, nil, 0, ""},
	} {
		var w Want
		if err := w.Metrics(node(), step.from, step.settings, CallerCAs{Operators: a.Etcd.CertPEM()}); err != nil {
			t.Fatal(err)
		}
		w = below(w, root)
		ops := diff(t, w)
		if len(ops) != step.ops {
			t.Errorf("step %d: %v; want %d operations", i, ops, step.ops)
		}
		for _, op := range ops {
			if err := op.Do(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if left := diff(t, w); len(left) != 0 {
			t.Errorf("step %d: the diff is not empty after all operations: %v", i, left)
		}
		entries, err := os.ReadDir(own)
		if err != nil && step.files != "" {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != step.files {
			t.Errorf("step %d: the files are %s; want %s", i, got, step.files)
		}
	}
}

// TestReissue checks that a leaf is reissued only if its content or its expiry requires it.
func TestReissue(t *testing.T) {
	a, root := authorities(t), t.TempDir()
	w := plan(t, node(), a, root)
	for _, op := range diff(t, w) {
		if err := op.Do(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	count := func(w Want, reason string) (n int) {
		for _, op := range diff(t, w) {
			if strings.Contains(op.String(), reason) {
				n++
			}
		}
		return n
	}
	moved := node()
	moved.Node.IPs = []netip.Addr{netip.MustParseAddr("10.77.0.99")}
	// API server, etcd peer, kubelet
	if n := count(plan(t, moved, a, root), "other names or addresses"); n != 3 {
		t.Errorf("a new address: %d leaves are reissued, want 3", n)
	}
	virtual := node()
	virtual.VirtualAddresses = []netip.Addr{netip.MustParseAddr("10.77.0.9"), netip.MustParseAddr("2001:db8::9")}
	if n := count(plan(t, virtual, a, root), "other names or addresses"); n != 1 { // API server
		t.Errorf("virtual addresses: %d leaves are reissued, want 1", n)
	}
	b := a
	b.FrontProxy = authorities(t).FrontProxy
	if n := count(plan(t, node(), b, root), "issued by another CA"); n != 1 {
		t.Errorf("a new front-proxy CA: %d leaves are reissued, want 1", n)
	}
	have, err := Read(w)
	if err != nil {
		t.Fatal(err)
	}
	have.Now = have.Now.Add(leafTTL)
	if n := len(Diff(have, w)); n != len(w.Leaves) {
		t.Errorf("at the end of the TTL of the leaves, %d leaves are reissued, want all %d", n, len(w.Leaves))
	}
	if err := os.WriteFile(w.Leaves[0].Cert, []byte("half a certif"), 0o400); err != nil {
		t.Fatal(err)
	}
	if n := count(w, "unreadable"); n != 1 {
		t.Errorf("a torn certificate: %d leaves are reissued, want 1", n)
	}
}

// TestIdentityKeyStays checks that the machine retains its key, and so its fingerprint, when the CA
// of the cluster signs it.
func TestIdentityKeyStays(t *testing.T) {
	identity, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	root, a := t.TempDir(), authorities(t)
	var prints []string
	for _, ca := range []*pki.CA{nil, a.Etcd.CA} {
		w := APIServer(identity, "one", node().Node.IPs, ca, nil, CallerCAs{Operators: a.Kubernetes.CertPEM()})
		uid := uint32(os.Getuid())
		w.Dirs[0] = Dir{Path: filepath.Join(root, w.Dirs[0].Path), UID: uid}
		for i := range w.Files {
			w.Files[i].Path, w.Files[i].UID = filepath.Join(root, w.Files[i].Path), uid
		}
		w.Leaves[0].Cert, w.Leaves[0].Key, w.Leaves[0].UID = filepath.Join(root, w.Leaves[0].Cert), filepath.Join(root, w.Leaves[0].Key), uid
		ops := diff(t, w)
		if len(ops) == 0 {
			t.Fatal("no operation, although the certificate has another issuer")
		}
		for _, op := range ops {
			if err := op.Do(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if left := diff(t, w); len(left) != 0 {
			t.Fatalf("the diff is not empty after all operations: %v", left)
		}
		text, err := os.ReadFile(w.Leaves[0].Cert)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pki.ParseCert(text)
		if err != nil {
			t.Fatal(err)
		}
		prints = append(prints, pki.Fingerprint(cert))
	}
	if prints[0] != prints[1] {
		t.Errorf("the fingerprint changed from %s to %s", prints[0], prints[1])
	}
}

// TestAPIServerNames checks the names and addresses in the API server's certificate.
func TestAPIServerNames(t *testing.T) {
	spec := node()
	spec.Kubernetes.APIServer.ExtraSANs = []string{"cluster.example.net", "192.0.2.7", "api.example.net"}
	w := plan(t, spec, authorities(t), t.TempDir())
	i := slices.IndexFunc(w.Leaves, func(l Leaf) bool { return l.Spec.CN == "kube-apiserver" && l.Spec.Usage == pki.Server })
	if i < 0 {
		t.Fatal("no certificate for the API server")
	}
	for _, name := range []string{"localhost", "kubernetes.default.svc.cluster.local", "one", "api.example.net", "cluster.example.net"} {
		if n := slices.Index(w.Leaves[i].Spec.DNS, name); n < 0 || slices.Contains(w.Leaves[i].Spec.DNS[n+1:], name) {
			t.Errorf("name %s is missing or occurs twice: %v", name, w.Leaves[i].Spec.DNS)
		}
	}
	for _, ip := range []string{"127.0.0.1", "10.96.0.1", "10.77.0.11", "192.0.2.7"} {
		if !slices.Contains(w.Leaves[i].Spec.IPs, netip.MustParseAddr(ip)) {
			t.Errorf("address %s is missing: %v", ip, w.Leaves[i].Spec.IPs)
		}
	}
}

func TestList(t *testing.T) {
	a, dir := authorities(t), t.TempDir()
	soon, err := a.Etcd.Issue(pki.Spec{CN: "soon", O: []string{"o"}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"soon.crt": soon.CertPEM(), "soon.key": soon.KeyPEM(), "cas.pem": append(a.Etcd.CertPEM(), a.Kubernetes.CertPEM()...), "none.pem": nil, "torn.crt": []byte("torn"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := List(dir, filepath.Join(dir, "not-there"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		got = append(got, fmt.Sprintf("%s %s authority=%v renews=%v problem=%v", filepath.Base(s.File), s.Subject, s.Authority, !s.Renews.IsZero(), s.Problem != ""))
	}
	want := []string{
		"torn.crt  authority=false renews=false problem=true",
		"soon.crt CN=soon,O=o authority=false renews=true problem=false",
	}
	if len(got) != 4 || !slices.Equal(got[:2], want) || !list[2].Authority || !list[3].Authority {
		t.Errorf("List returns %q", got)
	}
}

// TestFirstContacts checks the files by which apid admits clients without a certificate.
func TestFirstContacts(t *testing.T) {
	identity, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []CallerCAs{{}, {JoinRequests: true}, {Inventory: true}} {
		w := APIServer(identity, "one", node().Node.IPs, nil, nil, c)
		for _, f := range w.Files {
			enabled, is := map[string]bool{"join-requests": c.JoinRequests, "inventory": c.Inventory}[filepath.Base(f.Path)]
			if is && (len(f.Content) > 0) != enabled {
				t.Errorf("%+v: %s has %d bytes", c, f.Path, len(f.Content))
			}
		}
	}
}

// TestKMS checks that the order of the providers selects the encrypting provider, that only a file
// of the API server contains the credentials of the key manager, and that a change of the
// credentials restarts no process.
func TestKMS(t *testing.T) {
	a := authorities(t)
	given := &config.KMS{Transit: &config.Transit{
		Endpoint: config.Endpoint{Host: "vault.example.com", Port: 8200}, Mount: "transit", Key: "orlop",
		AppRole: &config.AppRole{Mount: "approle", RoleID: "r", SecretID: config.NewSecret("hunter2")},
	}}
	a.KMS = KMS{KMS: given, SiteCAs: "site\n"}
	w, err := Plan(node(), a)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range w.Files {
		if is := filepath.Base(f.Path) == nodespec.KMSFile; is != bytes.Contains(f.Content, []byte("hunter2")) || is && (f.UID != paths.UserAPI || f.Mode != 0o400) {
			t.Errorf("%s with owner %d and mode %v contains the secret: %t", f.Path, f.UID, f.Mode, !is)
		}
	}
	var providers []string
	encrypting := *given
	encrypting.Encrypt = true
	for _, k := range []*config.KMS{nil, given, &encrypting} {
		providers = append(providers, string(encryption(a.EncryptionKeys, KMS{KMS: k})))
	}
	golden.Assert(t, regexp.MustCompile("secret: .*").ReplaceAllString(strings.Join(providers, "---\n"), "secret: …"), "encryption.yaml")
	before := string(a.ReadAtStart(paths.KubeAPI))
	role := *given.Transit.AppRole
	role.SecretID = config.NewSecret("another")
	transit := *given.Transit
	transit.AppRole, transit.Endpoint.Host = &role, "other.example.com"
	a.KMS.KMS = &config.KMS{Transit: &transit}
	if string(a.ReadAtStart(paths.KubeAPI)) != before {
		t.Error("a change of the key manager's address and credentials restarts the API server")
	}
	a.KMS.KMS = &encrypting
	if string(a.ReadAtStart(paths.KubeAPI)) == before {
		t.Error("the API server does not restart when the key manager begins to encrypt")
	}
}
