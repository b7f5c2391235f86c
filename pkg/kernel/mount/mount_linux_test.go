package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFlags(t *testing.T) {
	for f, want := range map[Flags]string{0: "rw", ReadOnly | NoExec: "ro,noexec", ReadOnly | NoSuid | NoDev | NoExec | NoAtime: "ro,nosuid,nodev,noexec,noatime"} {
		if got := f.String(); got != want {
			t.Errorf("flags %d are printed %q, want %q", f, got, want)
		}
	}
	m := Mount{Source: "tmpfs", Target: "/run", Type: "tmpfs", Flags: NoSuid, Data: "mode=0755"}
	if got, want := m.String(), "mount tmpfs at /run (tmpfs, nosuid, mode=0755)"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// TestWhileBusy checks that WhileBusy calls a function again while the function returns EBUSY, and
// not after another error.
func TestWhileBusy(t *testing.T) {
	other := errors.New("other")
	for _, want := range []error{nil, other} {
		calls := 0
		err := WhileBusy(func() error {
			if calls++; calls < 3 {
				return fmt.Errorf("x: %w", unix.EBUSY)
			}
			return want
		})
		if err != want || calls != 3 {
			t.Errorf("%v after %d calls, want %v after 3", err, calls, want)
		}
	}
}

// TestTopmost checks that Topmost returns the last of several mounts at the same target, because it
// hides the earlier mounts.
func TestTopmost(t *testing.T) {
	mounts := []Mount{{Source: "a", Target: "/x"}, {Source: "b", Target: "/x"}, {Source: "c", Target: "/x/y"}}
	if m, mounted := Topmost(mounts, "/x"); !mounted || m.Source != "b" {
		t.Errorf("Topmost(/x) = %s, %t; want b", m, mounted)
	}
	if m, mounted := Topmost(mounts, "/y"); mounted {
		t.Errorf("Topmost(/y) = %s; want no mount", m)
	}
}

// TestMounts mounts, moves and unmounts real file systems.
func TestMounts(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("mounts: runs under the product kernel only (make kernel)")
	}
	dir := t.TempDir()
	outer := Mount{Source: "outer", Target: filepath.Join(dir, "a"), Type: "tmpfs", Flags: NoSuid | NoDev, Data: "mode=0700,size=64k"}
	inner := Mount{Source: "inner", Target: filepath.Join(dir, "a/b"), Type: "tmpfs", Flags: NoExec | NoAtime | ReadOnly}
	for _, m := range []Mount{outer, inner} {
		if err := m.Do(); err != nil {
			t.Fatal(err)
		}
		got, ok, err := At(m.Target)
		if err != nil || !ok || got.Source != m.Source || got.Type != m.Type || got.Flags != m.Flags {
			t.Errorf("At(%s) = %s, %t, %v", m.Target, got, ok, err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Move(outer.Target, filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := At(outer.Target); ok || err != nil {
		t.Errorf("the old target is still mounted after Move: %t, %v", ok, err)
	}
	for _, target := range []string{filepath.Join(dir, "c/b"), filepath.Join(dir, "c")} {
		if _, ok, err := At(target); !ok || err != nil {
			t.Errorf("%s is not mounted after Move: %v", target, err)
		}
		if err := Unmount(target); err != nil {
			t.Error(err)
		}
		if _, ok, err := At(target); ok || err != nil {
			t.Errorf("%s is still mounted after Unmount: %v", target, err)
		}
	}
	held := Mount{Source: "held", Target: filepath.Join(dir, "held"), Type: "tmpfs"}
	if err := held.Do(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(held.Target, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := UnmountOnce(held.Target); !errors.Is(err, unix.EBUSY) {
		t.Errorf("UnmountOnce while a file is open: %v, want EBUSY", err)
	}
	time.AfterFunc(200*time.Millisecond, func() { f.Close() })
	if err := Unmount(held.Target); err != nil {
		t.Errorf("Unmount while a file is open that is closed 200 ms later: %v", err)
	}
	for _, target := range []string{filepath.Join(dir, "none"), dir} {
		if err := Unmount(target); err != nil {
			t.Error(err)
		}
	}
}
