package forwarder

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/egress/egresstest"
)

// TestOpen checks that containerd and the API server reach a server through the forwarder and the
// proxy of the site: containerd by the URL with its credentials, the API server by the socket.
// Another client, which has no credentials, is rejected.
func TestOpen(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer server.Close()
	p := &egresstest.Proxy{Username: "machines", Password: "word", Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}}
	proxy := httptest.NewServer(p)
	defer proxy.Close()
	socket := filepath.Join(t.TempDir(), "s")
	var opened int
	s := New(Deps{
		Config: func() egress.Config {
			return egress.Config{Proxy: strings.Replace(proxy.URL, "//", "//machines:word@", 1)}
		},
		Listen: func() (net.Listener, error) {
			if opened++; opened == 1 {
				return nil, errors.New("not yet")
			}
			return net.Listen("unix", socket)
		},
		Event: func(kind, message string) { t.Error(kind, message) },
	})
	if _, err := s.Open(); err == nil || err.Error() != "egress: cannot open the forwarder: not yet" {
		t.Errorf("%v", err)
	}
	text, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Open(); again != text || err != nil || opened != 2 {
		t.Errorf("%q, %v; opened %d times", again, err, opened)
	}
	at, err := url.Parse(text)
	if err != nil || strings.Contains(text, "word") {
		t.Fatalf("%s, %v", text, err)
	}
	get := func(transport *http.Transport) (string, error) {
		transport.TLSClientConfig, transport.DisableKeepAlives = &tls.Config{InsecureSkipVerify: true}, true
		answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("https://registry.example.com/v2/")
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	if text, err := get(&http.Transport{Proxy: http.ProxyURL(at)}); text != "hello" || err != nil {
		t.Errorf("containerd: %q, %v", text, err)
	}
	stranger := *at
	stranger.User = nil
	if text, err := get(&http.Transport{Proxy: http.ProxyURL(&stranger)}); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("another program: %q, %v", text, err)
	}
	// dial connects as upstream's egress selector does
	// (k8s.io/apiserver/pkg/server/egressselector).
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(conn, "CONNECT "+address+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			return nil, err
		}
		const want = "HTTP/1.1 200 Connected\r\n\r\n"
		said := make([]byte, len(want))
		if _, err := io.ReadFull(conn, said); err != nil || string(said) != want {
			return nil, errors.New(string(said))
		}
		return conn, nil
	}
	if text, err := get(&http.Transport{DialContext: dial}); text != "hello" || err != nil {
		t.Errorf("the API server: %q, %v", text, err)
	}
	if got := p.Targets(); !slices.Equal(got, []string{"registry.example.com:443", "registry.example.com:443"}) {
		t.Errorf("%q", got)
	}
}
