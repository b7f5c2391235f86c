package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/vm"
	"github.com/orlop-os/orlop/vm/writelog"
)

// recordLimit is the deadline of each step of a recording. It is about eight times the duration of
// the longest step on an idle computer.
const recordLimit = 10 * time.Minute

// recording describes the writes of a machine since its first power-on. The guarantees at each
// length of the log follow from its data.
type recording struct {
	Identity      string `json:"identity"`
	Configuration string `json:"configuration"`
	Old           string `json:"old"` // the version of the image
	New           string `json:"new"` // the version of the working bundle
	ESP           place  `json:"esp"`
	Data          place  `json:"data"`
	// The fields below are lengths of the log in bytes. At a cut before the length at which an
	// operation began, the disk cannot have its result. At a cut after the length at which the
	// operation ended, the disk must have its result.
	Answered     int64    `json:"answered"`
	ApplyBegan   int64    `json:"apply_began"`
	Applied      int64    `json:"applied"`
	UpgradeBegan int64    `json:"upgrade_began"` // the first upgrade
	Writes       []object `json:"writes"`
	Spans        []span   `json:"spans"`
}

// place is the position and the size of a partition, in sectors.
type place struct {
	Sector  int64 `json:"sector"`
	Sectors int64 `json:"sectors"`
}

// object is an object of the cluster. The cluster had acknowledged the object when the log had the
// length At.
type object struct {
	Name string `json:"name"`
	At   int64  `json:"at"`
}

// span is a part of the log in which the machine performed the operation of a class.
type span struct {
	Class string `json:"class"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
}

// recorder runs a machine and makes its recording.
type recorder struct {
	recording
	*machine
	options
	documents []byte
	end       int64 // length of the log at the end of the span; 0: the length after the step
}

// step is an operation of the recorded machine, with its class.
type step struct {
	class string
	do    func(context.Context) error
}

// steps returns the operations of the recorded machine, in order. Several steps can have the same
// class.
func (r *recorder) steps() []step {
	return []step{
		{"first-boot", r.firstBoot},
		{"apply", r.configure},
		{"run", func(ctx context.Context) error { return r.writeObjects(ctx, 60) }},
		{"upgrade", func(ctx context.Context) (err error) { _, err = r.send(ctx, "broken"); return err }},
		// The version "broken" fails, so the machine rolls back automatically.
		{"rollback", func(ctx context.Context) error { return r.ends(ctx, "rolled back", r.Old) }},
		{"upgrade", func(ctx context.Context) (err error) { r.New, err = r.send(ctx, "next"); return err }},
		{"trial", r.trial},
		{"commit", r.commit},
		{"rollback", r.back}, // requested by the operator
	}
}

// classes returns the classes of the recording, in the order of their first spans.
func (r *recording) classes() (all []string) {
	for _, s := range r.Spans {
		if !slices.Contains(all, s.Class) {
			all = append(all, s.Class)
		}
	}
	return all
}

// record records a machine, and stores the recording in dir. It performs all steps up to the last
// requested class. An empty list of classes requests all classes.
func record(ctx context.Context, o options, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	r := &recorder{options: o}
	var err error
	if r.documents, err = documents(ctx, o, dir); err != nil {
		return err
	}
	if r.machine, err = powerOn(ctx, o, dir, vm.Disk{Record: true}); err != nil {
		return err
	}
	err = r.run(ctx)
	if end := r.off(); err == nil {
		err = end
	}
	if err != nil {
		return fmt.Errorf("recording: %w; end of the console:\n%s", err, r.ConsoleTail(40))
	}
	if err := os.Remove(r.DiskPath(diskName)); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	return writeJSON(filepath.Join(dir, recordingFile), r.recording)
}

// These are the files of a recording.
const (
	recordingFile = "recording.json"
	documentsFile = "machine.yaml" // the configuration
)

// run performs the steps until each requested class has had its first step. The spans of the steps
// follow each other without gaps.
func (r *recorder) run(ctx context.Context) error {
	steps := r.steps()
	last := len(steps) - 1
	if len(r.options.classes) > 0 {
		last = 0
		for _, class := range r.options.classes {
			last = max(last, slices.IndexFunc(steps, func(s step) bool { return s.class == class }))
		}
	}
	began, from := time.Now(), int64(0)
	for _, step := range steps[:last+1] {
		bounded, cancel := context.WithTimeout(ctx, recordLimit)
		r.end = 0
		err := step.do(bounded)
		cancel()
		if err == nil && r.end == 0 {
			r.end, err = r.length()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.class, err)
		}
		r.Spans = append(r.Spans, span{Class: step.class, From: from, To: r.end})
		fmt.Printf("%7.1fs  recorded: %s, %d KiB\n", time.Since(began).Seconds(), step.class, (r.end-from)>>10)
		from = r.end
	}
	return nil
}

// length returns the present length of the log in bytes.
func (r *recorder) length() (int64, error) {
	info, err := os.Stat(r.LogPath(diskName))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (r *recorder) firstBoot(ctx context.Context) error {
	if err := r.answers(ctx); err != nil {
		return err
	}
	r.Identity = r.identity
	return r.call(ctx, func(ctx context.Context, c *client.Client) error {
		v, err := c.Machine.Version(ctx, &api.VersionRequest{})
		if err != nil {
			return err
		}
		r.Old = v.Version
		s, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "disks"})
		if err != nil {
			return err
		}
		var there bool
		if r.ESP, r.Data, there = places(s.Value); !there {
			return fmt.Errorf("topic disks: a partition is missing: %v", s.Value)
		}
		r.Answered, err = r.length()
		return err
	})
}

// places finds the ESP and DATA in the topic disks. It returns false if one of them is missing.
func places(disks *structpb.Value) (esp, data place, there bool) {
	for _, d := range disks.GetStructValue().GetFields()["disks"].GetListValue().GetValues() {
		for _, p := range d.GetStructValue().GetFields()["partitions"].GetListValue().GetValues() {
			f := p.GetStructValue().GetFields()
			it := place{int64(f["start"].GetNumberValue()) / writelog.SectorSize, int64(f["size"].GetNumberValue()) / writelog.SectorSize}
			switch f["label"].GetStringValue() {
			case layout.ESP:
				esp = it
			case layout.Data:
				data = it
			}
		}
	}
	return esp, data, esp.Sector > 0 && data.Sector > 0
}

func (r *recorder) configure(ctx context.Context) (err error) {
	if r.ApplyBegan, err = r.length(); err != nil {
		return err
	}
	if err := r.apply(ctx, r.documents); err != nil {
		return err
	}
	if r.Applied, err = r.length(); err != nil {
		return err
	}
	if r.Configuration, err = r.configuration(ctx); err != nil {
		return err
	}
	return r.healthy(ctx)
}

func (r *recorder) writeObjects(ctx context.Context, count int) error {
	return r.write(ctx, len(r.Writes), count, func(name string) error {
		at, err := r.length()
		r.Writes = append(r.Writes, object{name, at})
		return err
	})
}

// send uploads the bundle of a version and waits until the machine has written the new version. It
// returns the version.
func (r *recorder) send(ctx context.Context, version string) (string, error) {
	at, err := r.length()
	if err != nil {
		return "", err
	}
	if r.UpgradeBegan == 0 {
		r.UpgradeBegan = at
	}
	to, err := r.upgrade(ctx, r.bundle(version))
	if err != nil {
		return "", err
	}
	return to, r.until(ctx, "written version", func(ctx context.Context, c *client.Client) (bool, error) {
		s, err := c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
		return err == nil && s.Phase != string(slot.Writing), err
	})
}

// trial waits until the new version is committed. The span of the class ends when the machine last
// reported the trial.
func (r *recorder) trial(ctx context.Context) error {
	return r.until(ctx, "trial", func(ctx context.Context, c *client.Client) (bool, error) {
		at, err := r.length()
		if err != nil {
			return false, err
		}
		s, err := c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
		if err != nil || s.Running != r.New {
			return false, err
		}
		if s.Phase == "trial" {
			r.end = at
		}
		return s.Phase == "committed", nil
	})
}

// commit writes a few objects. Meanwhile, after the phase committed, the machine renames the boot
// entry. So the span of the class contains the renaming.
func (r *recorder) commit(ctx context.Context) error { return r.writeObjects(ctx, 5) }

func (r *recorder) back(ctx context.Context) error {
	if err := r.rollback(ctx); err != nil {
		return err
	}
	return r.ends(ctx, "rolled back", r.Old)
}

func writeJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: cannot format: %w", file, err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	return nil
}

func readJSON(file string, value any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot read: %w", err)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("%s: cannot read: %w", file, err)
	}
	return nil
}
