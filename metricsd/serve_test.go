package metricsd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/metricsd/host"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/service/portserver/portservertest"
	"github.com/orlop-os/orlop/pkg/trust"
)

const day = 24 * time.Hour

// bench is a running metricsd with fakes of the other processes.
type bench struct {
	t                 *testing.T
	operator, cluster *pki.CA
	dir               string
	address           string
	log               *portservertest.Log

	mu     sync.Mutex
	answer http.HandlerFunc // the handler of every process; if nil, process sends a metric
}

// tokensOf has the status with which the fake orchestrator-node answers for each token.
var tokensOf = map[string]int{"prometheus": http.StatusNoContent, "default": http.StatusForbidden, "expired": http.StatusUnauthorized, "outage": http.StatusServiceUnavailable}

func newBench(t *testing.T) *bench { return newBenchIn(t, t.TempDir()) }

// newBenchIn starts metricsd with its directory and the sockets of the other processes below root.
func newBenchIn(t *testing.T, root string) *bench {
	b := &bench{t: t, operator: mustCA(t, "operator"), cluster: mustCA(t, "kubernetes"), dir: filepath.Join(root, "own"), log: new(portservertest.Log)}
	sockets := filepath.Join(root, "sockets")
	if err := errors.Join(os.Mkdir(b.dir, 0o700), os.Mkdir(sockets, 0o700)); err != nil {
		t.Fatal(err)
	}
	serving := b.leaf(b.cluster, pki.Spec{CN: nodespec.MetricsdCN, DNS: []string{"m1"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Usage: pki.Server, TTL: day})
	b.write(nodespec.MetricsdCert, serving.CertPEM())
	b.write(nodespec.MetricsdKey, serving.KeyPEM())
	b.write(nodespec.MetricsCallerCAs, b.operator.CertPEM())
	b.revoke()
	b.settings(nodespec.MetricsSettings{Tokens: true, Certificates: true})
	socket := func(service string) string { return filepath.Join(sockets, service) }
	// the controllers do not run
	for _, service := range []string{nodespec.ServiceMachined, nodespec.ServiceAPI, nodespec.ServiceNode} {
		l, err := net.Listen("unix", socket(service))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(b.process)}
		t.Cleanup(func() { server.Close() })
		go func() { _ = server.Serve(l) }()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Options{Listener: listener, Dir: b.dir, Socket: socket, Host: host.System(), Log: b.log, Ready: func(bool, string) {}})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// process handles the requests to the sockets of the other processes. If b.answer is nil, process
// sends a metric with the path in its name.
func (b *bench) process(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == nodespec.AuthorizeMetrics {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.WriteHeader(tokensOf[token])
		return
	}
	b.mu.Lock()
	answer := b.answer
	b.mu.Unlock()
	if answer == nil {
		answer = func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "of%s 1\n", strings.ReplaceAll(r.URL.Path, "/", "_"))
		}
	}
	answer(w, r)
}

func (b *bench) setAnswer(f http.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

func mustCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(name, 365*day)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (b *bench) leaf(ca *pki.CA, spec pki.Spec) *pki.Leaf {
	b.t.Helper()
	leaf, err := ca.Issue(spec)
	if err != nil {
		b.t.Fatal(err)
	}
	return leaf
}

// reader returns the certificate of an operator with role reader.
func (b *bench) reader() *pki.Leaf {
	return b.leaf(b.operator, pki.Spec{CN: "alice", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: day})
}

// write replaces a file by rename, like machined.
func (b *bench) write(name string, text []byte) {
	b.t.Helper()
	fresh := filepath.Join(b.dir, name+".new")
	if err := errors.Join(os.WriteFile(fresh, text, 0o600), os.Rename(fresh, filepath.Join(b.dir, name))); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) writeJSON(name string, value any) {
	b.t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		b.t.Fatal(err)
	}
	b.write(name, text)
}

func (b *bench) settings(s nodespec.MetricsSettings) { b.writeJSON(nodespec.MetricsSettingsFile, s) }

func (b *bench) revoke(list ...trust.Revocation) {
	b.writeJSON(nodespec.Revoked, trust.RevokedSet{Revoked: list, TrustedRoots: []string{pki.Fingerprint(b.operator.Cert)}})
}

// client returns a client with the certificate leaf, or without a certificate if leaf is nil. The
// client reuses one connection.
func (b *bench) client(leaf *pki.Leaf) *http.Client {
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(b.cluster.Cert)
	if leaf != nil {
		// the client presents the certificate even if the server requests other CAs
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}, nil
		}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	b.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// get returns the status and the body for a path; the status is 0 if there is no complete answer.
func (b *bench) get(c *http.Client, path, token string) (int, string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "https://"+b.address+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	answer, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// want checks the status of the answer for a path, and that the body contains text.
func (b *bench) want(c *http.Client, path, token string, status int, text string) {
	b.t.Helper()
	if got, says := b.get(c, path, token); got != status || !strings.Contains(says, text) {
		b.t.Errorf("%s with %.30q: %d %.300q; want %d %q", path, token, got, says, status, text)
	}
}

// TestCallers checks which callers may read the metrics.
func TestCallers(t *testing.T) {
	b := newBench(t)
	issue := func(spec pki.Spec) *pki.Leaf {
		spec.Usage, spec.TTL = max(spec.Usage, pki.Client), day
		return b.leaf(b.operator, spec)
	}
	past := time.Now().Add(-2 * day)
	for _, c := range []struct {
		name   string
		leaf   *pki.Leaf
		token  string
		status int // 0: the connection is rejected
		says   string
	}{
		{"no credentials", nil, "", http.StatusUnauthorized, "a token of the cluster"},
		{"a password", nil, "Basic YTpi", http.StatusUnauthorized, "a token of the cluster"},
		{"an empty token", nil, "Bearer ", http.StatusUnauthorized, "a token of the cluster"},
		{"a huge token", nil, "Bearer " + strings.Repeat("x", maxToken+1), http.StatusUnauthorized, "too long"},
		{"a token with the right", nil, "Bearer prometheus", http.StatusOK, "of_machine 1"},
		{"a token without the right", nil, "Bearer default", http.StatusForbidden, "no right to get the nonResourceURL /metrics"},
		{"an expired token", nil, "Bearer expired", http.StatusUnauthorized, "not valid in this cluster"},
		{"a new token in an outage", nil, "Bearer outage", http.StatusServiceUnavailable, "cannot be checked"},
		{"reader", b.reader(), "", http.StatusOK, "of_machine 1"},
		{"operator", issue(pki.Spec{CN: "a", O: []string{pki.RoleOperator}}), "", http.StatusOK, "of_machine 1"},
		{"admin", issue(pki.Spec{CN: "a", O: []string{pki.RoleAdmin}}), "", http.StatusOK, "of_machine 1"},
		{"a certificate without a role", issue(pki.Spec{CN: "a"}), "", http.StatusForbidden, "no role that may read metrics"},
		{"the role for etcd backups", issue(pki.Spec{CN: "a", O: []string{pki.RoleEtcdBackup}}), "", http.StatusForbidden, "no role that may read metrics"},
		{"a role of a machine", issue(pki.Spec{CN: "a", O: []string{pki.RoleMachine}}), "", http.StatusForbidden, "no role that may read metrics"},
		{"a wrong role with a good token", issue(pki.Spec{CN: "a"}), "Bearer prometheus", http.StatusForbidden, "no role that may read metrics"},
		{"a foreign CA", b.leaf(mustCA(t, "operator"), pki.Spec{CN: "a", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day}), "", 0, ""},
		{"the CA of the cluster", b.leaf(b.cluster, pki.Spec{CN: "a", O: []string{pki.RoleAdmin, "system:masters"}, Usage: pki.Client, TTL: day}), "", 0, ""},
		{"a server's certificate", b.leaf(b.operator, pki.Spec{CN: "a", O: []string{pki.RoleAdmin}, Usage: pki.Server, TTL: day}), "", 0, ""},
		{"an expired certificate", b.leaf(b.operator, pki.Spec{CN: "a", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day, Now: past}), "", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, says := b.get(b.client(c.leaf), "/metrics/machine", c.token)
			if status != c.status || !strings.Contains(says, c.says) {
				t.Errorf("the answer is %d %.300q; want %d %q", status, says, c.status, c.says)
			}
		})
	}
	if !strings.Contains(b.log.String(), `"msg":"rejected"`) {
		t.Errorf("no rejected caller in the log:\n%s", b.log)
	}
	for _, secret := range []string{"prometheus", "default", "YTpi"} {
		if strings.Contains(b.log.String(), secret) {
			t.Errorf("the log shows %q:\n%s", secret, b.log)
		}
	}
}

// TestChanges checks that a change of the files applies to the next request, also on an open
// connection.
func TestChanges(t *testing.T) {
	b := newBench(t)
	leaf := b.reader()
	operator, pod := b.client(leaf), b.client(nil)
	const path, token = "/metrics/host", "Bearer prometheus"
	b.want(operator, path, "", http.StatusOK, "node_load1 ")
	b.want(pod, path, token, http.StatusOK, "node_load1 ")

	b.revoke(trust.Revocation{Lineage: pki.Serial(leaf.Cert), At: time.Now(), By: "bob", Generation: 1})
	b.want(operator, path, "", http.StatusForbidden, "revoked")
	b.want(b.client(leaf), path, "", http.StatusForbidden, "revoked")
	b.revoke(trust.Revocation{Name: "alice", At: time.Now(), By: "bob", Generation: 1})
	b.want(operator, path, "", http.StatusForbidden, "revoked")
	b.revoke()
	b.want(operator, path, "", http.StatusOK, "node_load1 ")

	b.settings(nodespec.MetricsSettings{Certificates: true})
	b.want(pod, path, token, http.StatusForbidden, "accepts no tokens")
	b.settings(nodespec.MetricsSettings{Tokens: true})
	b.want(operator, path, "", http.StatusForbidden, "accepts no certificates")
	b.want(pod, path, token, http.StatusOK, "node_load1 ")

	b.settings(nodespec.MetricsSettings{Tokens: true, Certificates: true})
	b.write(nodespec.MetricsCallerCAs, mustCA(t, "operator").CertPEM())
	b.want(operator, path, "", http.StatusForbidden, "not valid here")
	b.write(nodespec.MetricsCallerCAs, nil) // tokens need no CAs of operators
	b.want(pod, path, token, http.StatusOK, "node_load1 ")
	b.write(nodespec.MetricsSettingsFile, []byte("{")) // the previous files stay in use
	b.want(pod, path, token, http.StatusOK, "node_load1 ")

	s := &store{dir: b.dir} // has never read valid files
	_, first := s.get()
	if current, err := s.get(); current != nil || err == nil || err != first {
		t.Errorf("invalid files that have not changed: %v, %v; want the error of the first load, %v", current, err, first)
	}
}

// TestNetworks checks that only the configured networks can connect.
func TestNetworks(t *testing.T) {
	b := newBench(t)
	open := b.client(nil)
	const path, token = "/metrics/host", "Bearer prometheus"
	b.want(open, path, token, http.StatusOK, "node_load1 ")
	b.settings(nodespec.MetricsSettings{Tokens: true, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}})
	b.want(open, path, token, http.StatusForbidden, "this address may not connect")
	if status, says := b.get(b.client(nil), path, token); status != 0 {
		t.Errorf("a new connection from a wrong network: %d %q", status, says)
	}
	b.settings(nodespec.MetricsSettings{Tokens: true, From: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")}})
	b.want(b.client(nil), path, token, http.StatusOK, "node_load1 ")
	if !strings.Contains(b.log.String(), "may not connect") {
		t.Errorf("no rejected address in the log:\n%s", b.log)
	}
}

// TestPaths checks the answer for each path.
func TestPaths(t *testing.T) {
	b := newBench(t)
	c := b.client(b.reader())
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/metrics/host":               {http.StatusOK, "# TYPE node_cpu_seconds_total counter\n"},
		"/metrics/machine":            {http.StatusOK, "of_machine 1\n"},
		"/metrics/etcd":               {http.StatusOK, "of_etcd 1\n"},
		"/metrics/containerd":         {http.StatusOK, "of_containerd 1\n"},
		"/metrics/scheduler":          {http.StatusBadGateway, "orchestrator-controllers does not answer on this machine"},
		"/metrics/controllers":        {http.StatusBadGateway, "orchestrator-controllers does not answer on this machine"},
		"/metrics/controller-manager": {http.StatusBadGateway, "orchestrator-controllers does not answer on this machine"},
		"/metrics":                    {http.StatusNotFound, "the paths are /metrics/containerd, "},
		"/authorize":                  {http.StatusNotFound, "the paths are"},
		"/metrics/../authorize":       {http.StatusNotFound, "the paths are"},
		"/debug/pprof/":               {http.StatusNotFound, "the paths are"},
	} {
		b.want(c, path, "", want.status, want.text)
	}
	answer, err := c.Post("https://"+b.address+"/metrics/host", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", answer.StatusCode)
	}
	if answer.ProtoMajor != 1 {
		t.Errorf("the protocol is %s", answer.Proto)
	}
}

// TestBadProcess checks the answers if a process fails or sends too much.
func TestBadProcess(t *testing.T) {
	b := newBench(t)
	c := b.client(b.reader())
	b.setAnswer(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no metrics yet", http.StatusServiceUnavailable)
	})
	b.want(c, "/metrics/machine", "", http.StatusBadGateway, "machined: no metrics yet")
	b.setAnswer(func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 1<<20)
		for range maxAnswer>>20 + 1 {
			_, _ = w.Write(piece)
		}
	})
	if status, says := b.get(c, "/metrics/machine", ""); status != 0 || !strings.Contains(says, "EOF") {
		t.Errorf("a process that sends too much: %d %.100q; want an incomplete answer", status, says)
	}
	b.setAnswer(nil)
	b.want(c, "/metrics/machine", "", http.StatusOK, "of_machine 1")
}

// TestScrapeLimit checks that the number of concurrent scrapes is limited.
func TestScrapeLimit(t *testing.T) {
	b := newBench(t)
	begun, end := make(chan struct{}, 2*maxScrapes), make(chan struct{})
	b.setAnswer(func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-end
		fmt.Fprintln(w, "slow 1")
	})
	c, results := b.client(b.reader()), make(chan int, maxScrapes)
	for range maxScrapes {
		go func() {
			status, _ := b.get(c, "/metrics/machine", "")
			results <- status
		}()
		<-begun
	}
	b.want(c, "/metrics/host", "", http.StatusServiceUnavailable, "too many scrapes")
	close(end)
	for range maxScrapes {
		if status := <-results; status != http.StatusOK {
			t.Errorf("a slow scrape: %d", status)
		}
	}
	b.want(c, "/metrics/host", "", http.StatusOK, "node_load1 ")
}

// TestConnectionLimit checks the limit of connections per address, with connections on which the
// client sends nothing.
func TestConnectionLimit(t *testing.T) {
	b := newBench(t)
	hangUp := portservertest.Connect(t, b.address, maxPerAddress)
	if status, says := b.get(b.client(b.reader()), "/metrics/host", ""); status != 0 {
		t.Errorf("a connection beyond the limit: %d %q", status, says)
	}
	hangUp()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if status, _ := b.get(b.client(b.reader()), "/metrics/host", ""); status == http.StatusOK {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("a new connection is still rejected after the others have ended")
		}
	}
}
