package coredns

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

func TestCorefile(t *testing.T) {
	ranges := func(s ...string) (out []netip.Prefix) {
		for _, r := range s {
			out = append(out, netip.MustParsePrefix(r))
		}
		return out
	}
	servers := func(s ...string) (out []netip.AddrPort) {
		for _, a := range s {
			out = append(out, netip.MustParseAddrPort(a))
		}
		return out
	}
	open := nodespec.Spec{
		Network: nodespec.Network{
			DNSDomain:    "cluster.local",
			PodCIDRs:     ranges("10.244.0.0/16", "fd00:244::/48"),
			ServiceCIDRs: ranges("10.96.0.0/14", "fd00:96::/112"),
		},
		DNS: nodespec.DNS{Upstreams: servers("192.0.2.53:53", "[2001:db8::53]:53"), CacheTTL: 30},
	}
	closed := nodespec.Spec{Network: nodespec.Network{DNSDomain: "corp.example", PodCIDRs: ranges("10.244.0.0/16"), ServiceCIDRs: ranges("10.96.0.0/16")}}
	stubs, alone := open, closed
	stubs.DNS.StubDomains = []nodespec.StubDomain{
		{Domain: "corp.example", Servers: servers("192.0.2.1:53", "[2001:db8::1]:5353")}, {Domain: "10.in-addr.arpa", Servers: servers("192.0.2.1:53")},
	}
	encrypted, public := open, open
	encrypted.DNS.Upstreams, encrypted.DNS.TLS = servers("192.0.2.53:853", "[2001:db8::53]:853"), &nodespec.TLS{ServerName: "dns.example", CA: reference(t)}
	public.DNS.Upstreams, public.DNS.TLS = encrypted.DNS.Upstreams, &nodespec.TLS{}
	alone.DNS = nodespec.DNS{StubDomains: stubs.DNS.StubDomains[1:], CacheTTL: 1}
	both := []netip.Addr{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00:10:244::1")}
	// CoreDNS reads the kubeconfig, its CA and its client certificate when it parses the
	// Corefile.
	dirs := dirs.In(t.TempDir())
	node := nodespec.Spec{Endpoint: "https://192.0.2.10:6443", DNS: encrypted.DNS}
	if err := Component(node, dirs).WriteFiles(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{kubeconfig.Authorities(node, dirs), filepath.Join(dirs.Node, nodespec.DNSCert), filepath.Join(dirs.Node, nodespec.DNSKey)} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	client := component.KubeconfigPath(dirs.Node, Name)
	registerRanges()
	for name, corefile := range map[string]string{
		"upstreams": Corefile(open, client, both), "closed": Corefile(closed, client, both[:1]),
		"tls": Corefile(encrypted, client, both), "tls-public": Corefile(public, client, both),
		"stubs": Corefile(stubs, client, both), "closed-stubs": Corefile(alone, client, both[:1]),
	} {
		got := strings.ReplaceAll(strings.ReplaceAll(corefile, client, "KUBECONFIG"), filepath.Dir(client), "DIR")
		golden.Assert(t, got, name+".golden")
		// CoreDNS itself must accept the Corefile.
		input := caddy.CaddyfileInput{Filepath: name, Contents: []byte(corefile), ServerTypeName: "dns"}
		if err := caddy.ValidateAndExecuteDirectives(input, nil, true); err != nil {
			t.Errorf("%s: CoreDNS rejects the Corefile: %v", name, err)
		}
	}
}

// reference returns the CA of the resolvers in the reference configuration.
func reference(t *testing.T) string {
	t.Helper()
	c, problems := config.Parse("", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return c.Network.Spec.DNS.TLS.CA.PEM()
}
