package nodeplan

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/resolver"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestNodeSpecControlPlanes checks that both roles get the addresses of all control-plane machines:
// a worker uses them as addresses of API servers, a control-plane machine as addresses of etcd
// members.
func TestNodeSpecControlPlanes(t *testing.T) {
	planes := []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")}
	state := network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.21/24")}}}}}
	for _, role := range []config.Role{config.RoleWorker, config.RoleControlPlane} {
		c := config.New("n1", role).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
		c.Cluster.Spec.ControlPlanes = planes
		spec, err := nodeSpec(c, state, buildinfo.Release{})
		if err != nil || !slices.Equal(spec.ControlPlanes, planes) || spec.Endpoint != "https://10.0.0.11:6443" {
			t.Errorf("%s: %v at %s, %v", role, spec.ControlPlanes, spec.Endpoint, err)
		}
	}
}

// TestNodeAddressOfControlPlanes checks that a machine with several addresses uses for its Node the
// address that Cluster.spec.controlPlanes contains.
func TestNodeAddressOfControlPlanes(t *testing.T) {
	link := func(address string) network.LinkState {
		return network.LinkState{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix(address), Origin: "static"}}}
	}
	state := network.State{Links: []network.LinkState{link("192.0.2.11/24"), link("10.0.0.11/24")}}
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
	for _, test := range []struct{ planes, want string }{{"10.0.0.12", "192.0.2.11"}, {"10.0.0.11", "10.0.0.11"}} {
		c.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.13"), netip.MustParseAddr(test.planes)}
		spec, err := nodeSpec(c, state, buildinfo.Release{})
		if err != nil || len(spec.Node.IPs) != 1 || spec.Node.IPs[0] != netip.MustParseAddr(test.want) {
			t.Errorf("with the control plane %s: the Node has the addresses %v, %v; want %s", test.planes, spec.Node.IPs, err, test.want)
		}
	}
}

// TestClusterDNS checks that the cluster DNS uses the configured upstreams. Without configured
// upstreams, it uses the machine's resolvers at port 53.
func TestClusterDNS(t *testing.T) {
	at := netip.MustParseAddrPort
	own := []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}
	many := slices.Repeat(own[:1], 20) // CoreDNS does not start with more than 15
	stubs := []config.StubDomain{{Domain: "corp.example", Servers: config.NameServers{config.NameServer(at("10.0.0.3:5353"))}}}
	asStubs := []nodespec.StubDomain{{Domain: "corp.example", Servers: []netip.AddrPort{at("10.0.0.3:5353")}}}
	ttl := config.Duration(90 * time.Second)
	for _, test := range []struct {
		config config.ClusterDNS
		own    []netip.Addr
		want   nodespec.DNS
	}{
		{config.ClusterDNS{CacheTTL: ttl}, nil, nodespec.DNS{CacheTTL: 90}},
		{config.ClusterDNS{CacheTTL: ttl}, own, nodespec.DNS{CacheTTL: 90, Upstreams: []netip.AddrPort{at("192.0.2.53:53"), at("[2001:db8::53]:53")}}},
		{config.ClusterDNS{CacheTTL: ttl}, many, nodespec.DNS{CacheTTL: 90, Upstreams: slices.Repeat([]netip.AddrPort{at("192.0.2.53:53")}, 8)}},
		{
			config.ClusterDNS{CacheTTL: ttl, Upstreams: config.NameServers{config.NameServer(at("10.0.0.2:53"))}, StubDomains: stubs}, own,
			nodespec.DNS{CacheTTL: 90, Upstreams: []netip.AddrPort{at("10.0.0.2:53")}, StubDomains: asStubs},
		},
	} {
		if got := clusterDNS(test.config, nil, resolvers{test.own, test.config.Upstreams.AddrPorts()}); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%+v, own %v:\n got %+v\nwant %+v", test.config, test.own, got, test.want)
		}
	}
}

// TestDNSOverTLS checks that the machine, the cluster DNS and pods use the machine's resolvers only
// over TLS. Upstreams that are configured for the cluster DNS are used without TLS.
func TestDNSOverTLS(t *testing.T) {
	at := netip.MustParseAddr
	state := network.State{
		Links:   []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.21/24")}}}},
		Servers: []netip.Addr{at("10.0.0.2")},
	}
	ca := reference(t).Network.Spec.DNS.TLS.CA
	c := config.New("n1", config.RoleWorker).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
	c = c.WithNetwork(config.NetworkSpec{DNS: config.DNS{Servers: state.Servers, TLS: &config.DNSTLS{ServerName: "dns.example", CA: ca}}})
	c.Cluster.Spec.Networks.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	spec, err := nodeSpec(c, state, buildinfo.Release{})
	want := nodespec.DNS{
		Upstreams: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:853")}, TLS: &nodespec.TLS{ServerName: "dns.example", CA: ca.PEM()},
		CacheTTL: spec.DNS.CacheTTL, NodeUpstreams: []netip.Addr{at("10.96.0.10")},
	}
	if err != nil || !reflect.DeepEqual(spec.DNS, want) {
		t.Errorf("the cluster DNS and pods: %+v, %v; want %+v", spec.DNS, err, want)
	}
	if got := Network(c); got.Stub != at("127.0.0.53") || !slices.Equal(got.DNS, state.Servers) {
		t.Errorf("the network: %v, %v", got.Stub, got.DNS)
	}
	own := resolver.Config{Servers: want.Upstreams, Name: "dns.example", CAs: pki.ServerCAs{Own: ca.PEM()}}
	if got := Resolver(c); !reflect.DeepEqual(got, own) {
		t.Errorf("the machine: %+v; want %+v", got, own)
	}
	site := c.Network.Spec.DNS.TLS.CA
	for _, test := range []struct {
		own, site config.Bundle
		want      string
	}{
		{ca, config.Bundle{}, ca.PEM()},
		{ca, site, ca.PEM() + site.PEM()},
		{config.Bundle{}, site, "public\n" + site.PEM()},
		{config.Bundle{}, config.Bundle{}, ""},
	} {
		c.Network.Spec.DNS.TLS.CA, c.Machine.Spec.Egress.CA = test.own, test.site
		if got, want := Resolver(c).CAs, (pki.ServerCAs{Own: test.own.PEM(), Site: test.site.PEM()}); got != want {
			t.Errorf("the machine: %+v; want %+v", got, want)
		}
		if got := Resolver(c).CAs.InFile("public\n"); got != test.want {
			t.Errorf("the cluster DNS: %q; want %q", got, test.want)
		}
	}
	c.Network.Spec.DNS.TLS.CA, c.Machine.Spec.Egress.CA = ca, config.Bundle{}
	c.Cluster.Spec.DNS.Upstreams = config.NameServers{config.NameServer(netip.MustParseAddrPort("10.0.0.3:53"))}
	if spec, err := nodeSpec(c, state, buildinfo.Release{}); err != nil || spec.DNS.TLS != nil || spec.DNS.Upstreams[0].Port() != 53 {
		t.Errorf("with configured upstreams of the cluster DNS: %+v, %v", spec.DNS, err)
	}
	c.Network.Spec.DNS.TLS = nil
	if got := Network(c); got.Stub.IsValid() || len(Resolver(c).Servers) != 0 || len(Resolver(nil).Servers) != 0 {
		t.Errorf("without TLS: %v, %v", got.Stub, Resolver(c))
	}
}

// TestTimeSources checks that a configuration with NTS requires NTS of all time servers. It also
// checks which CAs the machine then trusts: the configured CA, the CA of the site, or the public
// CAs.
func TestTimeSources(t *testing.T) {
	state := network.State{TimeServers: []string{"ptp:hyperv", "time.example"}}
	ca := reference(t).Network.Spec.NTP.NTS.CA
	c := config.New("n1", config.RoleWorker).WithNetwork(config.NetworkSpec{NTP: config.NTP{Servers: []string{"time.example"}, NTS: &config.NTS{CA: ca}}})
	if got := TimeSources(c, state); !slices.Equal(got.Servers, state.TimeServers) || !got.NTS || got.CAs != (pki.ServerCAs{Own: ca.PEM()}) {
		t.Errorf("with a CA: %+v", got)
	}
	c.Network.Spec.NTP.NTS.CA = config.Bundle{}
	if got := TimeSources(c, state); !got.NTS || got.CAs != (pki.ServerCAs{}) {
		t.Errorf("with public CAs: %+v", got)
	}
	c.Machine.Spec.Egress.CA = ca
	if got := TimeSources(c, state); got.CAs != (pki.ServerCAs{Site: ca.PEM()}) {
		t.Errorf("with a CA of the site: %+v", got)
	}
	c.Network.Spec.NTP.NTS = nil
	if got := TimeSources(c, state); got.NTS || TimeSources(nil, state).NTS || len(TimeSources(nil, state).Servers) != 2 {
		t.Errorf("without NTS: %+v, unconfigured: %+v", got, TimeSources(nil, state))
	}
}

// TestResolversOfPods checks that pods get the usable resolvers of the machine and its search
// domains.
func TestResolversOfPods(t *testing.T) {
	at := netip.MustParseAddr
	state := network.State{
		Links:   []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.21/24")}}}},
		Servers: []netip.Addr{at("127.0.0.53"), at("10.96.0.10"), at("10.244.0.1"), at("fe80::1%eth0"), at("255.255.255.255"), at("169.254.169.253"), at("10.0.0.2")},
		Search:  []string{"corp.example"},
	}
	c := config.New("n1", config.RoleWorker).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
	c.Cluster.Spec.Networks.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	c.Cluster.Spec.Networks.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	spec, err := nodeSpec(c, state, buildinfo.Release{})
	want := []netip.Addr{at("169.254.169.253"), at("10.0.0.2")}
	if err != nil || !slices.Equal(spec.DNS.NodeUpstreams, want) || len(spec.DNS.Upstreams) != 2 || !slices.Equal(spec.DNS.NodeSearch, state.Search) {
		t.Errorf("pods use %v, the cluster DNS %v, and the search domains are %v, %v", spec.DNS.NodeUpstreams, spec.DNS.Upstreams, spec.DNS.NodeSearch, err)
	}
	if unused := UnusedResolvers(c, state); len(unused) != 5 || !strings.Contains(unused[1], "10.96.0.10: pods do not use it") {
		t.Errorf("the unused resolvers are %q", unused)
	}
}

// TestOwnResolvers checks that pods and the cluster DNS do not use an address of the machine itself
// as a resolver, and that the machine reports each such address.
func TestOwnResolvers(t *testing.T) {
	at := netip.MustParseAddr
	state := network.State{
		Links: []network.LinkState{
			{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.21/24")}}},
			{Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("2001:db8::21/64")}}},
		},
		Servers: []netip.Addr{at("10.0.0.21"), at("10.0.0.9"), at("10.0.0.2"), at("2001:db8::21")},
	}
	c := config.New("n1", config.RoleWorker).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
	c.Cluster.Spec.VirtualAddresses = []netip.Addr{at("10.0.0.9")}
	server := func(text string) config.NameServer { return config.NameServer(netip.MustParseAddrPort(text)) }
	c.Cluster.Spec.DNS.Upstreams = config.NameServers{server("10.0.0.21:53"), server("10.0.0.21:5353"), server("10.0.0.3:53")}
	spec, err := nodeSpec(c, state, buildinfo.Release{})
	upstreams := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.21:5353"), netip.MustParseAddrPort("10.0.0.3:53")}
	if err != nil || !slices.Equal(spec.DNS.NodeUpstreams, []netip.Addr{at("10.0.0.2")}) || !slices.Equal(spec.DNS.Upstreams, upstreams) {
		t.Errorf("pods use %v, the cluster DNS %v, %v", spec.DNS.NodeUpstreams, spec.DNS.Upstreams, err)
	}
	const pods = "pods do not use it: %[1]s is an address of this machine, where no resolver runs; configure another one (Network.spec.dns, Cluster.spec.dns)"
	var want []string
	for _, a := range []string{"10.0.0.21", "10.0.0.9", "2001:db8::21"} {
		want = append(want, fmt.Sprintf("resolver %[1]s: "+pods, a))
	}
	want = append(want, "resolver 10.0.0.21: the cluster DNS does not use it: 10.0.0.21 is an address of this machine, where no resolver runs; configure another one (Cluster.spec.dns.upstreams)")
	if unused := UnusedResolvers(c, state); !slices.Equal(unused, want) {
		t.Errorf("reported %q, want %q", unused, want)
	}
	// If the only configured upstream is unusable, the cluster DNS uses the resolvers of the
	// machine.
	c.Cluster.Spec.DNS.Upstreams = c.Cluster.Spec.DNS.Upstreams[:1]
	if spec, err := nodeSpec(c, state, buildinfo.Release{}); err != nil || !slices.Equal(spec.DNS.Upstreams, []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:53")}) {
		t.Errorf("the cluster DNS uses %v, %v", spec.DNS.Upstreams, err)
	}
}

// TestResolversRestartTheNodeAlone checks that a change of the resolvers (for example by a new
// lease), of the swap or of the rules for images restarts only orchestrator-node, and not etcd or
// the API server.
func TestResolversRestartTheNodeAlone(t *testing.T) {
	resolver := netip.MustParseAddr("10.0.0.2")
	one := nodespec.Spec{Node: nodespec.Node{Name: "a", Swap: 1 << 30, ImagePolicy: []config.ImageRule{{Unsigned: true}}}, DNS: nodespec.DNS{NodeSearch: []string{"corp.example"}, NodeUpstreams: []netip.Addr{resolver}, Upstreams: []netip.AddrPort{netip.AddrPortFrom(resolver, 53)}}}
	other := nodespec.Spec{Node: nodespec.Node{Name: "a"}}
	for service, same := range map[string]bool{nodespec.ServiceAPI: true, nodespec.ServiceControllers: true, nodespec.ServiceNode: false} {
		if got := reflect.DeepEqual(specFor(one, service), specFor(other, service)); got != same {
			t.Errorf("%s: the descriptions are equal: %t, want %t", service, got, same)
		}
	}
	if len(one.DNS.NodeUpstreams) == 0 || one.Node.Swap == 0 || one.Node.ImagePolicy == nil {
		t.Error("specFor has changed its argument")
	}
}

// TestSettingsRestart checks that a change of each setting of Kubernetes restarts the services that
// read the setting, and no other service.
func TestSettingsRestart(t *testing.T) {
	const api, controllers, node = nodespec.ServiceAPI, nodespec.ServiceControllers, nodespec.ServiceNode
	readers := map[string][]string{
		"MaxPods": {node}, "Kubelet": {node}, "FeatureGates": {api, controllers, node},
		"APIServer": {api}, "Audit": {api}, "SealedPolicies": {api}, "PodSecurity": {api}, "PodEvictionTimeout": {api},
		"FinishedPods": {controllers}, "Scheduler": {controllers}, "ControllerManager": {controllers},
	}
	from, to := reflect.ValueOf(config.DefaultKubernetes()), reflect.ValueOf(reference(t).Cluster.Spec.Kubernetes)
	for i := range from.NumField() {
		field := from.Type().Field(i)
		if field.Tag.Get("json") == "-" {
			continue
		}
		var before, after nodespec.Spec
		reflect.ValueOf(&before.Kubernetes).Elem().Field(i).Set(from.Field(i))
		reflect.ValueOf(&after.Kubernetes).Elem().Field(i).Set(to.Field(i))
		for _, service := range []string{api, controllers, node} {
			restarts := !reflect.DeepEqual(specFor(before, service), specFor(after, service))
			if want := slices.Contains(readers[field.Name], service); restarts != want {
				t.Errorf("%s: %s restarts: %t, want %t", field.Name, service, restarts, want)
			}
		}
	}
}

// TestVirtualAddresses checks that the orchestrator gets the configured virtual addresses.
func TestVirtualAddresses(t *testing.T) {
	state := network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.11/24")}}}}}
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "k8s.example", Port: 443}, config.PKI{}, config.EncryptionKey{})
	for _, addresses := range [][]netip.Addr{nil, {netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("2001:db8::9")}} {
		c.Cluster.Spec.VirtualAddresses = addresses
		if spec, err := nodeSpec(c, state, buildinfo.Release{}); err != nil || !slices.Equal(spec.VirtualAddresses, addresses) {
			t.Errorf("%v: the orchestrator gets %v, %v", addresses, spec.VirtualAddresses, err)
		}
	}
}

// TestHostServiceProxy checks that a machine has the host settings of the built-in service proxy
// only if the proxy runs on it.
func TestHostServiceProxy(t *testing.T) {
	with := func(external ...config.ExternalComponent) *config.Config {
		return &config.Config{Cluster: &config.Cluster{Spec: config.ClusterSpec{External: external}}}
	}
	for name, c := range map[string]struct {
		config *config.Config
		want   bool
	}{
		"no configuration": {nil, false},
		"no cluster":       {&config.Config{}, false},
		"a cluster":        {with(), true},
		"external DNS":     {with(config.PartDNS), true},
		"external proxy":   {with(config.PartNetwork, config.PartProxy), false},
	} {
		if got := Host(c.config, nil, nil).ServiceProxy; got != c.want {
			t.Errorf("%s: the machine has the settings of the service proxy: %v", name, got)
		}
	}
}

// TestMachineObjectsRestartNothing checks that enabling machine objects changes a file in the
// directory of each of the three processes, and changes no service.
func TestMachineObjectsRestartNothing(t *testing.T) {
	c := reference(t)
	f := facts(t)
	read := func(enabled bool) (services string, files int) {
		c.Cluster.Spec.Kubernetes.MachineObjects = config.MachineObjects{Enabled: enabled}
		w := Plan(c, f)
		if w.NodeProblem != nil {
			t.Fatal(w.NodeProblem)
		}
		for _, file := range w.Node.Credentials.Files {
			if filepath.Base(file.Path) == nodespec.MachineObjectsFile && string(file.Content) == fmt.Sprintf(`{"enabled":%t}`, enabled) {
				files++
			}
		}
		return indented(t, w.Services.All), files
	}
	off, without := read(false)
	on, with := read(true)
	if off != on {
		t.Errorf("the services change from\n%s\nto\n%s", off, on)
	}
	if without != 3 || with != 3 {
		t.Errorf("%d files disable machine objects, and %d enable them; want one in each of three directories", without, with)
	}
}

// TestSettings checks that Settings returns nil if all settings that only code of Kubernetes can
// check have their defaults. It also checks that the orchestrator decodes the encoded settings to
// the same values.
func TestSettings(t *testing.T) {
	c := config.New("a", config.RoleWorker).WithCluster("c", config.Endpoint{}, config.PKI{}, config.EncryptionKey{})
	if got := Settings(c); got != nil {
		t.Errorf("Settings of the defaults: %+v, want nil", got)
	}
	c.Cluster.Spec.Kubernetes.APIServer.RuntimeConfig = map[string]bool{"resource.k8s.io/v1beta1": true}
	if got := Settings(c); got != nil {
		t.Errorf("Settings with runtimeConfig, which pkg/config checks completely: %+v, want nil", got)
	}
	c.Cluster.Spec.Kubernetes.SealedPolicies.System = true
	if got := Settings(c); got == nil || !got.Kubernetes.SealedPolicies.System {
		t.Errorf("sealed policies: %+v", got)
	}
	c.Cluster.Spec.Kubernetes.SealedPolicies.System = false
	c.Machine.Spec.Reserved.CPUs = "0-1"
	if got := Settings(c); got == nil || got.Node.ReservedCPUs != "0-1" {
		t.Errorf("processors: %+v", got)
	}
	for name, c := range map[string]*config.Config{"processors": c, "the reference": reference(t)} {
		settings := Settings(c)
		if settings == nil {
			t.Errorf("%s: no settings", name)
			continue
		}
		text, err := nodespec.Encode(settings)
		if err != nil {
			t.Fatal(err)
		}
		read, err := nodespec.ReadRequest[nodespec.Spec](bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want, got := settings.Kubernetes, read.Kubernetes
		if want.APIServer.KMS != nil { // the key manager's settings are not encoded
			want.APIServer.KMS = &config.KMS{}
		}
		for what, pair := range map[string][2]any{
			"kubelet": {want.Kubelet, got.Kubelet}, "API server": {want.APIServer, got.APIServer}, "audit": {want.Audit, got.Audit},
			"scheduler": {want.Scheduler, got.Scheduler}, "controllers": {want.ControllerManager, got.ControllerManager}, "gates": {want.FeatureGates, got.FeatureGates},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s: %s: %+v is read as %+v", name, what, pair[0], pair[1])
			}
		}
	}
}
