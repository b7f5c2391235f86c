package integration

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/egress/egresstest"
)

// proxyPort is the TCP port of the proxy.
const proxyPort = 3128

// proxyVerb starts the proxy of the site, or waits until a client has connected through the proxy
// to a server that matches REGEXP.
func (s *story) proxyVerb(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "proxy start PATCH | used DEADLINE REGEXP"
	need(ts, neg, args, 2, 3, usage)
	switch {
	case args[0] == "start" && len(args) == 2:
		s.startProxy(ts, args[1])
	case s.proxy == nil:
		ts.Fatalf("proxy: no proxy runs; begin with: proxy start PATCH")
	case args[0] == "used" && len(args) == 3:
		pattern, err := regexp.Compile(args[2])
		ts.Check(err)
		end := time.Now().Add(s.lasts(deadlineOf(ts, args[1])))
		for tick := time.Tick(100 * time.Millisecond); !slices.ContainsFunc(s.proxy.Targets(), pattern.MatchString); <-tick {
			if time.Now().After(end) {
				ts.Fatalf("proxy: no client has connected to %s within %s; the connections were to %q", args[2], args[1], s.proxy.Targets())
			}
		}
	default:
		ts.Fatalf("usage: %s", usage)
	}
}

// startProxy starts the proxy, and writes the patch that makes a machine use the proxy.
func (s *story) startProxy(ts *testscript.TestScript, file string) {
	host, err := s.network.NewHost("proxy", netip.Addr{})
	ts.Check(err)
	listener, err := host.Listen(proxyPort)
	ts.Check(err)
	s.proxy = &egresstest.Proxy{Username: "machines", Password: "let me through", Dial: host.DialContext}
	server := &http.Server{Handler: s.proxy, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends with the network
	patch, err := yaml.Marshal(map[string]any{"kind": "Machine", "spec": map[string]any{"egress": map[string]any{"proxy": map[string]any{
		"url": fmt.Sprintf("http://%s:%d", host.Addr(), proxyPort), "username": s.proxy.Username, "password": s.proxy.Password,
	}}}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(file), patch, 0o600))
	s.note("the proxy of the site is at %s", host.Addr())
}
