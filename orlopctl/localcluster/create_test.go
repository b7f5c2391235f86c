package localcluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/machinetest"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

// TestBringUp runs the steps of `cluster create` that follow the start of QEMU, with a fake
// machine. It checks the timeline, the stored context and the kubeconfig. Then it checks how
// contexts change after a restart of the machines, and which entries of the kubeconfig are removed
// with a cluster.
func TestBringUp(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ORLOP_CONFIG", filepath.Join(dir, "config"))
	t.Setenv("KUBECONFIG", filepath.Join(dir, "kube"))
	fake, c, out := NewCreation(t, dir)
	console := "UEFI firmware\r\norlop: Orlop OS 1.2.3\r\norlop: machine identity " + fake.Fingerprint + "\r\n"
	if err := os.WriteFile(c.first().status.Console, []byte(console), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.bringUp(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.finish(ctx); err != nil {
		t.Fatal(err)
	}
	if got := fake.Current(); got == nil || got.Machine.Metadata.Name != firstMachine || got.Cluster.Spec.Endpoint.String() != "https://10.77.0.11:6443" {
		t.Errorf("the machine was configured as %+v", got)
	}
	// The names of the lines and their order are compared, but not the times, which differ in each
	// run.
	var stages []string
	for line := range strings.Lines(out.String()) {
		if m := regexp.MustCompile(`^ +\d+\.\ds +\+\d+\.\ds  (\S+( \S+)*)`).FindStringSubmatch(line); m != nil {
			stages = append(stages, m[1])
		}
	}
	want := []string{"firmware", "kernel", "init", "machined", "storage", "identity", "API answers", "configuration applied", "etcd", "healthy"}
	if got := strings.Join(stages, ", "); got != strings.Join(want, ", ") {
		t.Errorf("timeline:\n got %s\nwant %s\n\n%s", got, strings.Join(want, ", "), out)
	}
	file, err := contexts.Load()
	if err != nil || file.Current != "t1" || file.Contexts["t1"].Fingerprint != "" {
		t.Errorf("contexts: got %+v, %v", file, err)
	}
	// After a machine was switched off and on, it has another address, and its context must change.
	// The context t1-w2 has another CA. So it belongs to a machine of another cluster, and must not
	// change.
	if err := contexts.Change(func(f *contexts.File) error {
		f.Contexts["t1-w1"], f.Contexts["t1-w2"] = c.known(member{vm.MachineStatus{Name: "w1"}, "127.0.0.1:1"}), contexts.Context{Endpoint: "127.0.0.1:2", CA: c.secrets.Etcd.Cert}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	now := vm.Status{Machines: []vm.MachineStatus{{Name: firstMachine}, {Name: "w1"}, {Name: "w2"}, {Name: "w3"}}}
	for i, m := range now.Machines {
		now.Forwards = append(now.Forwards, vm.ForwardStatus{
			ForwardSpec: vm.ForwardSpec{Machine: m.Name, Port: paths.PortApid}, Addr: fmt.Sprintf("127.0.0.1:%d", 10+i),
		})
	}
	if err := moveContexts("t1", c.secrets, now); err != nil {
		t.Fatal(err)
	}
	if file, err = contexts.Load(); err != nil || len(file.Contexts) != 3 || file.Contexts["t1"].Endpoint != "127.0.0.1:10" ||
		file.Contexts["t1-w1"].Endpoint != "127.0.0.1:11" || file.Contexts["t1-w2"].Endpoint != "127.0.0.1:2" || file.Contexts["t1"].CA == "" {
		t.Errorf("the contexts after a restart of the machines: %+v, %v", file, err)
	}
	kube, err := os.ReadFile(filepath.Join(dir, "kube"))
	if err != nil || !strings.Contains(string(kube), "https://127.0.0.1:6443") {
		t.Errorf("kubeconfig: got %s, %v", kube, err)
	}
	// The kubeconfig of the fake machine has a cluster "dev". If this entry has no CA, or the CA of
	// another cluster, it does not belong to the cluster of this test, and must not be removed.
	ca := base64.StdEncoding.EncodeToString([]byte(c.secrets.Etcd.Cert))
	withCA := strings.Replace(string(kube), "server:", "certificate-authority-data: "+ca+"\n      server:", 1)
	for _, foreign := range []string{string(kube), withCA} {
		if err := os.WriteFile(filepath.Join(dir, "kube"), []byte(foreign), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := removeClusterContexts("dev", c.secrets); err != nil {
			t.Fatal(err)
		}
		if after, err := os.ReadFile(filepath.Join(dir, "kube")); err != nil || string(after) != foreign {
			t.Errorf("the kubeconfig of another cluster with this name was changed to %s, %v", after, err)
		}
	}
	own := strings.Replace(withCA, ca, base64.StdEncoding.EncodeToString([]byte(c.secrets.Kubernetes.Cert)), 1)
	if err := os.WriteFile(filepath.Join(dir, "vault"), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "kube")), os.Symlink("vault", filepath.Join(dir, "kube"))); err != nil {
		t.Fatal(err)
	}
	if err := removeClusterContexts("dev", c.secrets); err != nil {
		t.Fatal(err)
	}
	if link, err := os.Readlink(filepath.Join(dir, "kube")); err != nil || link != "vault" {
		t.Errorf("the symbolic link to the kubeconfig was replaced: %s, %v", link, err)
	}
	if kube, err = os.ReadFile(filepath.Join(dir, "kube")); err != nil || strings.Contains(string(kube), "127.0.0.1") || strings.Contains(string(kube), "Zm9v") {
		t.Errorf("the kubeconfig after the removal of the cluster: %s, %v", kube, err)
	}
}

// TestBringUpFails checks the output for a machine that does not become healthy: the end of its
// console, and a hint.
func TestBringUpFails(t *testing.T) {
	_, c, out := NewCreation(t, t.TempDir())
	if err := os.WriteFile(c.first().status.Console, []byte("orlop: init: cannot boot: no disk\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := c.bringUp(ctx)
	if err == nil {
		t.Fatal("bringUp succeeds, although the machine has not printed its identity")
	}
	err = c.explain(err)
	var status *exit.Error
	if !errors.As(err, &status) || status.Code != exit.Unhealthy || !strings.Contains(status.Hint, "cluster destroy t1") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "cannot boot: no disk") {
		t.Errorf("the output lacks the end of the console:\n%s", out)
	}
}

// NewCreation returns a fake machine, a creation of a cluster that uses this machine, and the
// output of the creation.
func NewCreation(t *testing.T, dir string) (*machinetest.Machine, *creation, *bytes.Buffer) {
	t.Helper()
	operator := filepath.Join(dir, "operator")
	if err := gen.MakeOperator(operator, "test", false); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(operator, gen.CACert))
	if err != nil {
		t.Fatal(err)
	}
	fake := machinetest.New(t, ca)
	image := filepath.Join(dir, "image")
	if err := os.MkdirAll(image, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(image, "disk.raw"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out := &bytes.Buffer{}
	ios := &iostreams.Streams{In: strings.NewReader(""), Out: out, Err: out, Format: "table"}
	c := &creation{ios: ios, name: "t1", dir: filepath.Join(dir, "clusters", "t1"), options: options{image: image}}
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	if c.options.operator != operator {
		t.Errorf("the operator's directory: got %s, want %s", c.options.operator, operator)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	poweron := time.Now().Add(-10 * time.Second)
	c.failed = vm.MachineStatus{Name: firstMachine, Addr: netip.MustParseAddr("10.77.0.11"), Console: filepath.Join(c.dir, "console.log"), PoweredOn: poweron}
	c.machines, c.kubeAddress = []member{{c.failed, fake.Address}}, "127.0.0.1:6443"
	c.timeline = newTimeline(ios, poweron, vm.Clock{})
	return fake, c, out
}

// TestFreePort checks that freePort finds a port if the caller has no preference.
func TestFreePort(t *testing.T) {
	port, err := freePort(0)
	if err != nil || port == 0 {
		t.Fatalf("got %d, %v", port, err)
	}
}

// TestConfigPatch checks that the configuration of a control-plane machine contains the patch. It
// also checks that readPatch, which runs before the machines are created, rejects an unusable
// patch.
func TestConfigPatch(t *testing.T) {
	c := &creation{ios: &iostreams.Streams{}, name: "t1", options: options{controlPlanes: 3, patchFile: filepath.Join(t.TempDir(), "patch.yaml")}}
	var err error
	if c.secrets, err = gen.NewSecrets(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ patch, want string }{
		{"kind: Cluster\nspec: {virtualAddresses: [10.77.0.9]}\n", ""},
		{"kind: Cluster\nspec: {virtualAddresses: [10.77.0.12]}\n", "10.77.0.12"},
		{"kind: Cluster\nspec: {nonsense: 1}\n", "nonsense"},
		{"spec: {}\n", "kind"},
	} {
		if err := os.WriteFile(c.options.patchFile, []byte(p.patch), 0o600); err != nil {
			t.Fatal(err)
		}
		err := c.readPatch()
		var status *exit.Error
		if p.want == "" && err != nil || p.want != "" && (!errors.As(err, &status) || status.Code != exit.Usage || !strings.Contains(err.Error(), p.want)) {
			t.Errorf("%s: got the error %v, want an error with %q, or none if empty", p.patch, err, p.want)
		}
		if p.want != "" {
			continue
		}
		text, err := c.configuration("cp2", []string{"10.77.0.11", "10.77.0.12", "10.77.0.13"})
		if err != nil {
			t.Fatal(err)
		}
		got, problems := config.Parse("cp2.yaml", text)
		if problems.Err() != nil || got.Cluster.Spec.VirtualAddresses[0].String() != "10.77.0.9" || len(got.Cluster.Spec.ControlPlanes) != 3 || got.Machine.Metadata.Name != "cp2" {
			t.Errorf("the configuration: %s, %v", text, problems.Err())
		}
	}
}
