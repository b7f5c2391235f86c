package vm

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// launchFake starts a cluster of fake machines in a directory whose path is too long for a Unix
// socket. It returns a client, the directory, and the command of the runner.
func launchFake(t *testing.T) (*Client, string, []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("deck-", 22))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	one, two := fakeSpec(t, "serve"), fakeSpec(t, "serve")
	two.Name, two.NIC.Omit = "w1", true
	command := []string{self, "run-cluster"}
	c, err := Launch(within(t, 30*time.Second), dir, ClusterSpec{Name: "test", Network: NetworkSpec{Capture: filepath.Join(t.TempDir(), "packets.pcap")}, Machines: []MachineSpec{one, two},
		Forwards: []ForwardSpec{{Machine: "cp1", Port: 50000}}}, command...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil {
			if err := Destroy(within(t, 30*time.Second), dir); err != nil {
				t.Error(err)
			}
		}
	})
	return c, dir, command
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// gone waits until a process has ended, and returns false after 10 s. The process may be a child of
// another process.
func gone(t *testing.T, pid int) bool {
	t.Helper()
	deadline, tick := time.After(10*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for alive(pid) {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

func TestCluster(t *testing.T) {
	c, dir, command := launchFake(t)
	ctx := within(t, 30*time.Second)
	s, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "test" || len(s.Machines) != 2 || !s.Machines[0].Running || s.Machines[0].Addr.String() != "10.77.0.11" ||
		s.Machines[1].Addr.IsValid() || !strings.HasPrefix(s.Forward("cp1", 50000), "127.0.0.1:") || s.Forward("cp1", 1) != "" {
		t.Errorf("status: %+v", s)
	}
	if _, err := os.Stat(s.Capture); err != nil {
		t.Error(err)
	}
	if _, err := Launch(ctx, dir, ClusterSpec{Name: "test", Machines: []MachineSpec{fakeSpec(t, "serve")}}, command...); !errors.Is(err, ErrExists) {
		t.Errorf("a second cluster in the directory: %v", err)
	}
	if _, err := Resume(ctx, dir, command...); err == nil || !strings.Contains(err.Error(), "another process runs it") {
		t.Errorf("resuming a running cluster: %v", err)
	}
	if err := c.Act(ctx, "cp1", ActionPowerCut); err != nil {
		t.Error(err)
	}
	if s, err = c.Status(ctx); err != nil || s.Machines[0].Running || s.Machines[0].Exit.Request != "power cut" || !s.Machines[1].Running {
		t.Errorf("after a power cut: %+v, %v", s, err)
	}
	if err := c.Act(ctx, "cp1", ActionPowerOn); err != nil {
		t.Error(err)
	}
	if err := c.Act(ctx, "cp1", "kick"); err == nil {
		t.Error("an unknown action was done")
	}
	if err := c.Act(ctx, "cp9", ActionReset); err == nil {
		t.Error("an unknown machine was reset")
	}
	if f, err := c.Forward(ctx, ForwardSpec{Machine: "cp1", Port: 6443}); err != nil || f.Addr == "" {
		t.Errorf("one more forward: %+v, %v", f, err)
	}
	if _, err := c.Forward(ctx, ForwardSpec{Machine: "w1", Port: 6443}); err == nil {
		t.Error("a forward to a machine without a NIC was made")
	}
	if f, err := c.Forward(ctx, ForwardSpec{Addr: netip.MustParseAddr("10.77.0.9"), Port: 6443}); err != nil || f.Machine != "" {
		t.Errorf("a forward to an address: %+v, %v", f, err)
	}
	more := fakeSpec(t, "serve")
	if _, err := c.Add(ctx, more); err == nil || !strings.Contains(err.Error(), "two machines are called cp1") {
		t.Errorf("a machine whose name is taken: %v", err)
	}
	more.Name = "w2"
	if m, err := c.Add(ctx, more); err != nil || !m.Running || m.Addr.String() != "10.77.0.12" || m.PoweredOn.IsZero() {
		t.Errorf("one more machine: %+v, %v", m, err)
	}
	if spec, err := ReadSpec(dir); err != nil || len(spec.Machines) != 3 {
		t.Errorf("the machine is not there when the cluster is resumed: %+v, %v", spec.Machines, err)
	}
	if err := c.SetFaults(ctx, "cp1", Faults{Down: true}); err != nil {
		t.Error(err)
	}
	if s, err = c.Status(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{s.PID, s.Machines[0].PID, s.Machines[1].PID, s.Machines[2].PID} {
		if !gone(t, pid) {
			t.Errorf("process %d outlived its cluster", pid)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// TestRunnerIsKilled kills a runner. It checks that the machines end with the runner, that the
// directory shows a stopped cluster, and that the cluster can be started again and destroyed.
func TestRunnerIsKilled(t *testing.T) {
	c, dir, command := launchFake(t)
	ctx := within(t, 30*time.Second)
	s, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{s.PID, s.Machines[0].PID, s.Machines[1].PID} {
		if !gone(t, pid) {
			t.Errorf("process %d outlived the runner", pid)
		}
	}
	if _, err := Connect(dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("connecting to a dead cluster: %v", err)
	}
	if c, err = Resume(ctx, dir, command...); err != nil {
		t.Fatal(err)
	}
	if s, err = c.Status(ctx); err != nil || !s.Machines[0].Running {
		t.Errorf("after resuming: %+v, %v", s, err)
	}
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if !gone(t, s.PID) {
		t.Error("the runner outlived Stop")
	}
	if err := Destroy(ctx, dir); err != nil {
		t.Error(err)
	}
}

func TestLaunchSaysWhy(t *testing.T) {
	ctx := within(t, 30*time.Second)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	good := fakeSpec(t, "serve")
	for what, c := range map[string]struct {
		spec ClusterSpec
		want string
	}{
		"no machine":  {ClusterSpec{Name: "x"}, "at least one machine"},
		"two of one":  {ClusterSpec{Name: "x", Machines: []MachineSpec{good, good}}, "two machines"},
		"no image":    {ClusterSpec{Name: "x", Machines: []MachineSpec{{Name: "a", Disks: BootDisk("/nonexistent/disk.raw", 0), Kernel: good.Kernel}}}, "is it built?"},
		"two ways":    {ClusterSpec{Name: "x", Machines: []MachineSpec{good}, Forwards: []ForwardSpec{{Machine: "cp1", Addr: netip.MustParseAddr("10.77.0.9"), Port: 1}}}, "both a machine and an address"},
		"bad forward": {ClusterSpec{Name: "x", Machines: []MachineSpec{good}, Forwards: []ForwardSpec{{Machine: "y", Port: 1}}}, "no such machine"},
		"runner fails": {ClusterSpec{Name: "x", Machines: []MachineSpec{{Name: "a", Kernel: good.Kernel, QEMU: QEMU{Command: "/nonexistent/qemu"}}}},
			"/nonexistent/qemu"},
	} {
		_, err := Launch(ctx, filepath.Join(t.TempDir(), "c"), c.spec, self, "run-cluster")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, expected something with %q", what, err, c.want)
		}
	}
	if _, err := Connect(t.TempDir()); err == nil {
		t.Error("connected to an empty directory")
	}
	if err := Destroy(ctx, t.TempDir()); err == nil {
		t.Error("a directory without a cluster was removed")
	}
}
