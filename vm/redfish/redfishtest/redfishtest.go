// Package redfishtest runs package redfish with systems in memory, for tests of Redfish clients.
package redfishtest

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/orlop-os/orlop/vm/redfish"
)

// The credentials of the service.
const (
	User     = "admin"
	Password = "correct-horse"
)

// System is a simulated machine. It is off at first, and shuts down when its power button is
// pressed.
type System struct {
	name     string
	hardware redfish.Hardware

	mu       sync.Mutex
	on       bool
	override redfish.Override
	medium   string
	broken   bool
	booted   []redfish.Target
}

// NewSystem returns a machine with all kinds of devices.
func NewSystem(name string) *System {
	return &System{name: name, hardware: redfish.Hardware{Serial: "SN-" + name, UUID: "6f1f6c2e-0000-4000-8000-000000000001", MemoryMiB: 2048, CPUs: 2,
		Targets: []redfish.Target{redfish.Pxe, redfish.UefiHTTP, redfish.Cd, redfish.Hdd}, Drive: true}}
}

// NewBareSystem returns a machine that has a disk, but no NIC and no CD drive.
func NewBareSystem(name string) *System {
	return &System{name: name, hardware: redfish.Hardware{Serial: "SN-" + name, MemoryMiB: 512, CPUs: 1, Targets: []redfish.Target{redfish.Hdd}}}
}

func (s *System) Name() string               { return s.name }
func (s *System) Hardware() redfish.Hardware { return s.hardware }

// Break makes each operation of the power switch fail from now on.
func (s *System) Break() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
}

// Booted returns the device from which each boot started, in order. None means the usual boot
// order.
func (s *System) Booted() []redfish.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]redfish.Target{}, s.booted...)
}

func (s *System) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

func (s *System) PowerOn(context.Context) error { return s.set(true) }

func (s *System) PowerCut() { s.set(false) }

func (s *System) PowerButton(context.Context) error { return s.set(false) }

func (s *System) Restart(context.Context) error { return s.set(true) }

func (s *System) set(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return errors.New("machine " + s.name + ": the power supply is broken")
	}
	s.on = on
	if !on {
		return nil
	}
	target := redfish.None
	if s.override.Enabled() {
		target = s.override.Target
		if s.override.Once {
			s.override = redfish.Override{}
		}
	}
	s.booted = append(s.booted, target)
	return nil
}

func (s *System) Override() redfish.Override {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.override
}

func (s *System) SetOverride(o redfish.Override) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.override = o
}

func (s *System) Medium() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.medium
}

func (s *System) InsertMedium(_ context.Context, file string) error { return s.change(file) }

func (s *System) EjectMedium(context.Context) error { return s.change("") }

func (s *System) change(file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.medium = file
	return nil
}

// Service is a running Redfish service.
type Service struct {
	URL         string // https://127.0.0.1:port
	Certificate *x509.Certificate
	// Image is the URI of a file that can be inserted.
	Image string
}

// Serve runs a service with these systems until the end of the test.
func Serve(t testing.TB, systems ...*System) Service {
	t.Helper()
	all := func() (out []redfish.System) {
		for _, s := range systems {
			out = append(out, s)
		}
		return out
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config = redfish.New("6f1f6c2e-0000-4000-8000-00000000000f", User, Password, all).HTTP()
	server.StartTLS()
	t.Cleanup(server.Close)
	image := filepath.Join(t.TempDir(), "orlop.iso")
	if err := os.WriteFile(image, []byte("a medium"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Service{URL: server.URL, Certificate: server.Certificate(), Image: "file://" + image}
}
