package metrics

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestRound checks that the scraper authenticates with the certificate of the component, and that
// it rejects a kubelet that serves with the certificate of another node.
func TestRound(t *testing.T) {
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dirs := dirs.In(t.TempDir())
	own := issue(t, ca, pki.Spec{CN: nodespec.MetricsUser, Usage: pki.Client, TTL: time.Hour})
	for name, content := range map[string][]byte{nodespec.CA: ca.CertPEM(), nodespec.MetricsCert: own.CertPEM(), nodespec.MetricsKey: own.KeyPEM()} {
		path := filepath.Join(dirs.Controllers, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	node := func(name string, port int, addresses ...string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		if err := all.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	port := kubelet(t, ca, "one")
	node("one", port, "127.0.0.1")
	node("impostor", port, "127.0.0.1")
	node("nowhere", port)
	b := &store{}
	s, err := newScraper(dirs, corelisters.NewNodeLister(all), b)
	if err != nil {
		t.Fatal(err)
	}
	s.round(context.Background())
	if b.of("one").node.last.cpu != 5 {
		t.Errorf("one: %+v", b.of("one"))
	}
	if !b.of("impostor").node.last.at.IsZero() {
		t.Error("the scraper accepted the metrics of a kubelet with the certificate of another node")
	}
	want := map[string]string{"impostor": "certificate is valid for one, not impostor", "nowhere": "its Node has no address yet"}
	if len(s.problems) != len(want) {
		t.Errorf("problems of the nodes: %v", s.problems)
	}
	for name, part := range want {
		if !strings.Contains(s.problems[name], part) {
			t.Errorf("%s: %q, want %q in it", name, s.problems[name], part)
		}
	}
	if got := s.describe(); !strings.HasPrefix(got, "2 of 3 nodes do not report their usage, the first: impostor: ") {
		t.Error(got)
	}
}

func issue(t *testing.T, ca *pki.CA, spec pki.Spec) *pki.Leaf {
	t.Helper()
	leaf, err := ca.Issue(spec)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// kubelet runs a fake kubelet with a certificate for this name and returns its port. The kubelet
// serves metrics only to a client with the certificate of the component.
func kubelet(t *testing.T, ca *pki.CA, name string) int {
	t.Helper()
	leaf := issue(t, ca, pki.Spec{CN: "system:node:" + name, Usage: pki.Server, DNS: []string{name}, TTL: time.Hour})
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	callers := x509.NewCertPool()
	callers.AddCert(ca.Cert)
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: callers, ClientAuth: tls.RequireAndVerifyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics/resource" || r.TLS.PeerCertificates[0].Subject.CommonName != nodespec.MetricsUser {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			bytes.NewBufferString("node_cpu_usage_seconds_total 5\nnode_memory_working_set_bytes 6\n").WriteTo(w)
		}),
	}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return number
}
