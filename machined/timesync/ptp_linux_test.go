package timesync

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const testClock = "KVM virtual PTP"

// ptp returns the PTP clocks of a machine on KVM. The clock of KVM exists only after the module
// ptp_kvm was loaded.
func (b *bench) ptp(t *testing.T) PTPClocks {
	sys := t.TempDir()
	add := func(device, name string) error {
		if err := os.MkdirAll(filepath.Join(sys, device), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(sys, device, "clock_name"), []byte(name+"\n"), 0o600)
	}
	if err := add("ptp0", "igb"); err != nil {
		t.Fatal(err)
	}
	return PTPClocks{
		Sys: sys,
		LoadModules: func(names ...string) error {
			if !slices.Equal(names, []string{"ptp_kvm"}) {
				return errors.New("no such module")
			}
			return add("ptp1", testClock)
		},
		Read: func(device string, use func(func() (time.Time, error)) error) error {
			if device != "ptp1" {
				return errors.New(device + " is another clock")
			}
			return use(func() (time.Time, error) { return time.Now().Add(time.Duration(b.shown.Load())).Round(0), nil })
		},
	}
}

// TestPTPClock checks that the clock of the hypervisor sets the machine's clock, and steps it again
// after a pause of hours. A single time server may not do that.
func TestPTPClock(t *testing.T) {
	b := newBench(t, ClockPrefix+testClock)
	st := b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	if st.Server != ClockPrefix+testClock || st.Stratum != 1 || st.Quorum {
		t.Errorf("status %+v", st)
	}
	b.shown.Store(int64(5 * time.Hour))
	silent := newResponder(t, 0)
	silent.silent.Store(true)
	b.use(ClockPrefix+testClock, silent.address)
	b.wait(t, "stepped", func(s Status) bool { return s.Synced && s.Offset > time.Hour })
	if moves := b.done(); !slices.Equal(moves, []string{"slew 0s", "step 5h0m0s"}) {
		t.Errorf("moves %q", moves)
	}
}

// TestPTPOutvoted checks that two time servers that agree outvote the clock of the hypervisor.
func TestPTPOutvoted(t *testing.T) {
	b := newBench(t)
	b.shown.Store(int64(5 * time.Hour))
	one, other := newResponder(t, 0), newResponder(t, 0)
	b.use(ClockPrefix+testClock, one.address, other.address)
	st := b.wait(t, "synchronised", func(s Status) bool { return s.Synced })
	if !st.Quorum || st.Server == ClockPrefix+testClock {
		t.Errorf("status %+v", st)
	}
}

// TestPTPProblems checks that the error names the clocks that the machine has, or the module that
// does not load.
func TestPTPProblems(t *testing.T) {
	p := (&bench{}).ptp(t)
	if _, err := p.sample("hyperv", time.Now); err == nil || !strings.Contains(err.Error(), `clocks of this machine: ["igb"]`) {
		t.Errorf("an absent clock: %v", err)
	}
	p.LoadModules = func(...string) error { return errors.New("no such device") }
	if _, err := p.sample(testClock, time.Now); err == nil || !strings.Contains(err.Error(), "module ptp_kvm does not load") {
		t.Errorf("without KVM: %v", err)
	}
	if err := readDevice("null", func(read func() (time.Time, error)) error { _, err := read(); return err }); err == nil {
		t.Error("readDevice reads a device that is no clock")
	}
}

// TestMeasure checks that measure uses the shortest reading, and that the resulting sample may step
// a synchronized clock.
func TestMeasure(t *testing.T) {
	start := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	at, took := start, []time.Duration{40 * time.Millisecond, 2 * time.Millisecond, time.Second, 9 * time.Millisecond, time.Minute}
	s, err := measure(func() time.Time { return at }, func() (time.Time, error) {
		half := took[0] / 2
		shown := at.Add(half + time.Hour)
		at, took = at.Add(2*half), took[1:]
		return shown, nil
	})
	if want := (Sample{Offset: time.Hour, Distance: time.Millisecond, Stratum: 1, Local: true}); err != nil || s != want {
		t.Errorf("measured %+v, %v, want %+v", s, err, want)
	}
	if d, err := Decide([]Sample{s}, View{Now: start, Floor: start.Add(-horizon / 2), Synced: true, Since: time.Minute}); err != nil || d.Move != Step || d.Limited() {
		t.Errorf("decided %+v, %v", d, err)
	}
	if _, err := Decide([]Sample{s}, View{Now: start, Floor: start.Add(2 * time.Hour), Synced: true}); !errors.Is(err, ErrBeforeBuild) {
		t.Errorf("before the floor: %v", err)
	}
}
