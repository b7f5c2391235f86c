package kubeconfig

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestFiles loads the kubeconfigs with client-go. Components use the balancer if an API server
// other than the machine's own one can be ready.
func TestFiles(t *testing.T) {
	const own, balancer = "https://127.0.0.1:6443", "https://127.0.0.1:6444"
	address := netip.MustParseAddr
	for name, c := range map[string]struct {
		controlPlane bool
		planes       []netip.Addr
		node         string
	}{
		"a worker": {false, nil, own},
		"a worker with several control-plane machines":    {false, []netip.Addr{address("192.0.2.11"), address("192.0.2.12")}, own},
		"the only control-plane machine":                  {true, nil, own},
		"a control-plane machine that lists only itself":  {true, []netip.Addr{address("192.0.2.10"), address("2001:db8::10")}, own},
		"one of several control-plane machines":           {true, []netip.Addr{address("192.0.2.10"), address("192.0.2.11")}, balancer},
		"a control-plane machine that lists only another": {true, []netip.Addr{address("192.0.2.11")}, balancer},
	} {
		t.Run(name, func(t *testing.T) {
			spec := nodespec.Spec{
				Cluster:       "c",
				Node:          nodespec.Node{ControlPlane: c.controlPlane, IPs: []netip.Addr{address("192.0.2.10"), address("2001:db8::10")}},
				ControlPlanes: c.planes, Endpoint: "https://cluster.example:6443",
			}
			listen, used := Balancer(spec)
			if balanced := !c.controlPlane || c.node == balancer; used != balanced || used && "https://"+listen.String() != c.node {
				t.Errorf("balancer at %s, %t", listen, used)
			}
			dirs := dirs.In(t.TempDir())
			if ca := Authorities(spec, dirs); (ca == filepath.Join(dirs.Node, nodespec.CA)) == used {
				t.Errorf("with a balancer: %t, the CA file is %s", used, ca)
			}
			read(t, NodeFile(spec, dirs, "kubelet", nodespec.KubeletCert, nodespec.KubeletKey), Authorities(spec, dirs), "kubelet", c.node)
			read(t, ControllersFile(spec, dirs, "metrics", nodespec.MetricsCert, nodespec.MetricsKey), filepath.Join(dirs.Controllers, nodespec.CA), "metrics", own)
		})
	}
}

func read(t *testing.T, file component.File, ca, name, url string) {
	t.Helper()
	dir := filepath.Dir(ca)
	at := func(suffix string) string { return filepath.Join(dir, name+suffix) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{ca, at(".crt"), at(".key")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if file.Path != at(".kubeconfig") {
		t.Errorf("path %s", file.Path)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(file.Content))
	if err != nil {
		t.Fatal(err)
	}
	tls := config.TLSClientConfig
	if config.Host != url || tls.ServerName != "localhost" {
		t.Errorf("%s: server %s named %q, want %s", name, config.Host, tls.ServerName, url)
	}
	if tls.CAFile != ca || tls.CertFile != at(".crt") || tls.KeyFile != at(".key") || len(tls.CertData) != 0 {
		t.Errorf("%s: credentials %+v, want the paths of files", name, tls)
	}
}
