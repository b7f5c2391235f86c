// Command soak cuts the power of a machine at random instants, and checks that the machine
// recovers. docs/soak.md describes the method and the figures.
//
//	main.go      flags, and the order of the cuts
//	record.go    a machine that performs all operations once, while all its writes are recorded
//	plan.go      the class of each cut, and its instant
//	replay.go    a cut of the recorded machine: a disk as the cut could leave it, and a machine
//	             that boots from this disk
//	kill.go      a cut of a running machine
//	examine.go   reads what the boot loader would read, without a machine
//	judge.go     the guarantees for a machine at a cut
//	check.go     the state of the machine after the cut
//	machine.go   a machine, and calls of the operator
//	report.go    the format of the file
//
// The command does not build the image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/test/command"
)

type options struct {
	image, bin, operator, versions string
	out                            string
	cuts, whole, examine           int
	seed                           uint64
	classes                        []string // empty: all
	resume                         bool
}

// bundle returns the path of the bundle of another version.
func (o options) bundle(version string) string {
	return filepath.Join(o.versions, version, "orlop.bundle")
}

func main() { command.Main("soak", parse, run) }

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "`directory` of the image (disk.raw, manifest.json)")
	f.StringVar(&o.bin, "bin", filepath.Join("build", "bin"), "`directory` of orlopctl")
	f.StringVar(&o.operator, "operator", filepath.Join("build", "operator"), "`directory` of the operator that the image was built for")
	f.StringVar(&o.versions, "versions", "build", "`directory` with the subdirectories next (a version that works) and broken (a version that does not)")
	f.StringVar(&o.out, "out", filepath.Join("build", "soak.json"), "`file` to write; the recording and the failed machines go to a directory beside it")
	f.IntVar(&o.cuts, "n", 200, "number of cuts")
	f.IntVar(&o.whole, "whole", 20, "on average, one in this number of cuts is checked completely; 0: none")
	f.IntVar(&o.examine, "examine", 3, "number of disk contents to examine for each write to the ESP or the partition table: contents that a power cut after this write could leave; they are read without a machine; 0: none")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the random instants; 0: a random seed")
	f.BoolVar(&o.resume, "continue", false, "continue an interrupted run with its recording and its seed")
	classes := f.String("classes", "", "make only cuts of these classes, separated by commas; a cut of the class kill ends the emulator, all other cuts are replayed")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments: cannot use %q: expected flags only", f.Args())
	}
	if o.cuts < 1 || o.whole < 0 || o.examine < 0 {
		return o, fmt.Errorf("-n %d -whole %d -examine %d: cannot use: expected one cut or more, and 0 or more", o.cuts, o.whole, o.examine)
	}
	known := []string{classKill}
	for _, s := range new(recorder).steps() {
		known = append(known, s.class)
	}
	if *classes != "" {
		o.classes = strings.Split(*classes, ",")
	}
	for _, class := range o.classes {
		if !slices.Contains(known, class) {
			return o, fmt.Errorf("-classes: there is no class %q, but %q", class, known)
		}
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o, nil
}

// soak holds the state that all cuts share.
type soak struct {
	options
	dir                    string // for the recording, the replayed disk, and failed machines
	oldVersion, newVersion string
	documents              []byte
	replay                 *replayer
	living                 *victim // machine of class kill; nil: the machine is off
}

// run makes all cuts. It writes the report after each cut, so the report of an interrupted run has
// the results of all cuts that ended.
func run(ctx context.Context, o options) error {
	s := &soak{options: o, dir: strings.TrimSuffix(o.out, filepath.Ext(o.out))}
	report := report{Seed: o.seed, Wanted: o.cuts}
	if o.resume {
		if err := readJSON(o.out, &report); err != nil {
			return fmt.Errorf("cannot read the report to continue: %w", err)
		}
		report.Wanted = o.cuts
	} else if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	defer s.letGo()
	round := plan(s.replay.recording.classes(), o.classes)
	fmt.Printf("seed %d\n", report.Seed)
	if report.Examined == nil && o.examine > 0 {
		examined, err := s.examine(ctx, report.Seed, o.examine)
		if err != nil {
			return err
		}
		report.Examined = &examined
		fmt.Printf("examined %d disks as the boot loader reads them: %d faults\n", examined.Disks, len(examined.Wrong))
	}
	for len(report.Runs) < o.cuts {
		number := len(report.Runs)
		r, err := s.cut(ctx, report.Seed, number, round[number%len(round)])
		if err != nil {
			return fmt.Errorf("cut %d: %w; `-continue` goes on from here", number, err)
		}
		fmt.Printf("%s  cut %d, %s, %s: %s", time.Now().Format(time.TimeOnly), number, r.Class, r.Instant, r.Outcome)
		fmt.Printf(" (version %s, upgrade %q, answer after %.1f s, healthy after %.1f s)\n", r.Version, r.Phase, r.Answered, r.Healthy)
		report.Runs = append(report.Runs, r)
		report.summarise()
		if err := writeJSON(o.out, report); err != nil {
			return err
		}
	}
	report.print(os.Stdout)
	if report.Bricked+report.Faults > 0 || report.Examined != nil && len(report.Examined.Wrong) > 0 {
		return fmt.Errorf("of %d cuts, %d bricked the machine and %d left a fault, or the examination of disks found a fault; see %s",
			report.Cuts, report.Bricked, report.Faults, o.out)
	}
	return nil
}

// prepare reads the recording of an earlier run, or makes a new recording.
func (s *soak) prepare(ctx context.Context) error {
	var err error
	if s.oldVersion, err = versionOf(s.image); err != nil {
		return err
	}
	if s.newVersion, err = versionOf(filepath.Join(s.versions, "next")); err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "recording")
	if !s.resume {
		if err := record(ctx, s.options, dir); err != nil {
			return err
		}
	}
	var r recording
	if err = readJSON(filepath.Join(dir, recordingFile), &r); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	if s.documents, err = os.ReadFile(filepath.Join(dir, documentsFile)); err != nil {
		return err
	}
	s.replay, err = newReplayer(&r, filepath.Join(dir, diskName+".log"), filepath.Join(s.image, "disk.raw"), filepath.Join(s.dir, "replay"))
	return err
}

// versionOf returns the version of the image in a directory.
func versionOf(dir string) (string, error) {
	var manifest struct{ Release buildinfo.Release }
	if err := readJSON(filepath.Join(dir, "manifest.json"), &manifest); err != nil {
		return "", fmt.Errorf("image: %w; `make versions` builds it", err)
	}
	return manifest.Release.Version, nil
}

// tries is the largest number of attempts for a cut. A cut is repeated if the emulator ends early,
// which happens in about one boot of ten.
const tries = 3

func (s *soak) cut(ctx context.Context, seed uint64, number int, class string) (r result, err error) {
	for range tries {
		luck := draws(seed, number)
		r = result{Number: number, Class: class, Whole: s.options.whole > 0 && luck.IntN(s.options.whole) == 0}
		if class == classKill {
			err = s.kill(ctx, luck, &r)
		} else {
			s.letGo()
			err = s.replayed(ctx, luck, &r)
		}
		if !errors.Is(err, errEarly) {
			break
		}
	}
	return r, err
}
