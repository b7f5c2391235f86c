package kms

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	plugin "k8s.io/kms/pkg/service"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kms/transittest"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// secret is the AppRole secret ID, which no error may contain.
const secret = "hunter2-secret-id"

// site is a key manager, and a plugin (service) that uses it.
type site struct {
	*transittest.Server
	t       *testing.T
	file    string
	now     time.Time
	key     nodespec.KMS
	service *Service
	results []string // of the checks, in order: the version of the key, or the error
}

// serve starts a server with TLS on loopback, and returns it with its CA.
func serve(t *testing.T, h http.Handler) (*httptest.Server, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.Config.ErrorLog = nil
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Server: transittest.New("role-1", secret), t: t, file: filepath.Join(t.TempDir(), nodespec.KMSFile), now: time.Unix(1e9, 0)}
	s.Now = func() time.Time { return s.now }
	server, ca := serve(t, s.Server)
	s.key = nodespec.KMS{Endpoint: server.URL, CAs: ca, Mount: "transit", Key: "orlop", AppRole: &nodespec.KMSAppRole{Mount: "approle", RoleID: "role-1", SecretID: secret}}
	s.write()
	s.service = New(s.file, "", func(version string, err error) {
		if err != nil {
			version = err.Error()
		}
		s.results = append(s.results, version)
	})
	s.service.key.now = s.Now
	return s
}

// write writes the settings.
func (s *site) write() {
	s.t.Helper()
	content, err := json.Marshal(s.key)
	if err == nil {
		err = os.WriteFile(s.file, content, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// status runs a check and compares its result: the version of the key, or a part of the error. The
// result must not contain the secret.
func (s *site) status(want string) {
	s.t.Helper()
	_, err := s.service.Status(s.t.Context())
	got := s.results[len(s.results)-1]
	if strings.HasPrefix(want, "v") != (err == nil) || !strings.Contains(got, want) || strings.Contains(got, secret) {
		s.t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(s.service.LastError(), err) {
		s.t.Errorf("LastError returns %v, want the error of the check", s.service.LastError())
	}
}

// TestKey checks encryption, and decryption with the present and a former version of the key. It
// also checks that changed settings apply without a restart.
func TestKey(t *testing.T) {
	s := newSite(t)
	s.status("v1")
	first, err := s.service.Encrypt(t.Context(), "", []byte("a key"))
	if err != nil || first.KeyID != "v1" {
		t.Fatalf("%+v, %v", first, err)
	}
	s.Rotate()
	s.status("v2")
	plain, err := s.service.Decrypt(t.Context(), "", &plugin.DecryptRequest{Ciphertext: first.Ciphertext, KeyID: first.KeyID})
	if err != nil || string(plain) != "a key" {
		t.Errorf("decryption with the former version: %q, %v", plain, err)
	}
	if _, err := s.service.Decrypt(t.Context(), "", &plugin.DecryptRequest{Ciphertext: []byte("vault:v9:AAAA")}); err == nil || !strings.Contains(err.Error(), "it answers 400: invalid ciphertext") {
		t.Errorf("a changed ciphertext: %v", err)
	}
	if n := s.Logins(); n != 1 {
		t.Errorf("%d logins, want 1", n)
	}
	other := newSite(t)
	s.key.Endpoint, s.key.CAs = other.key.Endpoint, other.key.CAs
	s.write()
	s.status("v1")
	if other.Logins() != 1 {
		t.Error("the plugin does not use the server in the changed settings")
	}
}

// TestTokens checks that the plugin replaces a token before it expires, and when the server no
// longer knows the token. If the token lacks rights, the plugin logs in again at most once a
// minute.
func TestTokens(t *testing.T) {
	s := newSite(t)
	s.TTL = time.Hour
	s.status("v1")
	s.now = s.now.Add(39 * time.Minute)
	s.status("v1")
	if n := s.Logins(); n != 1 {
		t.Errorf("%d logins before two thirds of the token's validity, want 1", n)
	}
	s.now = s.now.Add(2 * time.Minute)
	s.status("v1")
	if n := s.Logins(); n != 2 {
		t.Errorf("%d logins after two thirds of the token's validity, want 2", n)
	}
	s.now = s.now.Add(2 * time.Minute)
	s.Forget() // for example a restart of the server
	s.status("v1")
	if n := s.Logins(); n != 3 {
		t.Errorf("%d logins after the server revoked the token, want 3", n)
	}
	s.Deny(true)
	for range 5 {
		s.status("cannot encrypt: it answers 403: permission denied; the policy of the machine needs the capability update on transit/encrypt/orlop")
	}
	if n := s.Logins(); n != 3 {
		t.Errorf("%d logins within a minute without rights, want 3", n)
	}
	s.now = s.now.Add(2 * time.Minute)
	s.status("it answers 403")
	if n := s.Logins(); n != 4 {
		t.Errorf("%d logins after a minute without rights, want 4", n)
	}
	s.Deny(false)
	s.status("v1")
}

// TestCertificate checks the login with a TLS certificate, with and without a role.
func TestCertificate(t *testing.T) {
	s := newSite(t)
	s.CertRole = "machines"
	leaf, err := pki.SelfSigned(pki.Spec{CN: "m1", Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.key.AppRole = nil
	s.key.Certificate = &nodespec.KMSCertificate{Mount: "cert", Cert: string(leaf.CertPEM()), Key: string(leaf.KeyPEM())}
	for role, want := range map[string]string{"": "v1", "machines": "v1", "others": "cannot log in: it answers 400: invalid certificate or no client certificate supplied; correct Cluster.spec.kubernetes.apiServer.kms.transit.certificate"} {
		s.key.Certificate.Role = role
		s.write()
		s.status(want)
	}
}

// TestSettings checks the error of each wrong setting. After the setting is corrected, the plugin
// works.
func TestSettings(t *testing.T) {
	foreign, err := pki.NewCA("foreign", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*nodespec.KMS)
		want   string
	}{
		"secret":    {func(k *nodespec.KMS) { k.AppRole.SecretID += "x" }, "cannot encrypt: cannot log in: it answers 400: invalid role or secret ID; correct Cluster.spec.kubernetes.apiServer.kms.transit.appRole"},
		"mount":     {func(k *nodespec.KMS) { k.AppRole.Mount = "other" }, "it answers 403: permission denied; correct Cluster.spec.kubernetes.apiServer.kms.transit.appRole"},
		"namespace": {func(k *nodespec.KMS) { k.Namespace = "other" }, "it answers 404: no handler for route"},
		"key":       {func(k *nodespec.KMS) { k.Key = "other" }, "it answers 400: encryption key not found; create the key other of the secrets engine transit, or correct key"},
		"CA":        {func(k *nodespec.KMS) { k.CAs = string(foreign.CertPEM()) }, "certificate signed by unknown authority; correct Cluster.spec.kubernetes.apiServer.kms.transit.ca or Machine.spec.egress.ca"},
		"no CA":     {func(k *nodespec.KMS) { k.CAs = "" }, "no CA is given for the server, and public CAs are not trusted here"},
		"address":   {func(k *nodespec.KMS) { k.Endpoint = "https://127.0.0.1:1" }, "connection refused; check that the server runs and that the machine reaches it"},
		"no login":  {func(k *nodespec.KMS) { k.AppRole = nil }, "has no credentials; apply the configuration again"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			correct, role := s.key, *s.key.AppRole
			c.change(&s.key)
			s.write()
			s.status(c.want)
			correct.AppRole = &role
			s.key = correct
			s.write()
			s.status("v1")
		})
	}
	s := newSite(t)
	if err := os.WriteFile(s.file, []byte(`{"appRole": {"secretID": "`+secret+`"`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.status("is damaged")
	s.Seal(true)
	s.write()
	s.status("it answers 503: Vault is sealed; unseal the server")
	s.Seal(false)
	s.status("v1")
}

// TestAnswers checks that answers of a wrong, broken or malicious server are errors, and that the
// client does not send the token to another server.
func TestAnswers(t *testing.T) {
	var redirected atomic.Int32
	other, _ := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Add(1) }))
	text := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body) // the client may have disconnected
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"an answer that is too large": {text(200, strings.Repeat(" ", maxAnswer+1)), "the answer has more than 64 KiB"},
		"no JSON":                     {text(200, "<html>"), "the answer is not JSON of the expected form"},
		"empty":                       {text(200, "{}"), "the server answers without a ciphertext of Transit"},
		"no version":                  {text(200, `{"data": {"ciphertext": "vault:vx:AAAA"}}`), "the server answers without a ciphertext of Transit"},
		"a long version":              {text(200, `{"data": {"ciphertext": "vault:v`+strings.Repeat("1", 99)+`:AAAA"}}`), "the server answers without a ciphertext of Transit"},
		"control sequence":            {text(500, "{\"errors\": [\"a\\u001b[31m\\nb\"]}"), "it answers 500: a"},
		"no text":                     {text(502, "<html>"), "it answers 502: Bad Gateway; see the log of the server"},
		"redirect":                    {http.RedirectHandler(other.URL, http.StatusTemporaryRedirect).ServeHTTP, "it answers 307: Temporary Redirect; the machine follows no redirect"},
		"a ciphertext of another text": {func(w http.ResponseWriter, r *http.Request) {
			text(200, map[bool]string{true: `{"data": {"ciphertext": "vault:v1:AAAA"}}`, false: `{"data": {"plaintext": "AAAA"}}`}[strings.Contains(r.URL.Path, "encrypt")])(w, r)
		}, "decrypts to another text than was encrypted"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			server, ca := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/v1/auth/") {
					text(200, `{"auth": {"client_token": "t"}}`)(w, r)
					return
				}
				c.answer(w, r)
			}))
			s.key.Endpoint, s.key.CAs = server.URL, ca
			s.write()
			s.status(c.want)
			if got := s.results[0]; strings.ContainsAny(got, "\x1b\n") {
				t.Errorf("%q has control characters", got)
			}
		})
	}
	if redirected.Load() > 0 {
		t.Error("a redirect was followed")
	}
	for name, token := range map[string]string{"empty": "", "with a header": "a\r\nX: b"} {
		s := newSite(t)
		body, err := json.Marshal(map[string]any{"auth": map[string]string{"client_token": token}})
		if err != nil {
			t.Fatal(err)
		}
		server, ca := serve(t, text(200, string(body)))
		s.key.Endpoint, s.key.CAs = server.URL, ca
		s.write()
		t.Run("token: "+name, func(t *testing.T) { s.status("cannot log in: it answers without a token") })
	}
}

// TestSilence checks a server that does not answer: each caller waits until its own deadline at
// most, and not for the login of another caller.
func TestSilence(t *testing.T) {
	s := newSite(t)
	server, ca := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so the server notices the end of the connection
		<-r.Context().Done()
	}))
	s.key.Endpoint, s.key.CAs = server.URL, ca
	s.write()
	done := make(chan error, 2)
	for range cap(done) {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_, err := s.service.Encrypt(ctx, "", []byte("a"))
			done <- err
		}()
	}
	for range cap(done) {
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "no answer within") {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a caller waits beyond its deadline")
		}
	}
}

// TestForwarder checks that the plugin reaches the key manager through the socket of the forwarder.
func TestForwarder(t *testing.T) {
	s := newSite(t)
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var used atomic.Int32
	forwarder := egress.NewForwarder(func() egress.Config { used.Add(1); return egress.Config{} })
	server := &http.Server{Handler: forwarder}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	s.service.key.forwarder = socket
	s.status("v1")
	if used.Load() == 0 {
		t.Error("the server was reached directly")
	}
}

// node returns the specification and the directories of a control-plane machine with a key manager.
// If encrypt is true, the key manager encrypts Secrets, otherwise a key does. The name of the
// directory is short, because the path of a socket has at most 107 bytes.
func (s *site) node(encrypt bool) (nodespec.Spec, dirs.Dirs) {
	s.t.Helper()
	spec := nodespec.Spec{Node: nodespec.Node{ControlPlane: true}}
	spec.Kubernetes.APIServer.KMS = &config.KMS{}
	d := dirs.Dirs{API: filepath.Dir(s.file)}
	box := "  - secretbox:\n      keys:\n      - {name: a, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}\n"
	manager := "  - kms: {apiVersion: v2, name: transit-a, endpoint: \"unix://" + d.KMSSocket() + "\", timeout: 10s}\n"
	if encrypt {
		box, manager = manager, box
	}
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n" + box + manager + "  - identity: {}\n"
	if err := os.WriteFile(filepath.Join(d.API, nodespec.Encryption), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return spec, d
}

// TestUpstream checks the plugin with the code of the API server. The key manager encrypts Secrets.
// They stay readable when another provider encrypts, and are stale after a rotation of the key. If
// the key manager is unavailable, the error contains the reason.
func TestUpstream(t *testing.T) {
	s := newSite(t)
	where := value.DefaultContext("/registry/secrets/a/b")
	// withSecrets loads the configuration anew, because the API server restarts for each
	// configuration.
	withSecrets := func(encrypt bool, use func(value.Transformer, func() error)) {
		t.Helper()
		spec, d := s.node(encrypt)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		file, last, stop, err := ForCommand(ctx, spec, d)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		c, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "")
		if err != nil {
			t.Fatal(err)
		}
		use(c.Transformers[schema.GroupResource{Resource: "secrets"}], last)
	}
	var stored []byte
	reads := func(wantStale bool) func(value.Transformer, func() error) {
		return func(v value.Transformer, last func() error) {
			t.Helper()
			plain, stale, err := v.TransformFromStorage(t.Context(), stored, where)
			if err != nil || string(plain) != "a Secret" || stale != wantStale || last() != nil {
				t.Errorf("%q, stale %t, %v, %v", plain, stale, err, last())
			}
		}
	}
	withSecrets(true, func(v value.Transformer, _ func() error) {
		var err error
		if stored, err = v.TransformToStorage(t.Context(), []byte("a Secret"), where); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(stored), "k8s:enc:kms:v2:transit-a:") {
			t.Errorf("stored as %.40q", stored)
		}
	})
	withSecrets(true, reads(false))
	withSecrets(false, reads(true))
	s.Rotate()
	withSecrets(true, reads(true))
	s.Seal(true)
	withSecrets(true, func(v value.Transformer, last func() error) {
		if plain, _, err := v.TransformFromStorage(t.Context(), stored, where); err == nil {
			t.Errorf("read %q without the key manager", plain)
		}
		if err := last(); err == nil || !strings.Contains(err.Error(), "unseal the server") {
			t.Errorf("the last error of the plugin is %v", err)
		}
	})
	left, err := filepath.Glob(filepath.Join(filepath.Dir(s.file), "kms-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files that were not removed: %q, %v", left, err)
	}
}

// TestServe checks that Serve replaces the socket of a former process, and the mode of the new
// socket. It also checks that a machine without a key manager needs no socket.
func TestServe(t *testing.T) {
	s := newSite(t)
	socket := filepath.Join(filepath.Dir(s.file), nodespec.KMSSocket)
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	serving, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.service.Serve(ctx, socket, func() { close(serving) }) }()
	select {
	case <-serving:
	case err := <-ended:
		t.Fatal(err)
	}
	if at, err := os.Stat(socket); err != nil || at.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", at.Mode(), err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.service.Serve(t.Context(), filepath.Join(socket, "x"), func() {}); err == nil || !strings.Contains(err.Error(), "/x: cannot listen") {
		t.Errorf("a socket in a missing directory: %v", err)
	}
	file, last, stop, err := ForCommand(t.Context(), nodespec.Spec{}, dirs.Dirs{API: "/a"})
	if err != nil || file != "/a/encryption.yaml" || last() != nil {
		t.Errorf("without a key manager: %s, %v, %v", file, last(), err)
	}
	stop()
}

// TestRun checks that Run announces the component before it calls its function serving. After that
// call, the API server can use the plugin, so a later announcement could replace a problem that the
// API server has found.
func TestRun(t *testing.T) {
	s := newSite(t)
	spec, d := s.node(true)
	ctx, cancel := context.WithCancel(t.Context())
	var order []string
	env := component.Env{Spec: spec, Dirs: d, Announce: func(name string, ready bool, detail string) {
		order = append(order, fmt.Sprint(name, " ", ready, " ", detail))
	}}
	err := Run(ctx, env, func() {
		order = append(order, "serving")
		cancel()
	})
	if want := "kms true the API server has not used the key manager yet, serving"; err != nil || strings.Join(order, ", ") != want {
		t.Errorf("%q, %v; want %q", order, err, want)
	}
}

// TestDescribe checks the detail that the component announces, and on which machines it runs.
func TestDescribe(t *testing.T) {
	s := newSite(t)
	s.key.Endpoint = "https://vault.example.com:8200"
	s.write()
	for want, got := range map[string]string{
		"https://vault.example.com:8200, key transit/orlop, version v2": describe(s.file, "v2", nil),
		"problem: https://vault.example.com:8200, key transit/orlop: cannot encrypt (meanwhile no Secret can be written, and only Secrets that the API server has read since its start can be read)": describe(s.file, "", errors.New("cannot encrypt")),
		"problem: the key manager: no file (meanwhile no Secret can be written, and only Secrets that the API server has read since its start can be read)":                                          describe(s.file+"x", "", errors.New("no file")),
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	managed, worker := nodespec.Spec{Node: nodespec.Node{ControlPlane: true}}, nodespec.Spec{}
	managed.Kubernetes.APIServer.KMS = &config.KMS{}
	worker.Kubernetes.APIServer.KMS = &config.KMS{}
	if len(Components(managed)) != 1 || len(Components(worker)) != 0 || len(Components(nodespec.Spec{})) != 0 {
		t.Error("the component runs on a wrong machine, or not on all machines with a key manager")
	}
}
