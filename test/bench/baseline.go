package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/test/bench/bootfiles"
	"github.com/orlop-os/orlop/vm"
)

// baselineArguments is the kernel command line of the baseline's guest.
const baselineArguments = "console=ttyS0 panic=-1 quiet cgroup_no_v1=all"

// The guest of the baseline prints these two lines on its console. It is idle between them.
var (
	baselineIdle = regexp.MustCompile(`BASELINE idle ([0-9.]+)`)
	baselineEnd  = regexp.MustCompile(`BASELINE end ([0-9.]+)`)
)

// bootBaseline boots the baseline, waits for the last line of its output, powers it off and returns
// its figures. The console log is stored in dir.
func bootBaseline(ctx context.Context, o options, files bootfiles.Files, dir string) (run baselineRun, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return run, fmt.Errorf("baseline: cannot empty its directory: %w", err)
	}
	m, err := vm.Start(ctx, vm.MachineSpec{
		Name: "baseline", Dir: dir, MemoryMiB: o.memoryMiB, CPUs: processors,
		Kernel: vm.Kernel{Image: files.Kernel, Initrd: files.Initramfs, Append: baselineArguments},
		QEMU:   vm.QEMU{NoReboot: true, TranslationMiB: translationMiB},
	})
	if err != nil {
		return run, fmt.Errorf("baseline: %w; its console log is in %s", err, dir)
	}
	defer m.Close()
	idle, err := idleBetween(ctx, m)
	if err != nil {
		if ctx.Err() != nil {
			return run, fmt.Errorf("baseline: %w; its console log is in %s", err, dir)
		}
		return run, fmt.Errorf("%w: the baseline: %w", errEarly, err)
	}
	run, complete, err := parseBaseline(m.Console().String())
	if err == nil && !complete {
		err = errors.New("baseline: the last line is missing in the console log")
	}
	if err != nil {
		return run, err
	}
	run.IdleProcessor = &idle
	run.ArtifactMiB, err = sizeOf(files.Kernel, files.Initramfs)
	return run, err
}

// idleBetween returns the processor time of the emulator while the guest is idle, in seconds per
// minute.
func idleBetween(ctx context.Context, m *vm.Machine) (float64, error) {
	if _, err := m.WaitConsole(ctx, baselineIdle); err != nil {
		return 0, err
	}
	before, err := takeUse(m)
	if err != nil {
		return 0, err
	}
	if _, err := m.WaitConsole(ctx, baselineEnd); err != nil {
		return 0, err
	}
	// The guest powers off after its last line. If the process of the emulator has already ended,
	// takeUse fails, because the processor time of the process is lost.
	after, err := takeUse(m)
	if err != nil {
		return 0, err
	}
	return after.perMinute(before), nil
}

// sizeOf returns the size of all files in MiB.
func sizeOf(files ...string) (*float64, error) {
	total := 0.0
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot measure: %w", filepath.Base(file), err)
		}
		total += float64(info.Size()) / mib
	}
	return &total, nil
}

// parseBaseline reads the lines that the baseline's guest prints. Times are seconds of uptime. The
// result complete reports whether the guest has printed its last line.
//
//	BASELINE userspace|api|node-ready|pod-running|idle|end SECONDS
//	BASELINE process NAME anon_kB N …
//	BASELINE memory used_kB N of which tmpfs_kB N
func parseBaseline(text string) (run baselineRun, complete bool, err error) {
	var userspace float64
	stages := map[string]**float64{"api": &run.ToKubeAPI, "node-ready": &run.ToNodeReady, "pod-running": &run.ToPodRunning}
	number := func(word string) float64 {
		v, failed := strconv.ParseFloat(word, 64)
		if failed != nil && err == nil {
			err = fmt.Errorf("baseline: cannot parse the output: %w", failed)
		}
		return v
	}
	total := 0.0
	for line := range strings.Lines(text) {
		_, line, found := strings.Cut(line, "BASELINE ")
		words := strings.Fields(line)
		if !found || len(words) < 2 {
			continue
		}
		switch {
		case words[0] == "userspace":
			userspace = number(words[1])
		case words[0] == "end":
			complete = true
		case words[0] == "process" && len(words) > 3 && words[2] == "anon_kB":
			if run.AnonMiB == nil {
				run.AnonMiB = map[string]float64{}
			}
			size := number(words[3]) / 1024
			run.AnonMiB[words[1]] = size
			total += size
		case words[0] == "memory" && len(words) == 7 && words[1] == "used_kB" && words[5] == "tmpfs_kB":
			used := (number(words[2]) - number(words[6])) / 1024
			run.MachineUsedMiB = &used
		case stages[words[0]] != nil:
			seconds := number(words[1]) - userspace
			*stages[words[0]] = &seconds
		}
	}
	if err == nil && complete && (run.ToKubeAPI == nil || run.ToNodeReady == nil || run.ToPodRunning == nil || run.MachineUsedMiB == nil || total == 0) {
		err = fmt.Errorf("baseline: the output lacks a stage or the memory: %q", text)
	}
	run.AnonTotalMiB = &total
	return run, complete, err
}

// use is the processor time that the emulator's process of a machine has used up to an instant.
type use struct {
	at   time.Time
	time time.Duration
}

func takeUse(m *vm.Machine) (use, error) {
	t, err := m.ProcessorTime()
	return use{time.Now(), t}, err
}

// perMinute returns the processor time between the instants of before and u, in seconds per minute.
func (u use) perMinute(before use) float64 {
	return (u.time - before.time).Seconds() / u.at.Sub(before.at).Minutes()
}
