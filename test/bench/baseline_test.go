package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// script makes a directory with a run.sh that replaces the baseline's.
func script(t *testing.T, body string) (options, string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("BASELINE_BUILD", filepath.Join(dir, "build"))
	text := "#!/bin/bash\nset -eu\nmkdir -p $BASELINE_BUILD/kernel/boot\necho k >$BASELINE_BUILD/kernel/boot/vmlinuz-1\n" + body
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return options{baseline: dir, memoryMiB: 4096, look: func(string) (string, error) { return "/bin/true", nil }}, filepath.Join(dir, "logs", "baseline.log")
}

const built = "truncate -s 2M $BASELINE_BUILD/initramfs.zst\n"

func TestBootBaseline(t *testing.T) {
	o, log := script(t, built+"echo memory $1\ncat <<'E'\n"+saidByBaseline+"E\n")
	run, err := bootBaseline(t.Context(), o, log)
	if err != nil {
		t.Fatal(err)
	}
	if run.ToNodeReady == nil || *run.ToNodeReady != 23.75 || run.ArtifactMiB == nil || *run.ArtifactMiB <= 2 {
		t.Errorf("node %s, artifact %s", number(run.ToNodeReady), number(run.ArtifactMiB))
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "memory 4096\n") {
		t.Errorf("the log lacks the memory that was asked for: %q, %v", text, err)
	}
}

func TestBootBaselineThatFails(t *testing.T) {
	o, log := script(t, built+"echo BASELINE userspace 7.5\n")
	if _, err := bootBaseline(t.Context(), o, log); !errors.Is(err, errEarly) || !strings.Contains(err.Error(), "userspace") {
		t.Errorf("an emulator that ends early without a word: %v", err)
	}
	o, log = script(t, "echo no compiler >&2\nexit 1\n")
	if _, err := bootBaseline(t.Context(), o, log); err == nil || errors.Is(err, errEarly) || !strings.Contains(err.Error(), log) {
		t.Errorf("a build that fails: %v", err)
	}
	o, log = script(t, built+"exit 124\n")
	if _, err := bootBaseline(t.Context(), o, log); err == nil || errors.Is(err, errEarly) {
		t.Errorf("a time limit: %v", err)
	}
}

// A cancellation also ends the emulator, although timeout(1) puts it into a separate process group.
func TestBootBaselineBrokenOff(t *testing.T) {
	o, log := script(t, built+"timeout 600 bash -c 'echo $$ >$BASELINE_BUILD/pid.new; mv $BASELINE_BUILD/pid.new $BASELINE_BUILD/pid; exec sleep 500' | grep x\n")
	ctx, cancel := context.WithCancel(t.Context())
	pids := make(chan int, 1)
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			text, err := os.ReadFile(filepath.Join(o.baseline, "build", "pid"))
			if pid, notYet := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && notYet == nil {
				pids <- pid
				return
			}
			if backoff.Sleep(ctx, pause) != nil {
				return
			}
		}
	}()
	if _, err := bootBaseline(ctx, o, log); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
	deadline, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	var pid int
	select {
	case pid = <-pids:
	case <-deadline.Done():
		t.Fatal("the build was not begun")
	}
	for syscall.Kill(pid, 0) == nil {
		if text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil || strings.Contains(string(text), ") Z ") {
			return // dead; its new parent has not reaped it yet
		}
		if backoff.Sleep(deadline, pause) != nil {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

func TestLacking(t *testing.T) {
	if got := lacking(func(string) (string, error) { return "/bin/x", nil }); len(got) != 0 {
		t.Errorf("nothing is missing, but: %q", got)
	}
	got := lacking(func(program string) (string, error) {
		if program == "busybox" || program == "depmod" {
			return "", exec.ErrNotFound
		}
		return "/bin/x", nil
	})
	if want := []string{"busybox-static", "kmod"}; !slices.Equal(got, want) {
		t.Errorf("lacks %q, want %q", got, want)
	}
}
