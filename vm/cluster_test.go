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

// TestCluster performs each operation of a client on a running cluster, and destroys the cluster.
func TestCluster(t *testing.T) {
	c, dir, command := launchFake(t)
	ctx := within(t, 30*time.Second)
	s, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "test" || len(s.Machines) != 2 || !s.Machines[0].Running || s.Machines[0].Addr.String() != "10.77.0.11" ||
		s.Machines[1].Addr.IsValid() || !strings.HasPrefix(s.Forward("cp1", 50000), "127.0.0.1:") || s.Forward("cp1", 1) != "" {
		t.Errorf("the status of the new cluster is %+v", s)
	}
	if _, err := os.Stat(s.Capture); err != nil {
		t.Error(err)
	}
	if _, err := Launch(ctx, dir, ClusterSpec{Name: "test", Machines: []MachineSpec{fakeSpec(t, "serve")}}, command...); !errors.Is(err, ErrExists) {
		t.Errorf("Launch of a second cluster in the directory returns %v", err)
	}
	if _, err := Resume(ctx, dir, command...); err == nil || !strings.Contains(err.Error(), "another process runs it") {
		t.Errorf("Resume of a running cluster returns %v", err)
	}
	if err := c.Act(ctx, "cp1", ActionPowerCut); err != nil {
		t.Error(err)
	}
	if s, err = c.Status(ctx); err != nil || s.Machines[0].Running || s.Machines[0].Exit.Request != "power cut" || !s.Machines[1].Running {
		t.Errorf("the status after a power cut is %+v, %v", s, err)
	}
	if err := c.Act(ctx, "cp1", ActionPowerOn); err != nil {
		t.Error(err)
	}
	if err := c.Act(ctx, "cp1", "kick"); err == nil {
		t.Error("Act accepts an unknown action")
	}
	if err := c.Act(ctx, "cp9", ActionReset); err == nil {
		t.Error("Act accepts an unknown machine")
	}
	if f, err := c.Forward(ctx, ForwardSpec{Machine: "cp1", Port: 6443}); err != nil || f.Addr == "" {
		t.Errorf("Forward to a port of a machine returns %+v, %v", f, err)
	}
	if _, err := c.Forward(ctx, ForwardSpec{Machine: "w1", Port: 6443}); err == nil {
		t.Error("Forward accepts a machine without a NIC")
	}
	if f, err := c.Forward(ctx, ForwardSpec{Addr: netip.MustParseAddr("10.77.0.9"), Port: 6443}); err != nil || f.Machine != "" {
		t.Errorf("Forward to an address returns %+v, %v", f, err)
	}
	more := fakeSpec(t, "serve")
	if _, err := c.Add(ctx, more); err == nil || !strings.Contains(err.Error(), "two machines are called cp1") {
		t.Errorf("Add of a machine with the name of another machine returns %v", err)
	}
	more.Name = "w2"
	if m, err := c.Add(ctx, more); err != nil || !m.Running || m.Addr.String() != "10.77.0.12" || m.PoweredOn.IsZero() {
		t.Errorf("Add of a machine returns %+v, %v", m, err)
	}
	if spec, err := ReadSpec(dir); err != nil || len(spec.Machines) != 3 {
		t.Errorf("the stored specification lacks the added machine: %+v, %v", spec.Machines, err)
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
		t.Errorf("Destroy did not remove the directory: %v", err)
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
		t.Errorf("Connect to a cluster without a runner returns %v", err)
	}
	if c, err = Resume(ctx, dir, command...); err != nil {
		t.Fatal(err)
	}
	if s, err = c.Status(ctx); err != nil || !s.Machines[0].Running {
		t.Errorf("the status after Resume is %+v, %v", s, err)
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

// TestLaunchSaysWhy checks the error of Launch for each invalid specification, and for a runner
// that fails.
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
		"no machine":                             {ClusterSpec{Name: "x"}, "at least one machine"},
		"two machines of one name":               {ClusterSpec{Name: "x", Machines: []MachineSpec{good, good}}, "two machines"},
		"missing image":                          {ClusterSpec{Name: "x", Machines: []MachineSpec{{Name: "a", Disks: BootDisk("/nonexistent/disk.raw", 0), Kernel: good.Kernel}}}, "is it built?"},
		"forward to a machine and to an address": {ClusterSpec{Name: "x", Machines: []MachineSpec{good}, Forwards: []ForwardSpec{{Machine: "cp1", Addr: netip.MustParseAddr("10.77.0.9"), Port: 1}}}, "both a machine and an address"},
		"forward to an unknown machine":          {ClusterSpec{Name: "x", Machines: []MachineSpec{good}, Forwards: []ForwardSpec{{Machine: "y", Port: 1}}}, "no such machine"},
		"runner fails": {ClusterSpec{Name: "x", Machines: []MachineSpec{{Name: "a", Kernel: good.Kernel, QEMU: QEMU{Command: "/nonexistent/qemu"}}}},
			"/nonexistent/qemu"},
	} {
		_, err := Launch(ctx, filepath.Join(t.TempDir(), "c"), c.spec, self, "run-cluster")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Launch returns %v, want an error with %q", what, err, c.want)
		}
	}
	if _, err := Connect(t.TempDir()); err == nil {
		t.Error("Connect accepts an empty directory")
	}
	if err := Destroy(ctx, t.TempDir()); err == nil {
		t.Error("Destroy accepts a directory without a cluster")
	}
}
