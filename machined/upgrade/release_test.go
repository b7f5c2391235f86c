package upgrade

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/verity"
)

// TestReleaseSource checks that the credentials of a registry come from the configuration, and that
// no other registry gets them.
func TestReleaseSource(t *testing.T) {
	made, err := pki.NewCA("registry", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := config.ParseCertificate(string(made.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	c := new(config.Config)
	c.Machine.Spec.Registries = []config.ImageRegistry{
		{Address: "registry.example.com/mirror", Mirrors: []config.RegistryName{"docker.io"}, Username: "mirror", Password: config.NewSecret("no")},
		{Address: "registry.example.com", CA: config.NewBundle(ca), Username: "machines", Password: config.NewSecret("pass")},
		{Address: "10.0.0.2:5000", PlainHTTP: true},
	}
	e := egress.Config{Proxy: "http://proxy.example.com:3128"}
	for _, test := range []struct {
		image, username, password string
		ca, plain                 bool
	}{
		{image: "registry.example.com/orlop/qemu@sha256:00", username: "machines", password: "pass", ca: true},
		{image: "10.0.0.2:5000/orlop@sha256:00", plain: true},
		{image: "registry.example.com.evil.example/orlop@sha256:00"},
		{image: "other.example.com/registry.example.com@sha256:00"},
	} {
		s := RegistrySource(c, e, test.image)
		if s.Reference != test.image || s.Username != test.username || s.Password != test.password || len(s.CA) > 0 != test.ca || s.Egress != e || s.PlainHTTP != test.plain {
			t.Errorf("%s: %+v", test.image, s)
		}
	}
	if s := RegistrySource(nil, e, "a/b"); s.Username != "" || s.Reference != "a/b" || s.Egress != e {
		t.Errorf("without a configuration: %+v", s)
	}
}

// TestChangeRelease checks the errors for releases that the machine cannot install.
func TestChangeRelease(t *testing.T) {
	for _, test := range []struct {
		name string
		to   Release
		want string
	}{
		{"an older version without slots", Release{Version: "1.0.0"}, "rollback: " + ErrNoSlots.Error()},
		{"a newer version without slots", Release{Version: "3.0.0"}, "upgrade refused: " + ErrNoSlots.Error()},
	} {
		m := newTestMachine(t, slot.Record{})
		err := m.ChangeRelease(t.Context(), test.to, "machine object")
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
		if len(m.steps) > 0 {
			t.Errorf("%s: the machine was changed: %q", test.name, m.steps)
		}
	}
}

// TestFindRelease checks that findRelease tries each source of a release, and that its error names
// all of them.
func TestFindRelease(t *testing.T) {
	m := newTestMachine(t, slot.Record{})
	m.Receiver.deps.PeerEndpoint = func(address string) (client.Endpoint, error) {
		return client.Endpoint{}, errors.New(address + " is no machine of the cluster")
	}
	m.Receiver.deps.Node.Config = func() *config.Config { return nil }
	m.Receiver.deps.Node.Egress = func() egress.Config { return egress.Config{} }
	_, _, err := m.Receiver.findRelease(t.Context(), Release{Version: "3.0.0", Peers: []string{"10.0.0.8", "10.0.0.9"}, Image: "registry.example.com/orlop@sha256:" + strings.Repeat("0", 64)})
	if err == nil {
		t.Fatal("a release was found")
	}
	for _, want := range []string{"version 3.0.0 was not found", "10.0.0.8 is no machine", "10.0.0.9 is no machine", "no CA is given for the server", "Machine.spec.registries"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no %q", err, want)
		}
	}
	if _, _, err := m.Receiver.findRelease(t.Context(), Release{Version: "3.0.0"}); err == nil || !strings.Contains(err.Error(), "set the image") {
		t.Errorf("a release without a source: %v", err)
	}
}

// TestOnly checks that Installer.Check rejects a bundle of another version than Installer.Only,
// although its signature is valid.
func TestOnly(t *testing.T) {
	m := newTestMachine(t, slot.Record{})
	in := m.Receiver.deps.Files.Inbox
	trust := receivedBundle(t, in, bootImageOf(t, "ID=orlop\n"))
	content, err := os.ReadFile(in.file())
	if err != nil {
		t.Fatal(err)
	}
	_, err = Installer{Trust: trust, Profile: "test", Only: "3.0.1"}.Check(bytes.NewReader(content))
	if !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), "contains version 3.0.0, and version 3.0.1 is wanted") {
		t.Errorf("another version: %v", err)
	}
	if _, err := (Installer{Trust: trust, Profile: "test", Only: "3.0.0"}).Check(bytes.NewReader(content)); err == nil || strings.Contains(err.Error(), "is wanted") {
		t.Errorf("the wanted version, with a wrong root: %v", err)
	}
}

// TestMissingExtension checks that a version for which an extension is missing is refused before
// any operation. The received bundle is retained for another attempt, because the error is no
// Refusal.
func TestMissingExtension(t *testing.T) {
	m := newTestMachine(t, slot.Record{})
	in := m.Receiver.deps.Files.Inbox
	trust := receivedBundleWith(t, in, bootImageOf(t, "ID=orlop\n"), strings.Repeat("ab", verity.HashSize)+",1,1,")
	content, err := os.ReadFile(in.file())
	if err != nil {
		t.Fatal(err)
	}
	asked := ""
	i := Installer{Trust: trust, Profile: "test", Running: "2.0.0", CheckExtensions: func(version string) error {
		asked = version
		return errors.New("extension gvisor is not stored for version 3.0.0; add its image")
	}}
	_, err = i.Check(bytes.NewReader(content))
	if err == nil || err.Error() != "upgrade refused, nothing was written: extension gvisor is not stored for version 3.0.0; add its image" || errors.As(err, new(Refusal)) || asked != "3.0.0" {
		t.Errorf("%v, asked for %s", err, asked)
	}
	// Install repeats the check, because the configuration may have changed since Check. Install
	// must fail before its first operation.
	i.Begin = func(operation string, _ int64) { t.Errorf("performed %s", operation) }
	if err := i.Install(t.Context(), bytes.NewReader(content)); err == nil || !strings.Contains(err.Error(), "upgrade refused, nothing was written: extension gvisor") {
		t.Error(err)
	}
}

// TestSavedConfigurations checks that SavedConfigurations returns each stored configuration.
func TestSavedConfigurations(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if all, err := s.SavedConfigurations(); err != nil || len(all) > 0 {
		t.Error(all, err)
	}
	if err := s.SaveConfiguration("1.0.0", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if all, err := s.SavedConfigurations(); err != nil || len(all) != 1 || string(all[0]) != "one" {
		t.Error(all, err)
	}
}
