package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// bootBaseline runs the baseline's run.sh, which builds missing files, boots the baseline and ends
// with it. log gets all its output.
func bootBaseline(ctx context.Context, o options, log string) (baselineRun, error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return baselineRun{}, fmt.Errorf("baseline: cannot create the directory of its log: %w", err)
	}
	file, err := os.Create(log)
	if err != nil {
		return baselineRun{}, fmt.Errorf("baseline: cannot write its log: %w", err)
	}
	defer file.Close()
	build, err := baselineBuild()
	if err != nil {
		return baselineRun{}, err
	}
	script, err := filepath.Abs(filepath.Join(o.baseline, "run.sh"))
	if err != nil {
		return baselineRun{}, fmt.Errorf("baseline: cannot find run.sh: %w", err)
	}
	began := time.Now()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, script, strconv.Itoa(o.memoryMiB))
	// Our own flags for go build would change the baseline's build.
	cmd.Env = slices.DeleteFunc(append(os.Environ(), "BASELINE_BUILD="+build), func(s string) bool { return strings.HasPrefix(s, "GOFLAGS=") })
	cmd.Stdout, cmd.Stderr = io.MultiWriter(file, &said), file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return killSession(cmd.Process.Pid) }
	cmd.WaitDelay = 10 * time.Second
	ended := cmd.Run()
	if ctx.Err() != nil {
		return baselineRun{}, fmt.Errorf("baseline: broken off: %w", context.Cause(ctx))
	}
	run, complete, err := parseBaseline(said.String())
	if err != nil {
		return run, err
	}
	if complete {
		run.ArtifactMiB, err = baselineArtifact(build)
		return run, err
	}
	var exit *exec.ExitError
	if errors.As(ended, &exit) && exit.ExitCode() == timeoutStatus {
		return run, fmt.Errorf("baseline: it did not finish in its own time limit; its output is in %s", log)
	}
	if lacks := lacking(o.look); len(lacks) > 0 {
		return run, fmt.Errorf("baseline: cannot build it: this computer lacks programs that it uses; apt-get install %s", strings.Join(lacks, " "))
	}
	// run.sh writes the initramfs last before it starts the emulator, so a new initramfs
	// distinguishes an early end from a failed build.
	if info, err := os.Stat(filepath.Join(build, "initramfs.zst")); err == nil && !info.ModTime().Before(began) {
		return run, fmt.Errorf("%w: the baseline's output ends after %q; it is in %s", errEarly, lastLine(said.String()), log)
	}
	return run, fmt.Errorf("baseline: cannot build it: %w; its output is in %s", ended, log)
}

// lacking lists the Debian packages of run.sh's programs that this computer lacks; run.sh itself
// does not check all of them.
func lacking(look func(program string) (string, error)) []string {
	var packages []string
	for _, p := range []struct{ program, pkg string }{
		{"busybox", "busybox-static"}, {"cpio", "cpio"}, {"depmod", "kmod"}, {"gcc", "gcc"}, {"openssl", "openssl"}, {"python3", "python3"}, {"zstd", "zstd"},
	} {
		if _, err := look(p.program); err != nil {
			packages = append(packages, p.pkg)
		}
	}
	return packages
}

// timeoutStatus is the exit status of timeout(1), in which run.sh runs the emulator, after it ended
// the emulator.
const timeoutStatus = 124

// baselineBuild returns the directory in which run.sh builds, by the rule of run.sh.
func baselineBuild() (string, error) {
	if dir := os.Getenv("BASELINE_BUILD"); dir != "" {
		return dir, nil
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("baseline: cannot find a directory to build in: %w; name one with BASELINE_BUILD", err)
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "orlop-baseline"), nil
}

// baselineArtifact returns the size of the baseline's boot files: kernel and compressed initramfs.
func baselineArtifact(build string) (*float64, error) {
	files, err := filepath.Glob(filepath.Join(build, "kernel", "boot", "vmlinuz-*"))
	if err != nil {
		return nil, fmt.Errorf("baseline: cannot find its kernel: %w", err)
	}
	total := 0.0
	for _, file := range append(files, filepath.Join(build, "initramfs.zst")) {
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("baseline: cannot measure: %w", err)
		}
		total += float64(info.Size()) / mib
	}
	return &total, nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// killSession ends every process of a session that this program started. The emulator is in a
// separate process group (timeout(1) makes it), so a signal to the group of run.sh would leave it
// running.
func killSession(leader int) error {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return fmt.Errorf("baseline: cannot find its processes: %w", err)
	}
	var failed error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		if session(string(text)) != leader {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue // not possible: the pattern matches only numbers
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			failed = errors.Join(failed, fmt.Errorf("process %d: cannot end: %w", pid, err))
		}
	}
	return failed
}

// session returns the sixth field of /proc/PID/stat (proc_pid_stat(5)). The second field, the name,
// may contain any character.
func session(stat string) int {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 4 {
		return 0
	}
	id, err := strconv.Atoi(fields[3])
	if err != nil {
		return 0
	}
	return id
}
