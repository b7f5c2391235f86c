package egress

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/egress/egresstest"
)

const user, password = "machines", "p@ss:w/rd"

// certificate returns the certificate of a server in PEM.
func certificate(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// start starts a server on loopback.
func start(t *testing.T, secure bool, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// site is a proxy that resolves the name server.example, and a configuration that uses the proxy.
type site struct {
	*egresstest.Proxy
	server *httptest.Server
	config Config
}

// newSite starts a proxy, with TLS if secure is true. Whatever name a client requests, the proxy
// connects the client to the server that is given by the parameter to.
func newSite(t *testing.T, secure bool, to *httptest.Server) site {
	t.Helper()
	p := &egresstest.Proxy{Username: user, Password: password, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, to.Listener.Addr().String())
	}}
	s := site{Proxy: p, server: start(t, secure, p)}
	at, err := url.Parse(s.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(user, password)
	s.config.Proxy = at.String()
	if secure {
		s.config.CAs = certificate(s.server)
	}
	return s
}

func hello(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Proxy-Authorization") != "" {
		http.Error(w, "a server got the password of the proxy", http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "hello from "+r.Host)
}

// TestProxyFor checks which servers the machine reaches directly, without the proxy.
func TestProxyFor(t *testing.T) {
	c := Config{Proxy: "http://proxy.example.com:3128", NoProxy: "10.96.0.0/12,fd00:1::/64,.svc,cluster.local,10.0.0.7,2001:db8::7,example.net:8443"}
	for target, direct := range map[string]bool{
		"https://registry.example.com":          false,
		"http://registry.example.com:5000":      false,
		"https://127.0.0.1:6443":                true,
		"https://[::1]:6443":                    true,
		"https://localhost":                     true,
		"https://10.96.0.10":                    true,
		"https://10.0.0.7:50000":                true,
		"https://10.0.0.8":                      false,
		"https://[fd00:1::9]":                   true,
		"https://[2001:db8::7]:443":             true,
		"https://web.default.svc":               true,
		"https://web.default.svc.cluster.local": true,
		"https://svc.example.com":               false,
		"https://example.net":                   false,
		"https://example.net:8443":              true,
		"https://notcluster.local":              false,
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if proxy, err := c.ProxyFor(u); err != nil || (proxy == nil) != direct {
			t.Errorf("%s: %v, %v; direct %t", target, proxy, err, direct)
		}
	}
	// An invalid proxy is an error, and never leads to a direct connection.
	for _, bad := range []string{"proxy:3128", "socks5://proxy:1", "http://", "http://a:hunter2%@b"} {
		if proxy, err := (Config{Proxy: bad}).ProxyFor(&url.URL{Scheme: "https", Host: "a"}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v", bad, proxy, err)
		}
	}
	if proxy, err := (Config{NoProxy: "a"}).ProxyFor(&url.URL{Scheme: "https", Host: "b"}); proxy != nil || err != nil {
		t.Errorf("without a proxy: %v, %v", proxy, err)
	}
}

// TestTransport checks requests through a proxy, with and without TLS of the proxy and of the
// server.
func TestTransport(t *testing.T) {
	for _, secureProxy := range []bool{false, true} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("proxy %t, server %t", secureProxy, secure), func(t *testing.T) {
				server := start(t, secure, http.HandlerFunc(hello))
				s := newSite(t, secureProxy, server)
				target, own := "http://example.com/", ""
				if secure {
					target, own = "https://example.com/", certificate(server)
				}
				transport := &http.Transport{DisableKeepAlives: true}
				roots, err := s.config.Roots(own, true)
				if err == nil && !secure {
					roots = nil
				}
				if err := errors.Join(err, s.config.Complete(transport, roots)); err != nil {
					t.Fatal(err)
				}
				answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(target)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "hello from example.com" {
					t.Errorf("%s, %v", text, err)
				}
				if got := s.Targets(); len(got) != 1 || !strings.HasPrefix(got[0], "example.com") {
					t.Errorf("the proxy has connected to %q", got)
				}
			})
		}
	}
}

// TestDial checks a tunnel, a direct connection, and the errors of a tunnel, which must not contain
// the password.
func TestDial(t *testing.T) {
	server := start(t, true, http.HandlerFunc(hello))
	for _, secure := range []bool{false, true} {
		s := newSite(t, secure, server)
		conn, proxied, err := s.config.Dial(t.Context(), &net.Dialer{}, "example.com:6514")
		if err != nil || !proxied {
			t.Fatalf("%t, %v", proxied, err)
		}
		c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Error(err)
		}
		c.Close()
		direct, proxied, err := s.config.Dial(t.Context(), &net.Dialer{}, server.Listener.Addr().String())
		if err != nil || proxied {
			t.Fatalf("loopback: %t, %v", proxied, err)
		}
		direct.Close()
		if got := s.Targets(); !slices.Equal(got, []string{"example.com:6514"}) {
			t.Errorf("%q", got)
		}
		for what, c := range map[string]struct {
			change func(*Config)
			want   string
		}{
			"another password":         {func(c *Config) { c.Proxy = strings.Replace(c.Proxy, "p%40ss", "hunter2", 1) }, "it answers 407 Proxy Authentication Required"},
			"no proxy at this address": {func(c *Config) { c.Proxy = "http://" + user + ":hunter2@127.0.0.1:1" }, "connection refused"},
		} {
			bad := s.config
			c.change(&bad)
			_, _, err := bad.Dial(t.Context(), &net.Dialer{}, "example.com:6514")
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// TestDialEnds checks that the context ends the wait for a proxy that does not answer, and that
// Dial returns an error if a proxy sends endless or early data.
func TestDialEnds(t *testing.T) {
	for what, c := range map[string]struct {
		answer string
		want   string
	}{
		"silence":      {"", "deadline exceeded"},
		"early data":   {"HTTP/1.1 200 OK\r\n\r\nSSH-2.0", "before the server has received"},
		"no protocol":  {"SSH-2.0-proxy\r\n\r\n", "malformed HTTP"},
		"a long line":  {"HTTP/1.1 502 " + strings.Repeat("x", 1000) + "\r\n\r\n", "xxx"},
		"endless head": {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxAnswer), "EOF"},
	} {
		t.Run(what, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, c.answer) // the client may have left
				_, _ = io.Copy(io.Discard, conn)
			}()
			within := time.Minute
			if c.answer == "" {
				within = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			conn, _, err := (Config{Proxy: "http://" + l.Addr().String()}).Dial(ctx, &net.Dialer{}, "example.com:443")
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestRoots checks that Roots contains the public CAs only on request, and that invalid PEM is an
// error.
func TestRoots(t *testing.T) {
	a, b := start(t, true, http.HandlerFunc(hello)), start(t, true, http.HandlerFunc(hello))
	for what, c := range map[string]struct {
		config Config
		own    string
		public bool
		want   string
	}{
		"no CA":                  {want: "no CA is given"},
		"public CAs":             {public: true},
		"own CA":                 {own: certificate(a)},
		"CA of the site":         {config: Config{CAs: certificate(b)}},
		"invalid own CA":         {own: "x", want: "no certificate"},
		"invalid CA of the site": {config: Config{CAs: "x"}, public: true, want: "the CAs of the site"},
	} {
		if pool, err := c.config.Roots(c.own, c.public); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && pool == nil {
			t.Errorf("%s: %v, %v", what, pool, err)
		}
	}
	pool, err := (Config{CAs: certificate(b)}).Roots(certificate(a), false)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if err := (Config{}).Complete(transport, pool); err != nil {
		t.Fatal(err)
	}
	for _, server := range []*httptest.Server{a, b} {
		answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(server.URL)
		if err != nil {
			t.Error(err)
			continue
		}
		answer.Body.Close()
	}
}

// TestPasswordStaysSecret checks that no output of a configuration contains the password of the
// proxy, except the JSON form.
func TestPasswordStaysSecret(t *testing.T) {
	c := Config{Proxy: "http://machines:hunter2@proxy.example.com:3128"}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "c", c, "in", struct{ C Config }{c})
	texts := []string{log.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, c), fmt.Sprintf(verb, &c), fmt.Sprintf(verb, struct{ C Config }{c}))
	}
	for _, text := range texts {
		if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) {
			t.Error(text)
		}
	}
	if got := c.text(); got != "by http://proxy.example.com:3128" {
		t.Error(got)
	}
	// The JSON form, which is the input of a command, contains the password.
	var back Config
	if text, err := json.Marshal(c); err != nil || json.Unmarshal(text, &back) != nil || back != c {
		t.Errorf("%v, %v", back, err)
	}
}

// TestForwarder checks that programs that know only the forwarder reach servers through the proxy
// of the site, even after a change of this proxy, and get the reason of a failure.
func TestForwarder(t *testing.T) {
	for _, secure := range []bool{false, true} {
		server := start(t, secure, http.HandlerFunc(hello))
		s := newSite(t, true, server)
		now := s.config
		forwarder := start(t, false, NewForwarder(func() Config { return now }))
		at, err := url.Parse(forwarder.URL)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
			Proxy: http.ProxyURL(at), DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}}
		target := map[bool]string{false: "http", true: "https"}[secure] + "://example.com/x"
		get := func() (string, error) {
			answer, err := client.Get(target)
			if err != nil {
				return "", err
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			return string(text), err
		}
		if text, err := get(); text != "hello from example.com" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		now.Proxy = strings.Replace(now.Proxy, "p%40ss", "hunter2", 1)
		text, err := get()
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, "407") && !strings.Contains(text, "who are you?") || strings.Contains(text, "hunter2") {
			t.Errorf("with another password: %q", text)
		}
		now = Config{NoProxy: "x"}
		target = server.URL
		client.Transport.(*http.Transport).Proxy = func(*http.Request) (*url.URL, error) { return at, nil }
		if text, err := get(); !strings.HasPrefix(text, "hello from 127.0.0.1") || err != nil {
			t.Errorf("forwarder without a proxy of the site: %q, %v", text, err)
		}
		if got := s.Targets(); len(got) != 1 {
			t.Errorf("%q", got)
		}
	}
	forwarder := start(t, false, NewForwarder(func() Config { return Config{} }))
	answer, err := http.Get(forwarder.URL + "/x")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Error(answer.Status)
	}
}
