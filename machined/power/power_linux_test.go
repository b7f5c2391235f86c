package power

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"golang.org/x/sys/unix"
)

func TestPlan(t *testing.T) {
	var text strings.Builder
	for _, total := range []time.Duration{0, 20 * time.Second, time.Minute} {
		steps := Plan(total)
		if !slices.IsSortedFunc(steps, func(a, b Step) int { return int(a.By - b.By) }) {
			t.Errorf("%v: the steps are not in order of time", total)
		}
		fmt.Fprintf(&text, "%v:\n", total)
		for _, s := range steps {
			fmt.Fprintf(&text, "  %s\n", s)
		}
	}
	golden.Assert(t, text.String(), "plan.golden")
}

func TestPlanUnmount(t *testing.T) {
	var mounts []mount.Mount
	for _, target := range []string{"/", "/dev", "/proc", "/sys", "/run", "/dev/pts", "/sys/fs/cgroup", "/tmp", "/state", "/var",
		"/var/lib/kubelet/pods/1/volumes/x", "/run/containerd/1/rootfs", "/device"} {
		mounts = append(mounts, mount.Mount{Target: target})
	}
	got := PlanUnmount(mounts)
	want := []string{"/device", "/run/containerd/1/rootfs", "/var/lib/kubelet/pods/1/volumes/x", "/var", "/state", "/tmp"}
	if !slices.Equal(got, want) {
		t.Errorf("PlanUnmount returns %q; want %q", got, want)
	}
}

// fake is a machine with processes. SIGKILL ends the processes; SIGTERM ends them only if polite is
// true.
type fake struct {
	*Machine
	mu     sync.Mutex
	lines  []string
	left   int
	polite bool
	down   chan int
}

func newFake(c Config) *fake {
	f := &fake{down: make(chan int, 8)}
	c.Report = func(message string, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err != nil {
			message += ": " + err.Error()
		}
		f.lines = append(f.lines, message)
	}
	f.Machine = New(c)
	f.kill = func(s unix.Signal) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s == unix.SIGKILL || f.polite {
			f.left = 0
		}
		return nil
	}
	f.running = func() (int, error) { f.mu.Lock(); defer f.mu.Unlock(); return f.left, nil }
	f.unmount = func(context.Context) error { return nil }
	f.sync = func() {}
	f.reboot = func(cmd int) error { f.down <- cmd; return nil }
	return f
}

func (f *fake) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.lines, "|")
}

func TestDown(t *testing.T) {
	fed := true
	f := newFake(Config{Services: func(context.Context) error { return errors.New("b was killed") }, Last: func() { fed = false }})
	f.left, f.polite = 3, true
	reboot := f.reboot
	f.reboot = func(cmd int) error {
		if fed {
			t.Error("the watchdog is still fed during the reboot call, so it would not reset a kernel that hangs")
		}
		return reboot(cmd)
	}
	if err := f.Shutdown(PowerOff, time.Minute); err != nil {
		t.Fatal(err)
	}
	want := "stop services|stop services: b was killed|terminate the remaining processes|kill the remaining processes|unmount|write caches to disk|power off"
	if got := f.text(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if cmd := <-f.down; cmd != unix.LINUX_REBOOT_CMD_POWER_OFF {
		t.Errorf("command %#x", cmd)
	}
}

// TestShutdownWhenEverythingHangs checks that the machine shuts down in time although pods do not
// stop, processes end only by SIGKILL, and the disk does not respond.
func TestShutdownWhenEverythingHangs(t *testing.T) {
	f := newFake(Config{Pods: func(ctx context.Context) error { <-ctx.Done(); return errors.New("2 pods are left") }})
	f.left = 3
	f.sync = func() { select {} }
	start := time.Now()
	if err := f.Shutdown(Reboot, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 30*time.Second { // about 5 s are expected
		t.Errorf("took %v", took)
	}
	for _, want := range []string{"end pods: 2 pods are left", "terminate the remaining processes: 3 processes are left", "write caches to disk: not finished in time", "|reboot"} {
		if !strings.Contains(f.text(), want) {
			t.Errorf("no %q in %s", want, f.text())
		}
	}
	if cmd := <-f.down; cmd != unix.LINUX_REBOOT_CMD_RESTART {
		t.Errorf("command %#x", cmd)
	}
}

func TestSignals(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	wishes := make(chan string, 8)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Signals(ctx, func(mode Mode, why string) { wishes <- string(mode) + " " + why })
	}()
	// A second receiver catches the signals until Signals has registered; otherwise they would end
	// the test.
	hold := make(chan os.Signal, 8)
	signal.Notify(hold, unix.SIGPWR, unix.SIGHUP)
	defer signal.Stop(hold)
	heard := func(s unix.Signal, want string) {
		for {
			if err := unix.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-wishes:
				if got != want {
					t.Errorf("after %v, Signals reports %q; want %q", s, got, want)
				}
				return
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("Signals has not reported %v", s)
			}
		}
	}
	heard(unix.SIGPWR, "power off signal power failure")
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil { // ends most Go programs
		t.Fatal(err)
	}
	cancel()
	<-ended
	for s, want := range map[os.Signal]Mode{unix.SIGINT: Reboot, unix.SIGTERM: Reboot, unix.SIGPWR: PowerOff, unix.SIGHUP: "", unix.SIGQUIT: ""} {
		if got := modeOf(s); got != want {
			t.Errorf("%v means %q; want %q", s, got, want)
		}
	}
}

func TestReadButton(t *testing.T) {
	var stream bytes.Buffer
	for _, e := range []struct {
		kind, code uint16
		value      uint32
	}{{evKey, keyPower, 1}, {0, 0, 0}, {evKey, keyPower, 2}, {evKey, keyPower, 0}, {evKey, 30, 1}, {evKey, keyPower, 1}} {
		stream.Write(make([]byte, 16))
		for _, v := range []any{e.kind, e.code, e.value} {
			if err := binary.Write(&stream, binary.NativeEndian, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(stream.Bytes()); err != nil {
		t.Fatal(err)
	}
	w.Close()
	count := 0
	readButton(r, func() { count++ })
	if count != 2 {
		t.Errorf("%d presses; want 2", count)
	}
}

func TestFeeder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pets atomic.Int64
		var sick atomic.Bool
		reports := make(chan error, 8)
		hang := make(chan struct{})
		f := WatchdogFeeder{Every: 5 * time.Millisecond, Pet: func() error { pets.Add(1); return nil },
			Alive: func(context.Context) error {
				if sick.Load() {
					<-hang
				}
				return nil
			},
			Report: func(err error) { reports <- err }}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); f.Run(ctx) }()
		for pets.Load() < 3 {
			if ctx.Err() != nil {
				t.Fatal("the watchdog is not fed")
			}
			time.Sleep(f.Every)
		}
		sick.Store(true)
		if err := <-reports; err == nil || !strings.Contains(err.Error(), "machined does not answer") {
			t.Errorf("report %v", err)
		}
		fed := pets.Load()
		time.Sleep(10 * f.Every)
		if pets.Load() != fed {
			t.Error("the watchdog is fed although machined hangs")
		}
		sick.Store(false)
		close(hang)
		if err := <-reports; err != nil {
			t.Errorf("machined answers again, but the report is %v; want nil", err)
		}
		cancel()
		<-ended
	})
}
