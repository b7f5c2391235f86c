// Command bench measures a machine made from our image, and the same Kubernetes as separate
// processes (the baseline), one after the other on an otherwise idle computer. It prints a table
// and the machine's timeline with the waits of each component, and writes every figure to a file.
// docs/bench.md describes the comparison.
//
//	main.go       flags and the order of the runs
//	machine.go    one boot of our machine, from power-on to its idle memory
//	upgrade.go    one upgrade of our machine, with a client of the Kubernetes API
//	kube.go       the node and the pod, watched like any client of the Kubernetes API
//	record.go     the machine's own reports during its boot, and the relation of the clocks
//	baseline_linux.go  one boot of the baseline
//	figures.go    medians, ratios, the format of the file
//	print.go      the tables
//
// It does not build the image, and does not fail if a figure misses its target.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/test/benchfile"
	"github.com/orlop-os/orlop/test/command"
	"github.com/orlop-os/orlop/test/testimage"
)

const (
	// machineLimit bounds one boot of our machine: about four times the usual duration, including
	// idling.
	machineLimit = 8 * time.Minute
	// baselineLimit bounds one boot of the baseline, which may have to build itself first.
	baselineLimit = time.Hour
)

// tries is the number of attempts for one boot if the emulator ends without a message; see
// docs/bench.md.
const tries = 3

// baselineEnv names the environment variable for the baseline's directory, used without the flag.
const baselineEnv = "ORLOP_BASELINE"

type options struct {
	image, bin, operator string
	baseline             string
	noBaseline           bool
	bundle               string
	out                  string
	pairs, memoryMiB     int
	idle                 time.Duration
	look                 func(program string) (string, error) // exec.LookPath
}

func main() {
	command.Main("bench", func(args []string) (options, error) { return parse(args, os.Getenv) }, run)
}

// parse reads the flags and reports missing inputs before any boot.
func parse(args []string, getenv func(string) string) (options, error) {
	o := options{look: exec.LookPath}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "directory of the image (disk.raw, disk.raw.zst, manifest.json)")
	f.StringVar(&o.bin, "bin", filepath.Join("build", "bin"), "directory of orlopctl")
	f.StringVar(&o.operator, "operator", filepath.Join("build", "operator"), "directory of the operator that the image was built for")
	f.StringVar(&o.baseline, "baseline", getenv(baselineEnv), "directory of the baseline, with run.sh (default: $"+baselineEnv+")")
	f.BoolVar(&o.noBaseline, "no-baseline", false, "measure our machine only; baseline and ratio are left out of the file")
	f.StringVar(&o.bundle, "bundle", filepath.Join("build", "next", "orlop.bundle"), "newer version of the image, to upgrade to; empty: no upgrade is measured")
	f.StringVar(&o.out, "out", filepath.Join("build", "bench.json"), "file to write; logs of each boot go to a directory beside it")
	f.IntVar(&o.pairs, "pairs", 3, "how many times both are booted, alternating")
	f.IntVar(&o.memoryMiB, "memory", 6144, "memory of either machine in MiB; both have two processors")
	f.DurationVar(&o.idle, "idle", time.Minute, "how long our machine idles before its memory is read")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments: cannot use %q: expected flags only", f.Args())
	}
	if o.pairs < 1 {
		return o, fmt.Errorf("-pairs %d: cannot use: expected 1 or more", o.pairs)
	}
	if o.noBaseline {
		o.baseline = ""
		return o, nil
	}
	if o.baseline == "" {
		return o, fmt.Errorf("baseline: cannot compare: its directory is not named; give -baseline DIR or set %s, or measure our machine alone with -no-baseline", baselineEnv)
	}
	if _, err := os.Stat(filepath.Join(o.baseline, "run.sh")); err != nil {
		return o, fmt.Errorf("baseline: cannot use the directory: %w; give the one that holds run.sh with -baseline or %s, or measure our machine alone with -no-baseline", err, baselineEnv)
	}
	return o, nil
}

// run boots both in turn, and writes the file after each pair, so an interrupted run leaves its
// results.
func run(ctx context.Context, o options) error {
	image, err := readImage(o.image)
	if err != nil {
		return err
	}
	logs := filepath.Join(filepath.Dir(o.out), "bench")
	if err := os.RemoveAll(logs); err != nil {
		return fmt.Errorf("logs: cannot empty the directory: %w", err)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return fmt.Errorf("logs: cannot create the directory: %w", err)
	}
	podImage := filepath.Join(logs, "pod-image.tar")
	if err := testimage.Write(ctx, podImage, imageName); err != nil {
		return err
	}
	result := report{Image: image, MemoryMiB: o.memoryMiB, Processors: processors, IdleSeconds: o.idle.Seconds()}
	for pair := 1; pair <= o.pairs; pair++ {
		name := fmt.Sprintf("pair %d of %d", pair, o.pairs)
		dir := filepath.Join(logs, fmt.Sprintf("pair-%d", pair))
		ours, early, err := again(name+", our machine", func() (machineRun, error) {
			bounded, cancel := context.WithTimeout(ctx, machineLimit)
			defer cancel()
			return bootMachine(bounded, o, podImage, filepath.Join(dir, "machine"))
		})
		result.EarlyEnds += early
		if err != nil {
			return err
		}
		if o.bundle != "" {
			upgraded, early, err := again(name+", upgrade", func() (upgradeFigures, error) {
				bounded, cancel := context.WithTimeout(ctx, machineLimit)
				defer cancel()
				return upgradeMachine(bounded, o, filepath.Join(dir, "upgrade"))
			})
			result.EarlyEnds += early
			if err != nil {
				return err
			}
			ours.upgradeFigures = upgraded
		}
		result.Runs = append(result.Runs, ours)
		if !o.noBaseline {
			theirs, early, err := again(name+", baseline", func() (baselineRun, error) {
				bounded, cancel := context.WithTimeout(ctx, baselineLimit)
				defer cancel()
				return bootBaseline(bounded, o, filepath.Join(dir, "baseline.log"))
			})
			result.addBaseline(theirs, early, err)
			if err != nil {
				return err
			}
		}
		result.summarise()
		if err := benchfile.WriteOthers(o.out, result); err != nil {
			return err
		}
	}
	printReport(os.Stdout, result)
	printTimeline(os.Stdout, result.typical())
	fmt.Printf("\nEvery figure is in %s; consoles, events and the baseline's output are in %s.\n", o.out, logs)
	return nil
}

// errEarly is the reason to repeat a boot: the emulator ended before the run did, without a
// request.
var errEarly = errors.New("the machine ended early")

// again runs one boot, repeats it if it ended early, and counts the early ends.
func again[T any](what string, boot func() (T, error)) (T, int, error) {
	for early := 0; ; {
		fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), what)
		got, err := boot()
		if err == nil {
			return got, early, nil
		}
		if !errors.Is(err, errEarly) || early+1 == tries {
			return got, early, fmt.Errorf("%s: %w", what, err)
		}
		early++
		fmt.Fprintf(os.Stderr, "%s: %v; once more\n", what, err)
	}
}
