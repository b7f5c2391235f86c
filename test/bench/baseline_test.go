package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/test/bench/bootfiles"
)

// fakeQEMU is the first part of a script that replaces the emulator. It accepts the first command
// of the QEMU monitor. The function say prints lines on the console. Each test appends the rest of
// the script.
const fakeQEMU = `#!/bin/bash
for a; do
	case $a in
	socket,id=console,fd=*) console=${a##*=} ;;
	socket,id=qmp,fd=*) monitor=${a##*=} ;;
	esac
done
echo '{"QMP": {"version": {}, "capabilities": []}}' >&$monitor
read -r _ <&$monitor
echo '{"id": 1, "return": {}}' >&$monitor
say() { printf '%s\r\n' "$@" >&$console; }
`

// fakeBaseline returns the arguments for bootBaseline. It puts an emulator into the PATH: the
// script fakeQEMU, followed by body.
func fakeBaseline(t *testing.T, body string) (options, bootfiles.Files, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(fakeQEMU+body), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	f := bootfiles.Files{Kernel: filepath.Join(dir, "vmlinuz"), Initramfs: filepath.Join(dir, "initramfs.zst")}
	for _, name := range []string{f.Kernel, f.Initramfs} {
		if err := os.WriteFile(name, make([]byte, mib), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return options{memoryMiB: 4096}, f, filepath.Join(dir, "baseline")
}

func TestBootBaseline(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(saidByBaseline), "\r\n")
	quote := func(lines []string) string { return "'" + strings.Join(lines, "' '") + "'" }
	// The busy loop uses processor time between the idle line and the last line.
	body := "say \"$*\" " + quote(lines[:len(lines)-1]) + "\nfor ((i = 0; i < 100000; i++)); do :; done\nsay " + quote(lines[len(lines)-1:]) + "\nexec sleep 1000\n"
	o, files, dir := fakeBaseline(t, body)
	run, err := bootBaseline(t.Context(), o, files, dir)
	if err != nil {
		t.Fatal(err)
	}
	if run.ToNodeReady == nil || *run.ToNodeReady != 23.75 || run.ArtifactMiB == nil || *run.ArtifactMiB != 2 || run.IdleProcessor == nil || *run.IdleProcessor <= 0 {
		t.Errorf("node %s, boot files %s, idle %s", number(run.ToNodeReady), number(run.ArtifactMiB), number(run.IdleProcessor))
	}
	console, err := os.ReadFile(filepath.Join(dir, "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, argument := range []string{"-m 4096", "-smp 2", "tb-size=1024", "-no-reboot", "-kernel " + files.Kernel, "-initrd " + files.Initramfs, "-append " + baselineArguments} {
		if !strings.Contains(string(console), argument) {
			t.Errorf("the emulator gets no %q: %s", argument, console)
		}
	}
}

func TestBootBaselineThatFails(t *testing.T) {
	o, files, dir := fakeBaseline(t, "say 'BASELINE userspace 7.5'\n")
	if _, err := bootBaseline(t.Context(), o, files, dir); !errors.Is(err, errEarly) || !strings.Contains(err.Error(), "userspace") {
		t.Errorf("an emulator that ends early: %v", err)
	}
	o, files, dir = fakeBaseline(t, "say 'BASELINE idle 7.5' 'BASELINE end 67.5'\nexec sleep 1000\n")
	if _, err := bootBaseline(t.Context(), o, files, dir); err == nil || errors.Is(err, errEarly) || !strings.Contains(err.Error(), "lacks a stage") {
		t.Errorf("a guest that omits stages: %v", err)
	}
	files.Initramfs += ".missing"
	if _, err := bootBaseline(t.Context(), o, files, dir); err == nil || errors.Is(err, errEarly) || !strings.Contains(err.Error(), "initramfs.zst.missing") {
		t.Errorf("without boot files: %v", err)
	}
}

// TestBootBaselineBrokenOff checks that bootBaseline does not return errEarly if its context ends,
// because the caller would repeat the boot. The context ends before or after the emulator accepts
// the first command.
func TestBootBaselineBrokenOff(t *testing.T) {
	o, files, dir := fakeBaseline(t, "say 'BASELINE userspace 7.5'\nexec sleep 1000\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		defer cancel(enough)
		for {
			text, err := os.ReadFile(filepath.Join(dir, "console.log"))
			if err == nil && strings.Contains(string(text), "userspace") || backoff.Sleep(ctx, pause) != nil {
				return
			}
		}
	}()
	if _, err := bootBaseline(ctx, o, files, dir); !errors.Is(err, enough) || errors.Is(err, errEarly) || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
}

func TestUse(t *testing.T) {
	now := time.Now()
	before, after := use{now, 10 * time.Second}, use{now.Add(30 * time.Second), 14 * time.Second}
	if got := after.perMinute(before); got != 8 {
		t.Errorf("perMinute for 4 s in half a minute = %v, want 8", got)
	}
}
