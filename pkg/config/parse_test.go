package config

import (
	"fmt"
	goparser "go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestGood compares parsed documents with the expected values.
func TestGood(t *testing.T) {
	v := values(t)
	ref := example(t)
	pki, key := ref.Cluster.Spec.PKI, ref.Cluster.Spec.SecretsEncryptionKey
	pki.Accepted = Accepted{}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	server := func(s string) NameServer { return NameServer(netip.MustParseAddrPort(s)) }

	tests := map[string]struct {
		text string
		want func(*Config)
	}{
		"the smallest configuration": {
			text: "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker}\n",
			want: func(c *Config) {},
		},
		"JSON": {
			text: `{"apiVersion": "orlop.dev/v1alpha1", "kind": "Machine", "metadata": {"name": "a"}, "spec": {"role": "worker"}}`,
			want: func(c *Config) {},
		},
		"byte order mark and line ends of Windows": {
			text: "\ufeffapiVersion: orlop.dev/v1alpha1\r\nkind: Machine\r\nmetadata: {name: a}\r\nspec: {role: worker}\r\n",
			want: func(c *Config) {},
		},
		"documents in any order, with empty documents between them": {
			text: "---\n---\nkind: Network\napiVersion: orlop.dev/v1alpha1\nspec: {ntp: {servers: [10.0.0.1]}}\n---\n# nothing\n---\nspec: {role: worker}\nmetadata: {name: a}\nkind: Machine\napiVersion: orlop.dev/v1alpha1\n",
			want: func(c *Config) { c.Network.Spec.NTP.Servers = []string{"10.0.0.1"} },
		},
		"machine": {
			text: `
apiVersion: orlop.dev/v1alpha1
kind: Machine
metadata: {name: a}
spec:
  role: worker
  trust: {operatorCAs: [$OPERATOR]}
  reserved: {memory: 1GiB, cpu: 2}
  sysctls: {net.core.somaxconn: 4096, net.ipv4.conf.eth0/100.arp_ignore: "1", kernel.sched_rt_runtime_us: 0x10}
  kernelModules: [loop]
  disk: {wipeForeign: true}
`,
			want: func(c *Config) {
				c.Machine.Spec = MachineSpec{
					Role: RoleWorker, Trust: Trust{OperatorCAs: ref.Machine.Spec.Trust.OperatorCAs},
					Reserved:      Reserved{Memory: 1 << 30, CPU: 2000},
					Upgrade:       Upgrade{Deadline: Duration(5 * time.Minute), Drain: Drain{Policy: DrainNone, Timeout: Duration(5 * time.Minute)}},
					Sysctls:       map[string]string{"net.core.somaxconn": "4096", "net.ipv4.conf.eth0/100.arp_ignore": "1", "kernel.sched_rt_runtime_us": "0x10"},
					KernelModules: []string{"loop"}, Disk: Disk{WipeForeign: true},
				}
			},
		},
		"a cluster with defaults": {
			text: `
{apiVersion: orlop.dev/v1alpha1, kind: Machine, metadata: {name: a}, spec: {role: controlplane}}
---
{apiVersion: orlop.dev/v1alpha1, kind: Cluster, metadata: {name: c}, spec: $CLUSTER}
`,
			want: func(c *Config) {
				c.Machine.Spec.Role = RoleControlPlane
				c.Cluster = &Cluster{Metadata: Metadata{Name: "c"}, Spec: ClusterSpec{
					Endpoint: Endpoint{Host: "10.0.0.5", Port: 6443}, PKI: pki, SecretsEncryptionKey: key,
					Networks: ClusterNetworks{Pods: []netip.Prefix{prefix("10.244.0.0/16")}, Services: []netip.Prefix{prefix("10.96.0.0/12")}, Domain: "cluster.local", Encapsulation: EncapsulationWireGuard, AnnounceAPI: AnnounceLink},
					DNS:      ClusterDNS{CacheTTL: Duration(30 * time.Second)},
					Etcd:     Etcd{Snapshots: Snapshots{Every: Duration(6 * time.Hour), Keep: 4}}, LocalVolumes: LocalVolumes{Enabled: true},
					Kubernetes: Kubernetes{
						AllowSchedulingOnControlPlane: true, MaxPods: 110, FinishedPods: 1000,
						PodEvictionTimeout: Duration(5 * time.Minute), APIServer: defaultAPIServer(), Kubelet: defaultKubelet(), ControllerManager: defaultControllerManager(),
						PodSecurity: PodSecurity{Default: "baseline", ExemptNamespaces: []string{"kube-system"}},
						Audit:       Audit{MaxFileSize: 100 << 20, MaxFiles: 10},
					},
				}}
			},
		},
		"a worker's cluster without keys": {
			text: `
{apiVersion: orlop.dev/v1alpha1, kind: Machine, metadata: {name: a}, spec: {role: worker}}
---
apiVersion: orlop.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  endpoint: https://[FD00::5]:6443/
  networks: {pods: ["fd01::/48"], services: ["fd02::/112"], domain: a.b, encapsulation: none}
  dns: {upstreams: [10.0.0.2, "[FD00::2]:53"], stubDomains: [{domain: 10.in-addr.arpa, servers: ["10.0.0.3:5353"]}], cacheTTL: 1h}
  pki: {kubernetes: {cert: $K8S}, machine: {cert: $MACHINE}}
  kubernetes:
    podSecurity: {exemptNamespaces: []}
    authentication:
      jwt: [{url: "https://i.example", audiences: [k], username: claims.sub}]
      webhook: {url: "https://w.example", ca: $K8S}
    authorization:
      webhooks: [{name: w, url: "https://w.example", ca: $K8S, client: {cert: $CLIENT, key: $CLIENT_K}}]
`,
			want: func(c *Config) {
				c.Cluster = &Cluster{Metadata: Metadata{Name: "c"}, Spec: ClusterSpec{
					Endpoint: Endpoint{Host: "fd00::5", Port: 6443},
					Networks: ClusterNetworks{Pods: []netip.Prefix{prefix("fd01::/48")}, Services: []netip.Prefix{prefix("fd02::/112")}, Domain: "a.b", Encapsulation: EncapsulationNone, AnnounceAPI: AnnounceLink},
					DNS: ClusterDNS{
						Upstreams:   NameServers{server("10.0.0.2:53"), server("[fd00::2]:53")},
						StubDomains: []StubDomain{{Domain: "10.in-addr.arpa", Servers: NameServers{server("10.0.0.3:5353")}}},
						CacheTTL:    Duration(time.Hour),
					},
					PKI:  PKI{Kubernetes: CertKey{Cert: pki.Kubernetes.Cert}, Machine: CertKey{Cert: pki.Machine.Cert}},
					Etcd: Etcd{Snapshots: Snapshots{Every: Duration(6 * time.Hour), Keep: 4}}, LocalVolumes: LocalVolumes{Enabled: true},
					Kubernetes: Kubernetes{
						AllowSchedulingOnControlPlane: true, MaxPods: 110, FinishedPods: 1000,
						PodEvictionTimeout: Duration(5 * time.Minute), APIServer: defaultAPIServer(), Kubelet: defaultKubelet(), ControllerManager: defaultControllerManager(),
						PodSecurity: PodSecurity{Default: "baseline", ExemptNamespaces: []string{}},
						Audit:       Audit{MaxFileSize: 100 << 20, MaxFiles: 10},
						Authentication: Authentication{
							JWT:     []JWTIssuer{{URL: "https://i.example", Audiences: []string{"k"}, Username: "claims.sub"}},
							Webhook: &AuthenticationWebhook{URL: "https://w.example", CA: NewBundle(pki.Kubernetes.Cert), CacheTTL: Duration(2 * time.Minute)},
						},
						Authorization: Authorization{Webhooks: []AuthorizationWebhook{{
							Name: "w", URL: "https://w.example", CA: NewBundle(pki.Kubernetes.Cert), Client: ref.Cluster.Spec.Kubernetes.Authentication.Webhook.Client,
							Timeout: Duration(3 * time.Second), AuthorizedTTL: Duration(5 * time.Minute), UnauthorizedTTL: Duration(30 * time.Second), FailurePolicy: FailureDeny,
						}}},
					},
				}}
			},
		},
		"network": {
			text: `
{apiVersion: orlop.dev/v1alpha1, kind: Machine, metadata: {name: a}, spec: {role: worker}}
---
apiVersion: orlop.dev/v1alpha1
kind: Network
metadata: {name: n}
spec:
  links:
    - {name: eth0, mtu: 1280, addresses: [10.0.0.5/24, "2001:DB8::5/64"], routes: [{to: 0.0.0.0/0, via: 10.0.0.1, metric: 7}, {to: "::/0", via: "fe80::1"}, {to: 10.9.0.0/16}]}
    - {mac: 52:54:00:AB:cd:ef, dhcp4: true, routes: [{to: 10.8.0.0/16, via: 10.7.0.1}]}
  dns: {servers: [192.0.2.53, "2001:db8::1"], search: [example.com]}
`,
			want: func(c *Config) {
				c.Network = Network{Metadata: NetworkMetadata{Name: "n"}, Spec: NetworkSpec{
					Links: []Link{
						{Name: "eth0", MTU: 1280, Addresses: []netip.Prefix{prefix("10.0.0.5/24"), prefix("2001:db8::5/64")}, Routes: []Route{
							{To: prefix("0.0.0.0/0"), Via: addr("10.0.0.1"), Metric: 7}, {To: prefix("::/0"), Via: addr("fe80::1")}, {To: prefix("10.9.0.0/16")},
						}},
						{MAC: "52:54:00:ab:cd:ef", DHCP4: true, Routes: []Route{{To: prefix("10.8.0.0/16"), Via: addr("10.7.0.1")}}},
					},
					DNS: DNS{Servers: []netip.Addr{addr("192.0.2.53"), addr("2001:db8::1")}, Search: []string{"example.com"}},
				}}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want := &Config{
				Machine: Machine{Metadata: Metadata{Name: "a"}, Spec: MachineSpec{Role: RoleWorker, Reserved: Reserved{Memory: 512 << 20, CPU: 200}, Upgrade: Upgrade{Deadline: Duration(5 * time.Minute), Drain: Drain{Policy: DrainNone, Timeout: Duration(5 * time.Minute)}}}},
				Network: Network{Metadata: NetworkMetadata{Name: "default"}},
			}
			test.want(want)
			got, problems := Parse("x.yaml", []byte(expand(t, v, test.text)))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			for _, pair := range [][2]any{{got.Machine, want.Machine}, {got.Cluster, want.Cluster}, {got.Network, want.Network}} {
				if !reflect.DeepEqual(pair[0], pair[1]) {
					t.Errorf("\n got %+v\nwant %+v", pair[0], pair[1])
				}
			}
			again, problems := Parse("again", Marshal(got))
			if len(problems) > 0 || !Equal(again, got) {
				t.Errorf("the output of Marshal has another value: %v\n%s", problems, Changes(got, again))
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	c, problems := Parse("m.yaml", []byte("apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: a\nspec:\n  role: worker\n  sysctls:\n    vm.swappiness: 1\n  reserved: {cpu: 1}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for path, want := range map[string]string{
		"Machine.metadata.name":                 "m.yaml:4:9",
		`Machine.spec.sysctls["vm.swappiness"]`: "m.yaml:8:20",
		"Machine.spec.reserved.cpu":             "m.yaml:9:19",
		"Machine.spec.reserved.memory":          "default",
		"Machine.spec.disk.wipeForeign":         "default",
		"Network.spec.links":                    "default",
	} {
		if got := c.Origin(path).String(); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// TestMarshalOrigins checks that each default is marked, and that the output can be parsed.
func TestMarshalOrigins(t *testing.T) {
	const written = "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker, sysctls: {vm.swappiness: 1}, reserved: {cpu: 1}}\n" +
		"---\napiVersion: orlop.dev/v1alpha1\nkind: Network\nspec: {links: [{name: eth0, dhcp4: true}], ntp: {servers: [10.0.0.1]}}\n"
	c, problems := Parse("m.yaml", []byte(written))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	text := string(MarshalOrigins(c))
	for _, line := range []string{"    cpu: \"1\"\n", "    memory: 512MiB # default\n", "      dhcp4: true\n", "    - name: eth0\n", "    vm.swappiness: \"1\"\n", "      - 10.0.0.1\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is not in\n%s", line, text)
		}
	}
	if again, problems := Parse("again", []byte(text)); len(problems) > 0 || !Equal(c, again) {
		t.Errorf("%v\n%s", problems, text)
	}
}

func TestLimits(t *testing.T) {
	const head = "apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker}\n"
	deep := func(n int) string { return "x: " + strings.Repeat("[", n) + strings.Repeat("]", n) + "\n" }
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for i := 'b'; i < 'k'; i++ {
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	tests := []struct{ name, text, want string }{
		{"size", head + "#" + strings.Repeat("x", MaxSize-len(head)), "f: 1048577 bytes long; expected at most 1 MiB"},
		{"depth", deep(40) + head, "f:1:35: kind: nested more than 32 levels deep"},
		{"great depth", deep(500000) + head, "f: cannot be read as YAML: exceeded max depth of 10000"},
		{"alias bomb", bomb + head, `f:1:4: an anchor (&); expected the value only; anchors and aliases are not accepted; quote a value that begins with this character`},
		{"not UTF-8", head + "\xff", "f:5:1: the byte 0xff is not text; expected YAML in UTF-8"},
		{"UTF-16", "\xff\xfea\x00", "f:1:1: the byte 0xff is not text; expected YAML in UTF-8"},
		{"zero byte", head + "# é\x00", "f:5:4: the control character U+0000; expected YAML in UTF-8"},
		{"escape sequence", "\x1b[2J" + head, "f:1:1: the control character U+001B; expected YAML in UTF-8"},
	}
	for _, test := range tests {
		_, problems := Parse("f", []byte(test.text))
		if lines := strings.Split(problems.Error(), "\n"); !slices.Contains(lines, test.want) {
			t.Errorf("%s:\n got %s\nwant %s", test.name, lines[0], test.want)
		}
	}
	if _, problems := Parse("f", []byte(head+"#"+strings.Repeat("x", MaxSize-len(head)-1))); len(problems) > 0 {
		t.Errorf("a file of exactly the largest size: %v", problems)
	}
	var many strings.Builder
	many.WriteString(head)
	for i := range 5000 {
		fmt.Fprintf(&many, "x%d: 1\n", i)
	}
	_, problems := Parse("f", []byte(many.String()))
	if last := problems[len(problems)-1]; len(problems) != maxProblems+1 || last.String() != "f: 4900 more problems; fix the first problems and validate again" {
		t.Errorf("%d problems, the last: %s", len(problems), last)
	}
}

// TestSameAnswer checks that Parse returns the same problems for the same file each time. The
// random order of maps must not affect them.
func TestSameAnswer(t *testing.T) {
	text := []byte("apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: A}\nspec: {role: worker, sysctls: {a: 1, b: 2, kernel.panic: 3, vm.x: '', d: 5}, kernelModules: [.]}\n")
	_, first := Parse("", text)
	for range 50 {
		if _, again := Parse("", text); again.Error() != first.Error() {
			t.Fatalf("first:\n%v\nthen:\n%v", first, again)
		}
	}
}

func TestErr(t *testing.T) {
	if err := (Problems)(nil).Err(); err != nil {
		t.Errorf("Err returns an error without problems: %v", err)
	}
	problems := Problems{{File: "f", Line: 1, Reason: "bad"}}
	if err := problems.Err(); err == nil || err.Error() != "f:1: bad" {
		t.Errorf("got %v", err)
	}
}

func TestNearest(t *testing.T) {
	for _, test := range []struct{ name, want string }{
		{"adresses", "addresses"}, {"addreses", "addresses"}, {"Addresses", "addresses"}, {"rotues", "routes"}, {"mut", "mtu"},
		{"dhcp", "dhcp4"}, {"gateway", ""}, {"x", ""}, {"", ""}, {strings.Repeat("addresses", 20), ""},
	} {
		if got := nearest(test.name, []string{"name", "mac", "mtu", "dhcp4", "addresses", "routes"}); got != test.want {
			t.Errorf("%q: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestImports checks that the package imports no large packages, because it is a part of PID 1. The
// package age (160 KiB) is permitted, because it detects a mistyped public key. Without this check,
// an operator would notice only at a restore that no key can decrypt the snapshots.
func TestImports(t *testing.T) {
	// The last two packages contain only tables.
	allowed := []string{"go.yaml.in/yaml/v3", "filippo.io/age", "github.com/orlop-os/orlop/pkg/kernel/sysctl", "github.com/orlop-os/orlop/pkg/config/upstream"}
	files, err := filepath.Glob("*.go")
	check(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := goparser.ParseFile(token.NewFileSet(), file, nil, goparser.ImportsOnly)
		check(t, err)
		for _, i := range f.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			if !slices.Contains(allowed, path) && (strings.Contains(path, ".") || path == "regexp" || path == "net/http" || path == "os") {
				t.Errorf("%s imports %s, which is not in the list of permitted packages", file, path)
			}
		}
	}
}

func BenchmarkParse(b *testing.B) {
	data := []byte(Reference)
	b.ReportAllocs()
	for b.Loop() {
		if _, problems := Parse("", data); len(problems) > 0 {
			b.Fatal(problems)
		}
	}
}
