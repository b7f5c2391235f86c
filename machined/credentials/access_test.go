package credentials

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// certKey returns a new certificate with its key, as in a document.
func certKey(t *testing.T) config.CertKey {
	t.Helper()
	leaf, err := pki.SelfSigned(pki.Spec{CN: "x", Usage: pki.Both, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := config.ParseCertificate(string(leaf.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	key, err := config.ParsePrivateKey(string(leaf.KeyPEM()))
	if err != nil {
		t.Fatal(err)
	}
	return config.CertKey{Cert: cert, Key: key}
}

func access(t *testing.T) (Access, config.CertKey) {
	t.Helper()
	pair := certKey(t)
	return Access{
		config.Authentication{
			JWT: []config.JWTIssuer{
				{URL: "https://a.example.org", Audiences: []string{"orlop"}, Username: "claims.sub"},
				{
					URL: "https://b.example.org", DiscoveryURL: "https://b.example.net/openid", CA: config.NewBundle(pair.Cert), Audiences: []string{"x", "y"},
					Username: "'b:' + claims.sub", Groups: "claims.groups", UID: "claims.uid",
					Extra:      map[string]string{"example.org/b": "claims.b", "example.org/a": "claims.a"},
					ClaimRules: []config.Rule{{Expression: "claims.hd == 'example.org'", Message: "another house"}},
					UserRules:  []config.Rule{{Expression: "!user.username.startsWith('system:')"}},
				},
			},
			Webhook: &config.AuthenticationWebhook{URL: "https://tokens.example.org/ask", CA: config.NewBundle(pair.Cert), CacheTTL: config.Duration(2 * time.Minute)},
		},
		config.Authorization{Webhooks: []config.AuthorizationWebhook{{
			Name: "policy", URL: "https://policy.example.org", CA: config.NewBundle(pair.Cert), Client: &pair,
			Timeout: config.Duration(3 * time.Second), AuthorizedTTL: config.Duration(5 * time.Minute), UnauthorizedTTL: config.Duration(30 * time.Second),
			FailurePolicy: config.FailureDeny, MatchConditions: []string{"has(request.resourceAttributes)"},
		}}},
		IssuerAccess{},
	}, pair
}

// TestAccessGolden compares the files of a cluster with two issuers and two webhooks, and of a
// cluster without them, with golden files.
func TestAccessGolden(t *testing.T) {
	full, pair := access(t)
	site := full // with a proxy and a CA of the site
	site.Issuers = IssuerAccess{Proxy: true, CAs: "the CA of the site\n", PublicCAs: "the public CAs\n"}
	for name, a := range map[string]Access{"access": full, "access-none": {}, "access-site": site} {
		var got strings.Builder
		for _, f := range a.Files(paths.KubeAPI) {
			fmt.Fprintf(&got, "-- %s --\n%s", f.Name, f.Content)
		}
		fmt.Fprintf(&got, "-- node description --\n%+v\n", a.TokenWebhook())
		b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
		indented := strings.ReplaceAll(strings.TrimSuffix(pair.Cert.PEM(), "\n"), "\n", "\n            ")
		shown := strings.NewReplacer(indented, "CERTIFICATE", b64(pair.Cert.PEM()), "BASE64 CERTIFICATE", b64(pair.Key.PEM()), "BASE64 KEY").Replace(got.String())
		shown = regexp.MustCompile(`-[0-9a-f]{16}\.`).ReplaceAllString(shown, "-HASH.")
		shown = strings.ReplaceAll(shown, "&{Kubeconfig", "{Kubeconfig")
		golden.Assert(t, shown, name+".txt")
	}
}

// TestNotOurselves checks that the API server sends no request of a cluster component to a webhook,
// but sends the requests of users.
func TestNotOurselves(t *testing.T) {
	type identity struct {
		user   string
		groups []string
	}
	own := []identity{
		{"system:serviceaccount:kube-system:generic-garbage-collector", []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}},
		// an add-on
		{"system:serviceaccount:orlop-addons:policy", []string{"system:serviceaccounts", "system:serviceaccounts:orlop-addons", "system:authenticated"}},
	}
	a := authorities(t)
	want, err := Plan(node(), a)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range want.Leaves {
		if l.By == a.Kubernetes.CA && l.Spec.Usage == pki.Client {
			own = append(own, identity{l.Spec.CN, l.Spec.O})
		}
	}
	if len(own) < 10 {
		t.Fatalf("only %d identities of components: %v", len(own), own)
	}
	excepted := func(i identity) bool {
		return strings.Contains(notClusterComponent, "'"+i.user+"'") || slices.ContainsFunc(i.groups, func(g string) bool { return strings.Contains(notClusterComponent, "'"+g+"'") })
	}
	for _, i := range own {
		if !excepted(i) {
			t.Errorf("the webhooks get requests of component %s with groups %q", i.user, i.groups)
		}
	}
	for _, i := range []identity{
		{"jane", []string{"system:authenticated", "orlop:cluster-admins"}},
		{"system:serviceaccount:default:web", []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}},
	} {
		if excepted(i) {
			t.Errorf("the webhooks get no requests of user %s with groups %q", i.user, i.groups)
		}
	}
}

// TestAccessChanges checks that a new certificate of a webhook changes the name of its file, which
// makes the API server read it, and that the old file with its key is removed.
func TestAccessChanges(t *testing.T) {
	root, a := t.TempDir(), authorities(t)
	a.Access, _ = access(t)
	converge := func(want Want) {
		t.Helper()
		for _, op := range diff(t, want) {
			if err := op.Do(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func() string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(root, paths.KubeAPI, authorizationPrefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, " ")
	}
	converge(plan(t, node(), a, root))
	before := list()
	pair := certKey(t)
	a.Access.Authorization.Webhooks[0].Client = &pair
	ops := diff(t, plan(t, node(), a, root))
	if last := ops[len(ops)-1].String(); last != "remove "+before {
		t.Errorf("the last operation is %q, want the removal of %s", last, before)
	}
	converge(plan(t, node(), a, root))
	if after := list(); after == before || strings.Contains(after, " ") {
		t.Errorf("after the change of the certificate, the files are %s", after)
	}
	a.Access = Access{}
	converge(plan(t, node(), a, root))
	if left := list(); left != "" {
		t.Errorf("without webhooks, the files are %s", left)
	}
}

// TestCheck checks that Check returns the settings that only Kubernetes can validate, and that
// InDocument returns messages with the field names of the operator's document.
func TestCheck(t *testing.T) {
	if c := (Access{}).Check("cluster.local"); c != nil {
		t.Errorf("without issuers and webhooks: %+v, want nil", c)
	}
	a, _ := access(t)
	c := a.Check("cluster.local")
	if c == nil || !bytes.Contains([]byte(c.Authentication), []byte("claims.groups")) || !strings.Contains(c.Authorization, "has(request.resourceAttributes)") {
		t.Errorf("the input of check-access is %+v", c)
	}
	got := InDocument("jwt[1].claimMappings.username.expression: Invalid value\nwebhooks[policy].matchConditions[0].expression: no\n")
	want := "Cluster.spec.kubernetes.authentication.jwt[1].username: Invalid value; Cluster.spec.kubernetes.authorization.webhooks[policy].matchConditions[0].expression: no"
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
