// Command bench measures a machine with our image. It compares the machine with the baseline (the
// same version of Kubernetes as separate upstream processes) and with a former release. All
// machines run one after the other on an otherwise idle computer. The command prints tables and the
// timeline of our machine with the waits of each component. It writes all figures to a file.
// docs/bench.md describes the comparison.
//
//	main.go       flags and the order of the runs
//	machine.go    one boot of our machine: its times from power-on, and its memory when it is idle
//	idle.go       the use of processors of the idle machine
//	upgrade.go    one upgrade of our machine, with a client of the Kubernetes API
//	flood.go      the latency of the management API in a flood of handshakes
//	kube.go       the node and the pod, as a client of the Kubernetes API sees them
//	record.go     the machine's reports about its boot, and the difference of the clocks
//	baseline.go   one boot of the baseline (bootfiles makes its files)
//	figures.go    medians, ratios, and the format of the file
//	targets.go    the targets: the values that the figures have to reach
//	print.go      the tables
//
// The command does not build the image. A figure that misses its target is not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/test/bench/bootfiles"
	"github.com/orlop-os/orlop/test/benchfile"
	"github.com/orlop-os/orlop/test/command"
	"github.com/orlop-os/orlop/test/targets"
	"github.com/orlop-os/orlop/test/testimage"
)

const (
	// machineLimit is the deadline of one boot of our machine. It is about four times the usual
	// duration, which includes the idle time.
	machineLimit = 10 * time.Minute
	// baselineLimit is the deadline of one boot of the baseline.
	baselineLimit = 10 * time.Minute
)

// tries is the largest number of attempts for one boot. A boot is repeated if the emulator ends
// early (docs/bench.md).
const tries = 3

type options struct {
	ours     system
	former   *targets.Former // nil: no comparison with a former release
	operator string
	// bootFiles is the directory of the baseline's programs; empty: no baseline
	bootFiles        string
	out              string
	pairs, memoryMiB int
	idle             time.Duration
	command          string // the command line, which the report contains
}

func main() { command.Main("bench", parse, run) }

// parse reads the flags. It opens the former release, so an error in its files is reported before
// any boot.
func parse(args []string) (options, error) {
	o := options{ours: system{label: "our machine"}, command: command.Line("go run ./test/bench", args)}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.ours.image, "image", filepath.Join("build", "qemu"), "`directory` of the image (disk.raw, disk.raw.zst, manifest.json)")
	f.StringVar(&o.ours.bin, "bin", filepath.Join("build", "bin"), "`directory` of orlopctl")
	f.StringVar(&o.operator, "operator", filepath.Join("build", "operator"), "`directory` of the operator that the image was built for")
	f.StringVar(&o.ours.bundle, "bundle", filepath.Join("build", "next", "orlop.bundle"), "newer version of the image, to upgrade to; empty: no upgrade is measured")
	f.StringVar(&o.bootFiles, "baseline", filepath.Join("build", "baseline"), "`directory` for the programs of the baseline; empty: no baseline, and no ratio with it in the file")
	against := f.String("against", "", "`directory` or bundle of a former release to compare with, such as build/previous; empty: none")
	f.StringVar(&o.out, "out", filepath.Join("build", "bench.json"), "`file` to write; logs of each boot go to a directory beside it")
	f.IntVar(&o.pairs, "pairs", 3, "how many times each side is booted; the order changes each time")
	f.IntVar(&o.memoryMiB, "memory", 6144, "memory of each machine in MiB; each has two processors")
	f.DurationVar(&o.idle, "idle", time.Minute, "how long our machine idles before its memory is read, and then its use of processors")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments: cannot use %q: expected flags only", f.Args())
	}
	if o.pairs < 1 {
		return o, fmt.Errorf("-pairs %d: cannot use: expected 1 or more", o.pairs)
	}
	if o.idle < time.Second {
		return o, fmt.Errorf("-idle %s: cannot use: expected a second or more", o.idle)
	}
	if *against != "" {
		former, err := targets.OpenFormer(*against)
		if err != nil {
			return o, err
		}
		o.former = &former
	}
	return o, nil
}

// releaseOf returns the former release as a system. If there is no bundle for the upgrade of our
// version, the upgrade of the former release is not measured either.
func (o options) releaseOf() system {
	s := system{label: "release " + o.former.Version, image: o.former.Image, bin: o.former.Bin, bundle: o.former.Bundle}
	if o.ours.bundle == "" {
		s.bundle = ""
	}
	return s
}

// subject is a side of the comparison (our machine, the former release, the baseline), with the
// function that measures its machine once.
type subject struct {
	dir     string // name of the directory for its logs, below the directory of the pair
	measure func(ctx context.Context, pair, dir string) error
}

// run measures all sides for each pair, and prints the report. It writes the file of figures after
// each pair, so the file of an interrupted run has the complete pairs.
func run(ctx context.Context, o options) error {
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
	result := report{Command: o.command, MemoryMiB: o.memoryMiB, Processors: processors, IdleSeconds: o.idle.Seconds()}
	subjects, err := o.subjects(ctx, podImage, &result)
	if err != nil {
		return err
	}
	for pair := 1; pair <= o.pairs; pair++ {
		for _, s := range targets.InTurn(subjects, pair) {
			dir := filepath.Join(logs, fmt.Sprintf("pair-%d", pair), s.dir)
			if err := s.measure(ctx, fmt.Sprintf("pair %d of %d", pair, o.pairs), dir); err != nil {
				return err
			}
		}
		result.summarize()
		if err := benchfile.WriteOthers(o.out, result); err != nil {
			return err
		}
	}
	printReport(os.Stdout, result)
	printTimeline(os.Stdout, result.typical())
	fmt.Println()
	if err := targets.Store(os.Stdout, filepath.Join(logs, "targets.md"), o.command, result.Targets); err != nil {
		return err
	}
	fmt.Printf("\nEvery figure is in %s; the table above, consoles and events are in %s.\n", o.out, logs)
	return nil
}

// subjects returns the sides of the comparison. Their functions add the figures to result.
func (o options) subjects(ctx context.Context, podImage string, result *report) ([]subject, error) {
	image, err := readImage(o.ours.image)
	if err != nil {
		return nil, err
	}
	result.Version, result.Executables = image.Version, image.Executables
	list := []subject{{"machine", func(ctx context.Context, pair, dir string) error {
		run, early, err := measureSystem(ctx, o, o.ours, podImage, pair, dir)
		run.ArtifactMiB = &image.ArtifactMiB
		result.addOurs(run, early, err)
		return err
	}}}
	if o.former != nil {
		release := o.releaseOf()
		former, err := readImage(release.image)
		if err != nil {
			return nil, err
		}
		result.Against = &formerReport{Version: former.Version}
		list = append(list, subject{"release", func(ctx context.Context, pair, dir string) error {
			run, early, err := measureSystem(ctx, o, release, podImage, pair, dir)
			run.ArtifactMiB = &former.ArtifactMiB
			result.addFormer(run, early, err)
			return err
		}})
	}
	if o.bootFiles == "" {
		return list, nil
	}
	fmt.Fprintf(os.Stderr, "%s  programs of the baseline\n", time.Now().Format(time.TimeOnly))
	files, err := bootfiles.Build(ctx, bootfiles.Default(o.bootFiles))
	if err != nil {
		return nil, err
	}
	return append(list, subject{"baseline", func(ctx context.Context, pair, dir string) error {
		run, early, err := again(pair+", baseline", func() (baselineRun, error) {
			bounded, cancel := context.WithTimeout(ctx, baselineLimit)
			defer cancel()
			return bootBaseline(bounded, o, files, dir)
		})
		result.addBaseline(run, early, err)
		return err
	}}), nil
}

// measureSystem measures one boot, one upgrade and one flood of a version of our system. Each of
// them has its own machine. The second result is the number of boots that ended early.
func measureSystem(ctx context.Context, o options, s system, podImage, pair, dir string) (machineRun, int, error) {
	bounded := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, machineLimit) }
	run, early, err := again(pair+", "+s.label, func() (machineRun, error) {
		ctx, cancel := bounded()
		defer cancel()
		return bootMachine(ctx, o, s, podImage, dir)
	})
	if err != nil {
		return run, early, err
	}
	var more int
	if s.bundle != "" {
		run.upgradeFigures, more, err = again(pair+", upgrade of "+s.label, func() (upgradeFigures, error) {
			ctx, cancel := bounded()
			defer cancel()
			return upgradeMachine(ctx, o, s, dir+"-upgrade")
		})
		if early += more; err != nil {
			return run, early, err
		}
	}
	run.floodFigures, more, err = again(pair+", flood of "+s.label, func() (floodFigures, error) {
		ctx, cancel := bounded()
		defer cancel()
		return floodMachine(ctx, o, s, dir+"-flood")
	})
	return run, early + more, err
}

// errEarly is the error of a boot with an emulator that ended before the end of the measurement,
// without a request. The boot is then repeated.
var errEarly = errors.New("the machine ended early")

// The function again runs a boot, and repeats it after errEarly, up to the number of tries. It also
// returns the number of attempts that ended early. label names the boot in messages.
func again[T any](label string, boot func() (T, error)) (T, int, error) {
	for early := 0; ; {
		fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), label)
		got, err := boot()
		if err == nil {
			return got, early, nil
		}
		if !errors.Is(err, errEarly) || early+1 == tries {
			return got, early, fmt.Errorf("%s: %w", label, err)
		}
		early++
		fmt.Fprintf(os.Stderr, "%s: %v; once more\n", label, err)
	}
}
