package bootfiles

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// repository returns the only input that the tests need, the module of the baseline. The path is
// relative to the directory of this test.
func repository() Spec {
	return Spec{Module: filepath.Join("..", "baseline")}
}

func TestEntries(t *testing.T) {
	files := tree{}
	files.add("a/b/file", 0o644, []byte("x"))
	files.add("a", fs.ModeDir|0o700, nil)
	files.add("init", 0o755, nil)
	modes := map[string]fs.FileMode{}
	for _, e := range files.entries() {
		if _, twice := modes[e.Name]; twice {
			t.Errorf("%s is twice in the initramfs", e.Name)
		}
		modes[e.Name] = e.Mode
	}
	want := map[string]fs.FileMode{"a": fs.ModeDir | 0o700, "a/b": fs.ModeDir | 0o755, "a/b/file": 0o644, "init": 0o755}
	if !maps.Equal(modes, want) {
		t.Errorf("entries are %v, want %v", modes, want)
	}
}

// TestSettings checks that the guest's files exist, that its scripts are valid, and that they name
// the images and the kernel modules of the initramfs.
func TestSettings(t *testing.T) {
	files := tree{}
	if err := files.addSettings(repository()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"init", "main"} {
		sh := exec.Command("sh", "-n")
		sh.Stdin = strings.NewReader(string(files[name].Content))
		if out, err := sh.CombinedOutput(); err != nil || files[name].Mode.Perm() != 0o755 {
			t.Errorf("%s: %v: %s, mode %v", name, err, out, files[name].Mode)
		}
	}
	for name, text := range map[string]string{"srv/pod.yaml": busyboxImage, "etc/containerd/config.toml": pauseImage} {
		if !strings.Contains(string(files[name].Content), `"`+text+`"`) {
			t.Errorf("%s does not name %s", name, text)
		}
	}
	main := string(files["main"].Content)
	loop := regexp.MustCompile(`for module in (.*); do`).FindStringSubmatch(main)
	if loop == nil || !slices.Equal(strings.Fields(loop[1]), modules) {
		t.Errorf("main loads %q, the initramfs has %q", loop, modules)
	}
	if !regexp.MustCompile(`(?m)^waiter .* \|\| poweroff -f`).MatchString(main) {
		t.Error("main does not power off if the API server does not answer")
	}
	for _, name := range hyperNames {
		if !strings.Contains(main, " "+name+" --") {
			t.Errorf("main does not start %s", name)
		}
	}
	if err := files.addSettings(Spec{Module: t.TempDir()}); err == nil {
		t.Error("addSettings accepts a module without the guest's files")
	}
}

// TestCertificates checks that each component has a certificate of the CA with the name to which
// Kubernetes grants the rights of the component, and that main names each certificate.
func TestCertificates(t *testing.T) {
	files := tree{}
	if err := files.addCertificates(); err != nil {
		t.Fatal(err)
	}
	if err := files.addSettings(repository()); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(files["srv/pki/ca.crt"].Content)
	for name, subject := range map[string]string{
		"api": "CN=kube-apiserver", "admin": "CN=admin,O=system:masters", "kcm": "CN=system:kube-controller-manager", "sched": "CN=system:kube-scheduler",
	} {
		pair, err := tls.X509KeyPair(files["srv/pki/"+name+".crt"].Content, files["srv/pki/"+name+".key"].Content)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		usage := x509.ExtKeyUsageClientAuth
		if name == "api" {
			usage = x509.ExtKeyUsageServerAuth
			if err := pair.Leaf.VerifyHostname("127.0.0.1"); err != nil {
				t.Error(err)
			}
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil || pair.Leaf.Subject.String() != subject {
			t.Errorf("%s: subject %s, %v", name, pair.Leaf.Subject, err)
		}
	}
	used := regexp.MustCompile(`pki/[a-z.]+`).FindAllString(string(files["main"].Content), -1)
	if len(used) < 8 {
		t.Fatalf("main names only %q", used)
	}
	for _, name := range used {
		if _, ok := files["srv/"+name]; !ok {
			t.Errorf("main names %s, which the initramfs does not have", name)
		}
	}
}

func TestCheckStatic(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no program\n", 100)), 0o755); err != nil {
		t.Fatal(err)
	}
	dynamic, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{self: "", "/nonexistent": "does not exist", text: "bad magic number", dynamic: "shared libraries"} {
		err := checkStatic(file)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "busybox-static")) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}
