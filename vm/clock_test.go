package vm

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestClock checks the conversion of times by a clock that is slower by the factor 4, and by clocks
// without a dilation.
func TestClock(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	slow := Clock{Began: began, Dilation: 4}
	outside := began.Add(6 * time.Second)
	if got, want := slow.At(outside), began.Add(1500*time.Millisecond); !got.Equal(want) {
		t.Errorf("after 6 s, the slow clock shows %s, want %s", got, want)
	}
	if got := slow.Outside(time.Second); got != 4*time.Second {
		t.Errorf("a second of the slow clock takes %s, want 4 s", got)
	}
	if got := slow.At(time.Time{}); !got.IsZero() {
		t.Errorf("the zero time is converted to %s, want the zero time", got)
	}
	for _, same := range []Clock{{}, {Began: began, Dilation: 1}} {
		if got := same.At(outside); !got.Equal(outside) || same.Outside(time.Second) != time.Second || same.environment(outside) != nil {
			t.Errorf("the clock %+v differs from the clock of this computer", same)
		}
	}
	want := []string{"LD_PRELOAD=" + dilator, "FAKETIME_FMT=%s", "FAKETIME=@1767323046.500000000 x0.25", "NO_FAKE_STAT=1"}
	if got := slow.environment(outside); !slices.Equal(got, want) {
		t.Errorf("environment:\n%q, want\n%q", got, want)
	}
	for _, d := range []int{-1, MaxDilation + 1} {
		if err := (ClusterSpec{Name: "x", Network: NetworkSpec{Dilation: d}, Machines: []MachineSpec{{Name: "m"}}}).check(); err == nil || !strings.Contains(err.Error(), "expected 1 to 8") {
			t.Errorf("check of the dilation %d returns %v", d, err)
		}
	}
}

// TestStackClock checks that a host waits for a missing neighbor in the time of the network's
// clock, about 3 s.
func TestStackClock(t *testing.T) {
	t.Parallel()
	n := newTestNetwork(t, NetworkSpec{Dilation: 2})
	began := time.Now()
	_, err := n.DialContext(t.Context(), "tcp", "10.77.0.99:1")
	if took := n.Clock().Since(began); err == nil || took < 2500*time.Millisecond || took > 10*time.Second {
		t.Errorf("the connection ended after %s with %v, want an error after about 3 s", took, err)
	}
}

// TestDilated runs perl with a dilated clock, in the same way as QEMU. perl is installed, because
// git depends on it.
func TestDilated(t *testing.T) {
	slow := Clock{Began: time.Now().Add(-time.Hour), Dilation: 4}
	if err := slow.check(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("perl", "-MTime::HiRes=time,sleep", "-e", `printf "%.6f\n", time; sleep 0.2; printf "%.6f\n", time`)
	began := time.Now()
	cmd.Env = append(os.Environ(), slow.environment(began)...)
	out, err := cmd.Output()
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	slow.sweep(cmd.Process.Pid)
	var shown []time.Time
	for line := range strings.Lines(string(out)) {
		seconds, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			t.Fatalf("perl printed %q, want two times", out)
		}
		shown = append(shown, time.UnixMicro(int64(seconds*1e6)))
	}
	if len(shown) != 2 {
		t.Fatalf("perl printed %q, want two times", out)
	}
	// perl starts at the time of the dilated clock, which is 45 minutes behind. Its sleep of 0.2 s
	// takes 0.8 s outside.
	if off := shown[0].Sub(slow.At(began)); off < -time.Millisecond || off > took {
		t.Errorf("the first time of perl is %s after the dilated clock", off)
	}
	if slept := shown[1].Sub(shown[0]); slept < 200*time.Millisecond || slept > took/3 || took < 800*time.Millisecond {
		t.Errorf("the sleep of 0.2 s took %s by the dilated clock, and the program took %s outside", slept, took)
	}
	left, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		if strings.Contains(entry.Name(), "faketime") && strings.HasSuffix(entry.Name(), "_"+strconv.Itoa(cmd.Process.Pid)) {
			t.Errorf("/dev/shm/%s was not removed", entry.Name())
		}
	}
}
