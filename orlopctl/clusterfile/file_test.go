package clusterfile

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/pkg/config"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// secrets returns the keys of a new cluster.
func secrets(t *testing.T) *gen.Secrets {
	t.Helper()
	s, err := gen.NewSecrets()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// documents returns the configuration documents of a control-plane machine, as the command `gen
// config` writes them.
func documents(t *testing.T, name string, s *gen.Secrets, addresses []string, endpoint string) []byte {
	t.Helper()
	g := gen.Config{Name: name, Cluster: "shop", Endpoint: endpoint, Secrets: s, SANs: []string{"127.0.0.1"}}
	if len(addresses) > 1 {
		g.ControlPlanes = addresses
	}
	text, err := g.Documents()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// redacted returns the documents without their secrets, as a machine returns them to a client.
func redacted(t *testing.T, text []byte) []byte {
	t.Helper()
	c, problems := config.Parse("test", text)
	if problems.Err() != nil {
		t.Fatal(problems.Err())
	}
	return config.MarshalRedacted(c)
}

// merged applies a patch to documents and returns the result.
func merged(t *testing.T, text []byte, patch string) []byte {
	t.Helper()
	out, err := config.Merge(text, []byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// worker returns the documents of a worker.
func worker(t *testing.T, name, patch string) []byte {
	t.Helper()
	return merged(t, config.Marshal(config.New(name, config.RoleWorker)), patch)
}

// shop returns a cluster of two control-plane machines and a worker.
func shop(t *testing.T) *File {
	t.Helper()
	s := secrets(t)
	addresses := []string{"10.0.0.11", "10.0.0.12"}
	var all []Exported
	for i, name := range []string{"m1", "m2"} {
		text := documents(t, name, s, addresses, "https://10.0.0.11:6443")
		text = merged(t, text, "kind: Machine\nspec: {sysctls: {net.core.somaxconn: \"4096\"}}\n---\nkind: Network\nspec: {links: [{name: eth0, addresses: ["+addresses[i]+"/24]}]}\n"+
			"---\nkind: Cluster\nspec: {kubernetes: {maxPods: 200}}\n---\napiVersion: orlop.dev/v1alpha1\nkind: Addon\nmetadata: {name: web}\nspec: {manifests: [\"{apiVersion: v1, kind: ConfigMap, metadata: {name: page}}\"], scope: {namespaces: [web]}, rights: {namespaceAdmin: true}, namespace: web}")
		all = append(all, Exported{Name: name, Role: "controlplane", Address: addresses[i], Documents: redacted(t, text)})
	}
	all = append(all, Exported{Name: "w1", Role: "worker", Address: "10.0.0.21", Documents: redacted(t, worker(t, "w1", "kind: Machine\nspec: {node: {labels: {rack: \"7\"}}}\n"+
		"---\napiVersion: orlop.dev/v1alpha1\nkind: Volume\nmetadata: {name: fast}\nspec: {disk: {serial: \"X*\"}, size: 2GiB, use: storageClass}"))})
	f, err := New(all)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestExport compares the file of a cluster with testdata/shop.yaml, and checks that Parse reads
// the same cluster again.
func TestExport(t *testing.T) {
	text, err := shop(t).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "shop.yaml")
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != string(text) {
		t.Errorf("%s differs (%v); run: go test ./orlopctl/clusterfile -update; got:\n%s", golden, err, text)
	}
	again, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := Diff(shop(t), again); err != nil || len(lines) > 0 {
		t.Errorf("the parsed file differs from the exported cluster: %q, %v", lines, err)
	}
	if got := again.Redacted(); !slices.Equal(got, []string{"Addon[web].spec.manifests[0]"}) {
		t.Errorf("fields that Redacted lists: %q", got)
	}
}

// TestRoundTrip moves the cluster of a file to machines with other addresses, makes the
// configurations of these machines, and exports the cluster that results. The second file must have
// no difference from the first one.
func TestRoundTrip(t *testing.T) {
	f := shop(t)
	f.Addons[0].Spec["manifests"] = []any{"{apiVersion: v1, kind: ConfigMap, metadata: {name: page}}"}
	moved, err := f.Move([]Override{
		{Name: "m1", Address: "fd00::1", Endpoint: "127.0.0.1:50001", Fingerprint: "sha256:aa"}, {Name: "m2", Address: "10.9.0.12"}, {Name: "w1", Address: "10.9.0.21"},
	})
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := moved.Endpoint()
	if err != nil || endpoint != "https://[fd00::1]:6443" {
		t.Fatalf("endpoint %s, %v", endpoint, err)
	}
	s := secrets(t)
	var all []Exported
	for _, m := range moved.Machines {
		base := worker(t, m.Name, "kind: Machine\nspec: {sysctls: {}}")
		if m.Role == "controlplane" {
			base = documents(t, m.Name, s, nil, endpoint)
		}
		text, err := moved.Documents(m, base)
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		if c, _ := config.Parse(m.Name, text); m.Name == "m1" && (!slices.Equal(c.Cluster.Spec.ControlPlanes, []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.9.0.12")}) ||
			c.Network.Spec.Links[0].Addresses[0].String() != "fd00::1/24" || c.Cluster.Spec.PKI.Machine.Cert.PEM() != s.Machine.Cert) {
			t.Errorf("%s:\n%s", m.Name, config.MarshalRedacted(c))
		}
		all = append(all, Exported{Name: m.Name, Role: m.Role, Address: m.Address, Documents: redacted(t, text)})
	}
	again, err := New(all)
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := Diff(shop(t), again); err != nil || len(lines) > 0 {
		t.Errorf("the moved cluster differs: %q, %v", lines, err)
	}
}

// TestReplaceAddress checks that replaceAddress replaces an address of a machine by its variable,
// in each form that a document can contain. Any other text does not change.
func TestReplaceAddress(t *testing.T) {
	names := map[netip.Addr]string{netip.MustParseAddr("10.0.0.11"): "${m1}", netip.MustParseAddr("fd00::1"): "${m2}"}
	for text, want := range map[string]string{
		"10.0.0.11":                   "${m1}",
		"::ffff:10.0.0.11":            "${m1}",
		"10.0.0.11/24":                "${m1}/24",
		"10.0.0.11:2380":              "${m1}:2380",
		"[fd00::1]:2380":              "${m2}:2380",
		"https://10.0.0.11:6443":      "https://${m1}:6443",
		"https://10.0.0.11:9000/":     "https://${m1}:9000/",
		"https://[fd00::1]:9000/a/b/": "https://${m2}:9000/a/b/",
		"10.0.0.110":                  "10.0.0.110",
		"10.0.0.1/24":                 "10.0.0.1/24",
		"https://10.0.0.110:6443":     "https://10.0.0.110:6443",
		"api.example:6443":            "api.example:6443",
		"":                            "",
	} {
		if got := replaceAddress(text, names); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestDiff checks the lines that Diff returns for each kind of change of a file.
func TestDiff(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*File)
		want   []string
	}{
		{"no change", func(*File) {}, nil},
		{"machines with other addresses", func(f *File) {
			moved, err := f.Move([]Override{{Name: "m1", Address: "10.9.9.9", Endpoint: "a:1", Fingerprint: "sha256:00"}})
			if err != nil {
				t.Fatal(err)
			}
			*f = *moved
		}, nil},
		{"an omitted field has its default", func(f *File) { delete(f.Cluster.Spec["kubernetes"].(map[string]any), "finishedPods") }, nil},
		{"another value of a field", func(f *File) { f.Cluster.Spec["kubernetes"].(map[string]any)["maxPods"] = 100 }, []string{"Cluster.spec.kubernetes.maxPods: 200 → 100"}},
		{"a field is removed, so its default applies", func(f *File) { delete(f.Cluster.Spec["kubernetes"].(map[string]any), "maxPods") }, []string{"Cluster.spec.kubernetes.maxPods: 200 → 110"}},
		{"the name and the endpoint", func(f *File) {
			f.Cluster.Metadata["name"], f.Cluster.Spec["endpoint"] = "other", "https://api.example.com:6443"
		},
			[]string{"Cluster.metadata.name: shop → other", "Cluster.spec.endpoint: https://${m1}:6443 → https://api.example.com:6443"}},
		{"machines", func(f *File) {
			f.Machines[2].Name, f.Machines[2].Machine = "w9", nil
			f.Machines[1].Role, f.Machines[1].Machine = "worker", map[string]any{"sysctls": map[string]any{"net.core.somaxconn": "1"}}
			f.Machines[0].Network = nil
		}, []string{
			"machine m1: Network.spec.links: (none) → [", "machine m2: role: controlplane → worker", "machine m2: Machine.spec.sysctls.net.core.somaxconn: 4096 → 1", "machine w1: worker → (none)", "machine w9: (none) → worker",
		}},
		{"a volume", func(f *File) { f.Machines[2].Volumes[0].Spec["size"] = "3GiB" }, []string{"machine w1: Volume[fast].spec.size: 2GiB → 3GiB"}},
		{"add-ons", func(f *File) {
			f.Addons = []Document{{Metadata: map[string]any{"name": "new"}, Spec: map[string]any{"namespace": "n"}}}
		}, []string{
			"Addon[new].spec.namespace: (none) → n", "Addon[web].spec.healthyWithin: 10m → (none)", `Addon[web].spec.manifests: ["(redacted)"] → (none)`,
			"Addon[web].spec.namespace: web → (none)", "Addon[web].spec.rights.clusterAdmin: false → (none)", "Addon[web].spec.rights.namespaceAdmin: true → (none)",
			"Addon[web].spec.scope.cluster: false → (none)", `Addon[web].spec.scope.namespaces: ["web"] → (none)`,
		}},
	} {
		f := shop(t)
		test.change(f)
		got, err := Diff(shop(t), f)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		for _, want := range test.want {
			// For the row with " (none) → [", only the beginning of the line is compared.
			prefix := strings.TrimSuffix(want, " (none) → [")
			if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, prefix) }) {
				t.Errorf("%s: the lines %q lack %q", test.name, got, want)
			}
		}
		if len(got) != len(test.want) {
			t.Errorf("%s: the lines are %q, want %q", test.name, got, test.want)
		}
	}
}

// TestBadFiles checks the errors for invalid files. Each row replaces a text of a valid file.
func TestBadFiles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "shop.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ from, to, want string }{
		{"kind: ClusterExport", "kind: Cluster", `kind: is "Cluster", expected ClusterExport`},
		{"apiVersion: ", "apiVersion: other.", "apiVersion: is "},
		{"name: shop", "nam: shop", "cluster.metadata.name: is missing"},
		{"name: web", "nam: web", "addons[0].metadata.name: is missing"},
		{"address: 10.0.0.12", "address: m2", `machines[1].address: is "m2", expected an IP address`},
		{"address: 10.0.0.12", "address: 10.0.0.11", "machines[1].address: 10.0.0.11 is a duplicate"},
		{"name: m2", "name: m1", "machines[1].name: m1 is a duplicate"},
		{"role: worker", "role: plane", `machines[2].role: is "plane", expected controlplane or worker`},
		{"role: controlplane", "role: worker", "no machine has the role controlplane"},
		{"machines:", "machine:", "unknown field"},
	} {
		_, err := Parse([]byte(strings.ReplaceAll(string(text), test.from, test.to)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q replaced by %q: error %v, want %s", test.from, test.to, err, test.want)
		}
	}
	f := shop(t)
	base := documents(t, "m1", secrets(t), nil, "https://10.0.0.11:6443")
	if _, err := f.Documents(f.Machines[0], base); err == nil || !strings.Contains(err.Error(), "redacted") {
		t.Errorf("Documents of a file with a redacted secret: %v", err)
	}
	f.Addons = nil
	f.Cluster.Spec["virtualAddresses"] = []any{"${m9}"}
	if _, err := f.Documents(f.Machines[0], base); err == nil || !strings.Contains(err.Error(), "Cluster.spec.virtualAddresses[0]: names ${m9}") {
		t.Errorf("Documents of a file that names an unknown machine: %v", err)
	}
	delete(f.Cluster.Spec, "virtualAddresses")
	f.Cluster.Spec["controlPlanes"] = []any{"${m1}"}
	if _, err := f.Documents(f.Machines[0], base); err == nil || !strings.Contains(err.Error(), "does not name machine m2") {
		t.Errorf("Documents of a file in which controlPlanes lacks a machine: %v", err)
	}
	delete(f.Cluster.Spec, "controlPlanes")
	if text, err := f.Documents(f.Machines[0], base); err != nil || !strings.Contains(string(text), "- 10.0.0.12") {
		t.Errorf("Documents of a file without controlPlanes do not list all control-plane machines: %v", err)
	}
	if _, err := f.Move([]Override{{Name: "m9", Address: "10.0.0.1"}}); err == nil {
		t.Error("Move accepts an override of an unknown machine")
	}
}

// TestParseOverride checks which values of the flag --machine are valid.
func TestParseOverride(t *testing.T) {
	got, err := ParseOverride("m1=10.0.0.1,endpoint=127.0.0.1:5,fingerprint=sha256:aa")
	if want := (Override{"m1", "10.0.0.1", "127.0.0.1:5", "sha256:aa"}); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "m1", "=10.0.0.1", "m1=", "m1=10.0.0.1,port=5", "m1=10.0.0.1,endpoint="} {
		if _, err := ParseOverride(bad); err == nil {
			t.Errorf("ParseOverride accepts %q", bad)
		}
	}
}
