package level

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestFile checks that Await waits for the file of the level, that Apply uses the level, and that
// Watch returns an error after a change of the file.
func TestFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dirs := dirs.In(t.TempDir())
	if err := os.MkdirAll(dirs.Level, 0o755); err != nil {
		t.Fatal(err)
	}
	old := emulation.Minor{Major: Own().Major, Minor: Own().Minor - 1}
	written := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() { written <- Write(dirs, old) })
	got, err := Await(ctx, dirs)
	if err != nil || got != old {
		t.Fatalf("%v, %v", got, err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	var spec nodespec.Spec
	if err := Apply(&spec, got); err != nil || spec.Emulated != old || spec.Level != old {
		t.Errorf("%v, %v, %v", spec.Level, spec.Emulated, err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, component.Env{Spec: spec, Dirs: dirs, Announce: func(string, bool, string) {}})
	}()
	if err := Write(dirs, Own()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the level of the cluster is "+Own().String()+" instead of "+old.String()) {
		t.Error(err)
	}
	if err := Apply(&spec, Own()); err != nil || spec.Emulated.Known() {
		t.Errorf("%v, %v", spec.Emulated, err)
	}
	if err := Apply(&spec, emulation.Minor{Major: 1, Minor: Own().Minor + 1}); err == nil {
		t.Error("Apply accepts a level above that of this version")
	}
}

// TestOtherUsers checks that other users can read the file of the level, although the umask of the
// process is 077.
func TestOtherUsers(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dirs := dirs.In(t.TempDir())
	if err := os.MkdirAll(dirs.Level, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(dirs, Own()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file(dirs)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestDamaged checks that Await fails with the path of the file if the file is empty.
func TestDamaged(t *testing.T) {
	dirs := dirs.In(t.TempDir())
	if err := os.MkdirAll(dirs.Level, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file(dirs), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Await(t.Context(), dirs); err == nil || !strings.Contains(err.Error(), file(dirs)) {
		t.Error(err)
	}
}
