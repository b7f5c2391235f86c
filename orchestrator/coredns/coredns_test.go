package coredns

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/caddy"

	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestCorefile(t *testing.T) {
	open := nodespec.Spec{DNSDomain: "cluster.local", DNSUpstreams: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}}
	closed := nodespec.Spec{DNSDomain: "corp.example"}
	both := []netip.Addr{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00:10:244::1")}
	// CoreDNS reads it to understand its configuration.
	dirs := layout.Under(t.TempDir())
	if err := Component(nodespec.Spec{Endpoint: "https://192.0.2.10:6443"}, dirs).WriteFiles(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{nodespec.CA, nodespec.DNSCert, nodespec.DNSKey} {
		if err := os.WriteFile(filepath.Join(dirs.Node, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	client := layout.Kubeconfig(dirs.Node, Name)
	for name, corefile := range map[string]string{"upstreams": Corefile(open, client, both), "closed": Corefile(closed, client, both[:1])} {
		got := strings.ReplaceAll(corefile, client, "KUBECONFIG")
		path := "testdata/" + name + ".golden"
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; look at the change, then run the test with -update:\n%s", path, got)
		}
		// CoreDNS itself has to understand it.
		input := caddy.CaddyfileInput{Filepath: name, Contents: []byte(corefile), ServerTypeName: "dns"}
		if err := caddy.ValidateAndExecuteDirectives(input, nil, true); err != nil {
			t.Errorf("%s: CoreDNS refuses it: %v", name, err)
		}
	}
}
