package providertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/machineprovider"
)

// memory is an implementation in memory. Its defect names a violation of the interface; "" means
// none.
type memory struct {
	defect string

	mu sync.Mutex
	d  machineprovider.Description
}

const secret = "correct-horse"

func newMemory(defect string) *memory {
	return &memory{defect: defect, d: machineprovider.Description{Serial: "SN-1", Power: machineprovider.StateOff, Drive: defect != "no drive",
		BootDevices: []machineprovider.Device{machineprovider.Disk, machineprovider.PXE}}}
}

func (m *memory) fail(kind machineprovider.Kind, err error) error {
	reason := "reason"
	if m.defect == "password in errors" {
		reason = "user admin, password " + secret
	}
	if m.defect == "errors without a remedy" {
		return &machineprovider.Error{Kind: kind, Machine: "m", Operation: "do", Reason: reason, Err: err}
	}
	return &machineprovider.Error{Kind: kind, Machine: "m", Operation: "do", Reason: reason, Remedy: "remedy", Err: err}
}

func (m *memory) Describe(ctx context.Context) (machineprovider.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return machineprovider.Description{}, m.fail(machineprovider.Unreachable, ctx.Err())
	}
	d := m.d
	if m.defect == "upper case" {
		d.UUID = "AB"
	}
	if m.defect == "repeated device" {
		d.BootDevices = append(slices.Clone(d.BootDevices), machineprovider.Disk)
	}
	return d, nil
}

func (m *memory) SetPower(ctx context.Context, p machineprovider.Power) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil && m.defect != "ignores the context" {
		return m.fail(machineprovider.Unreachable, ctx.Err())
	}
	state := map[machineprovider.Power]machineprovider.State{machineprovider.On: machineprovider.StateOn, machineprovider.Off: machineprovider.StateOff,
		machineprovider.Shutdown: machineprovider.StateOff, machineprovider.Restart: machineprovider.StateOn}[p]
	switch {
	case state == "" && m.defect != "any operation":
		return m.fail(machineprovider.Invalid, nil)
	case p == machineprovider.Restart && m.d.Power == machineprovider.StateOff && m.defect != "restart switches on":
		return m.fail(machineprovider.Conflict, nil)
	case p == machineprovider.Off && m.d.Power == machineprovider.StateOff && m.defect == "off twice":
		return m.fail(machineprovider.Conflict, nil)
	case p == machineprovider.On && m.defect == "never on":
		return nil
	}
	m.d.Power = state
	if state == machineprovider.StateOn && m.d.Boot.Once && m.defect != "once is for ever" {
		m.d.Boot = machineprovider.Boot{}
	}
	return nil
}

func (m *memory) SetBoot(_ context.Context, b machineprovider.Boot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case b.Device != "" && !slices.Contains(m.d.BootDevices, b.Device) && m.defect != "any device":
		return m.fail(machineprovider.Unsupported, nil)
	case m.defect == "ignores the device":
		return nil
	}
	m.d.Boot = b
	return nil
}

func (m *memory) InsertMedium(_ context.Context, url string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.d.Drive {
		return m.fail(machineprovider.Unsupported, nil)
	}
	if m.defect != "ignores the medium" {
		m.d.Medium = url
	}
	return nil
}

// subject returns a Subject with an implementation in memory that has the defect.
func subject(defect string) Subject {
	return Subject{Machine: newMemory(defect), Serial: "SN-1", Secrets: []string{secret}, Medium: "https://example.com/a.iso", Shutdown: true, Settle: 200 * time.Millisecond}
}

func TestConforming(t *testing.T) {
	Run(t, subject(""))
	Run(t, subject("no drive"))
}

// TestDefects checks, for each defect, which check is the first that fails.
func TestDefects(t *testing.T) {
	for defect, want := range map[string]string{
		"upper case":              "describe",
		"repeated device":         "describe",
		"never on":                "power",
		"off twice":               "power",
		"restart switches on":     "restart",
		"password in errors":      "restart",
		"errors without a remedy": "restart",
		"ignores the device":      "boot",
		"once is for ever":        "boot-once",
		"any device":              "boot-unsupported",
		"ignores the medium":      "medium",
		"any operation":           "invalid",
		"ignores the context":     "canceled",
	} {
		s := subject(defect)
		first := ""
		for _, c := range Checks() {
			if err := c.Run(t.Context(), s); err != nil {
				first = c.Name
				break
			}
		}
		if first != want {
			t.Errorf("%s: the first check that fails is %q, want %q", defect, first, want)
		}
	}
}

// TestKinds checks that the checks denied, foreign and dead fail if the client succeeds.
func TestKinds(t *testing.T) {
	for _, c := range Checks() {
		if !slices.Contains([]string{"denied", "foreign", "dead"}, c.Name) {
			continue
		}
		s := subject("")
		s.Denied, s.Foreign, s.Dead = newMemory(""), newMemory(""), newMemory("")
		if err := c.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "want an error") {
			t.Errorf("%s: the result of the check for a client without a fault is %v", c.Name, err)
		}
	}
	if err := (Subject{}).checkError("x", errors.New("plain"), machineprovider.Invalid); err == nil {
		t.Error("checkError accepts an error that is no *machineprovider.Error")
	}
}
