package vm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/orlop-os/orlop/pkg/machineprovider/providertest"
	provider "github.com/orlop-os/orlop/pkg/machineprovider/redfish"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/vm/redfish"
)

// withDevices returns a specification with a disk, a CD drive and a NIC.
func withDevices(t *testing.T) MachineSpec {
	t.Helper()
	s := fakeSpec(t, "serve")
	s.Disks = []Disk{{Name: "disk0", SizeMiB: 1}, {Name: "cd", Bus: BusCD}}
	s.NIC.Network = newTestNetwork(t, NetworkSpec{})
	s, err := s.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOverride checks the boot order for each override of the boot device, and the disks with an
// inserted medium. The specification itself must not change.
func TestOverride(t *testing.T) {
	s := withDevices(t)
	for _, c := range []struct {
		override redfish.Override
		want     []string
	}{
		{redfish.Override{}, []string{"disk0", "cd"}},
		{redfish.Override{Target: redfish.None, Once: true}, []string{"disk0", "cd"}},
		{redfish.Override{Target: redfish.Pxe}, []string{"pxe", "disk0", "cd"}},
		{redfish.Override{Target: redfish.UefiHTTP, Once: true}, []string{"http", "disk0", "cd"}},
		{redfish.Override{Target: redfish.Cd}, []string{"cd", "disk0"}},
		{redfish.Override{Target: redfish.Hdd}, []string{"disk0", "cd"}},
	} {
		got := s.with(setup{override: c.override})
		if !slices.Equal(got.Firmware.Boot, c.want) || got.QEMU.NoReboot != (c.override.Enabled() && c.override.Once) {
			t.Errorf("override %+v: the boot order is %v, and a reset ends QEMU: %t; want the order %v", c.override, got.Firmware.Boot, got.QEMU.NoReboot, c.want)
		}
	}
	if want := []string{"disk0", "cd"}; !slices.Equal(s.Firmware.Boot, want) {
		t.Errorf("the method with changes the boot order of the specification to %v", s.Firmware.Boot)
	}
	file := "/images/a.iso"
	if got := s.with(setup{medium: &file}); got.Disks[1].Image != file || s.Disks[1].Image != "" {
		t.Errorf("with a medium, the disks are %+v, and those of the specification %+v", got.Disks, s.Disks)
	}
	args := strings.Join(s.arguments(inherited{}, nil), " ")
	if !strings.Contains(args, "-device ide-cd,id=drive-cd,serial=cd,bootindex=2") || strings.Contains(args, "drive=cd") {
		t.Errorf("the arguments for an empty drive are %s", args)
	}
}

// TestOverrideOnce checks that after a boot with an override for a single boot, the next boot has
// the usual order. QEMU reads the order only at its start, so QEMU must be started again.
func TestOverrideOnce(t *testing.T) {
	m := startFake(t, withDevices(t))
	ctx := within(t, 30*time.Second)
	m.SetOverride(redfish.Override{Target: redfish.Pxe, Once: true})
	if err := m.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if o := m.Override(); o.Enabled() {
		t.Errorf("the override is still enabled after the boot: %+v", o)
	}
	first := m.PID()
	// Wait for the console line of the first process, because it may come late.
	if _, err := m.WaitConsole(ctx, regexp.MustCompile(fmt.Sprintf(`stage one of %d\b`, first))); err != nil {
		t.Fatal(err)
	}
	mark := m.Console().Offset()
	if err := m.Monitor(ctx, "inject-nmi", nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Console().WaitFrom(ctx, mark, regexp.MustCompile("stage one")); err != nil {
		t.Fatal(err)
	}
	if pid := m.PID(); pid == first || pid == 0 {
		t.Errorf("QEMU was not started again: process %d runs, the first process was %d", pid, first)
	}
	// This boot has no override, so a reset does not end QEMU.
	if err := m.Monitor(ctx, "inject-nmi", nil); err != nil || !m.Running() {
		t.Errorf("the reset without an override returns %v; the machine runs: %t", err, m.Running())
	}
	// A machine that loses its power in a boot with an override stays off.
	m.SetOverride(redfish.Override{Target: redfish.Pxe, Once: true})
	if err := m.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	m.PowerCut()
	if m.Running() {
		t.Error("the machine runs after a power cut")
	}
}

// TestMedium checks that a medium stays in the CD drive over a power cut, until it is ejected.
func TestMedium(t *testing.T) {
	spec := withDevices(t)
	m := startFake(t, spec)
	ctx := within(t, 30*time.Second)
	if m.Medium() != "" {
		t.Errorf("the drive of a new machine has the medium %q, want none", m.Medium())
	}
	if err := m.InsertMedium(ctx, "/images/a.iso"); err != nil || m.Medium() != "/images/a.iso" {
		t.Errorf("InsertMedium returns %v, and the medium is %q", err, m.Medium())
	}
	m.PowerCut()
	if err := m.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := m.WaitConsole(ctx, regexp.MustCompile("medium /images/a.iso")); err != nil {
		t.Error(err)
	}
	m.PowerCut()
	if err := m.EjectMedium(ctx); err != nil || m.Medium() != "" {
		t.Errorf("EjectMedium returns %v, and the medium is %q", err, m.Medium())
	}
	bare := startFake(t, fakeSpec(t, "serve"))
	if err := bare.InsertMedium(ctx, "/images/a.iso"); err == nil || !strings.Contains(err.Error(), "no CD drive") {
		t.Errorf("the error of a machine without a drive is %v", err)
	}
}

// redfishClient connects to the service of a cluster with the data of its status.
func redfishClient(t *testing.T, s RedfishStatus) *gofish.APIClient {
	t.Helper()
	password, err := os.ReadFile(s.PasswordFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(s.Certificate)) {
		t.Fatalf("the status has no certificate, but %q", s.Certificate)
	}
	block, _ := pem.Decode([]byte(s.Certificate))
	if cert, err := x509.ParseCertificate(block.Bytes); err != nil || pki.Fingerprint(cert) != s.Fingerprint {
		t.Errorf("%s is not the fingerprint of the certificate in the status: %v", s.Fingerprint, err)
	}
	c, err := gofish.ConnectContext(within(t, 30*time.Second), gofish.ClientConfig{Endpoint: s.URL, Username: s.User, Password: string(password), BasicAuth: true,
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}, NoModifyTransport: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClusterRedfish operates the machines of a cluster by Redfish, before and after a restart of
// the runner.
func TestClusterRedfish(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, ctx := filepath.Join(t.TempDir(), "cluster"), within(t, time.Minute)
	c, err := Launch(ctx, dir, ClusterSpec{Name: "test", Machines: []MachineSpec{fakeSpec(t, "serve")}, Redfish: &RedfishSpec{}}, self, "run-cluster")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Destroy(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	status := func() Status {
		t.Helper()
		s, err := c.Status(ctx)
		if err != nil || s.Redfish == nil || !strings.HasPrefix(s.Redfish.URL, "https://127.0.0.1:") {
			t.Fatalf("the status is %+v, %v, want a Redfish service on loopback", s, err)
		}
		return s
	}
	before := *status().Redfish
	systems, err := redfishClient(t, before).Service.Systems()
	if err != nil || len(systems) != 1 {
		t.Fatalf("the service has %d systems, %v, want one", len(systems), err)
	}
	if s := systems[0]; s.SerialNumber != "test-cp1" || len(s.UUID) != 36 || s.PowerState != schemas.OnPowerState {
		t.Errorf("the state of the system is %+v", s)
	}
	if _, err := systems[0].Reset(schemas.ForceOffResetType); err != nil || status().Machines[0].Running {
		t.Errorf("Reset with ForceOff returns %v, or the machine still runs", err)
	}
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if c, err = Resume(ctx, dir, self, "run-cluster"); err != nil {
		t.Fatal(err)
	}
	after := *status().Redfish
	if after.Fingerprint != before.Fingerprint {
		t.Errorf("the service has another key: %s, %s before", after.Fingerprint, before.Fingerprint)
	}
	again, err := redfishClient(t, after).Service.Systems()
	if err != nil || len(again) != 1 || again[0].UUID != systems[0].UUID {
		t.Errorf("after the restart, the service has %d systems, %v, or another UUID", len(again), err)
	}
}

// TestProviderConformance runs the checks for providers against the machines of a runner. The
// machines run the fake QEMU.
func TestProviderConformance(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "a.iso")
	if err := os.WriteFile(image, []byte("a medium"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole, bare := fakeSpec(t, "serve"), fakeSpec(t, "serve")
	whole.Disks = []Disk{{Name: "disk0", SizeMiB: 1}, {Name: "cd", Bus: BusCD}}
	bare.Name, bare.NIC.Omit = "w1", true
	dir, ctx := filepath.Join(t.TempDir(), "cluster"), within(t, time.Minute)
	c, err := Launch(ctx, dir, ClusterSpec{Name: "test", Machines: []MachineSpec{whole, bare}, Redfish: &RedfishSpec{User: "operator"}}, self, "run-cluster")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Destroy(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	s, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	password, err := os.ReadFile(s.Redfish.PasswordFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cp1", "w1"} {
		t.Run(name, func(t *testing.T) {
			config := provider.Config{Name: name, Endpoint: s.Redfish.URL, System: name, User: "operator", Password: string(password), Fingerprint: s.Redfish.Fingerprint}
			machine, err := provider.New(config)
			if err != nil {
				t.Fatal(err)
			}
			config.Password = "wrong"
			denied, err := provider.New(config)
			if err != nil {
				t.Fatal(err)
			}
			providertest.Run(t, providertest.Subject{Machine: machine, Serial: "test-" + name, Secrets: []string{string(password)}, Medium: "file://" + image, Shutdown: true, Denied: denied})
		})
	}
}

// TestRedfishIdentity checks that a valid certificate is used again, and that an expired or damaged
// certificate is replaced.
func TestRedfishIdentity(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	first, err := redfishIdentity(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	same, err := redfishIdentity(dir, now.Add(redfishTTL-time.Hour))
	if err != nil || pki.Fingerprint(same.Cert) != pki.Fingerprint(first.Cert) {
		t.Errorf("a valid certificate was replaced: %v", err)
	}
	expired, err := redfishIdentity(dir, now.Add(redfishTTL+time.Hour))
	if err != nil || pki.Fingerprint(expired.Cert) == pki.Fingerprint(first.Cert) {
		t.Errorf("an expired certificate was not replaced: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, redfishKey), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := redfishIdentity(dir, now); err != nil {
		t.Errorf("a damaged key was not replaced: %v", err)
	}
}
