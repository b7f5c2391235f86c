package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// How a machine that runs from memory is installed:
//
//  1. A configuration arrives over the API (apply) or is on a boot medium (seed.go). A problem with
//     it, or with the disks, is reported, and nothing happens.
//  2. Package install selects the disk and plans the operations; a dry run ends here.
//  3. The operations run in order while the caller watches topic "install".
//  4. The machine reboots from the disk, with its configuration and its key.

// The phases of an installation.
const (
	installing    = "installing"
	installDone   = "installed" // the machine reboots
	installFailed = "failed"    // it can be started again
)

// installState is the progress of an installation: topic "install".
type installState struct {
	Phase string `json:"phase,omitempty"`
	Disk  string `json:"disk,omitempty"`
	// why it failed, or was rejected without a caller
	Reason    string `json:"reason,omitempty"`
	Operation string `json:"operation,omitempty"` // running operation
	Done      int64  `json:"done,omitempty"`      // bytes done
	Total     int64  `json:"total,omitempty"`
}

// stepInstall starts the installation that the configuration of a boot medium requests, and reports
// disks with an installed system.
func stepInstall(ctx context.Context, m *machine) error {
	if m.bootMedium == "" {
		return nil
	}
	facts, err := m.installFacts(ctx, "")
	if err != nil {
		m.logConsole(err.Error())
		return nil
	}
	for _, d := range install.Installed(facts.Disks) {
		m.logConsole(fmt.Sprintf("install: Orlop OS is installed on %s; this system, from the boot medium, does not change it: remove the medium, or put the disk first in the boot order of the firmware", d))
	}
	m.installUnattended(ctx)
	return nil
}

// installUnattended installs by the configuration of a boot medium, or of the image. There is no
// caller, so the console and the topic report an error. It is called again when disks are added or
// removed; a failure after the first write is not retried by itself.
func (m *machine) installUnattended(ctx context.Context) {
	now, _ := m.config.Get()
	is, _ := m.installation.Get()
	if m.bootMedium == "" || now.config == nil || m.identity.Load() == nil || is.Disk != "" {
		return
	}
	w, err := m.planInstall(ctx, now.config, true)
	if err == nil {
		err = m.beginInstall(w, now.documents, now.source)
	}
	if err == nil || err.Error() == is.Reason {
		return
	}
	m.installation.Update(func(s installState) installState {
		if s.Disk == "" { // an operator may have started an installation meanwhile
			s = installState{Phase: installFailed, Reason: err.Error()}
		}
		return s
	})
	for line := range strings.Lines("install: " + err.Error()) {
		m.logConsole(strings.TrimSpace(line))
	}
}

// applyInstall is apply on a machine that runs from memory.
func (m *machine) applyInstall(ctx context.Context, before, next *config.Config, documents []byte, dry bool) (outcome, error) {
	w, err := m.planInstall(ctx, next, false)
	if problems := (config.Problems)(nil); errors.As(err, &problems) {
		return outcome{}, problems
	}
	if err != nil {
		return outcome{}, transition.Refuse(err)
	}
	out := outcome{install: w.Disk.Path}
	out.add("config", config.Changes(before, next))
	out.add("install", install.Print(w))
	if dry {
		return out, nil
	}
	return out, m.beginInstall(w, documents, caller(ctx))
}

// planInstall returns the installation of a configuration, or why it is impossible.
func (m *machine) planInstall(ctx context.Context, c *config.Config, unattended bool) (install.Want, error) {
	ask := c.Machine.Spec.Install
	if ask == nil {
		return install.Want{}, errors.New("the system runs from memory and stores nothing; select the disk of the installation in Machine.spec.install (`orlopctl get disks` lists them)")
	}
	facts, err := m.installFacts(ctx, ask.Disk.Match)
	if e := (*expressionError)(nil); errors.As(err, &e) {
		return install.Want{}, e.problem(c)
	}
	if err != nil {
		return install.Want{}, err
	}
	if facts.System, err = install.ReadSystem(m.release); err != nil {
		return install.Want{}, err
	}
	return install.Plan(install.Config{Disk: ask.Disk, Wipe: ask.Wipe, Unattended: unattended}, facts)
}

// installFacts reads the disks, and evaluates the disk expression, if any.
func (m *machine) installFacts(ctx context.Context, expression string) (install.Facts, error) {
	m.disksMu.Lock()
	defer m.disksMu.Unlock()
	have, err := disk.Read(ctx, m.examined(diskprobe.Fresh))
	if err != nil {
		return install.Facts{}, err
	}
	media, err := seed.List(ctx, m.prober)
	if err != nil {
		return install.Facts{}, err
	}
	var facts install.Facts
	for _, d := range have.Disks {
		facts.Disks = append(facts.Disks, installDisk(d, media))
	}
	if expression != "" {
		facts.Matches, err = m.matchDisks(ctx, expression, have.Disks)
	}
	return facts, err
}

// installDisk converts a disk to the form of package install.
func installDisk(d disk.Disk, media []seed.Device) install.Disk {
	out := install.Disk{
		Path: d.Path, Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus, Transport: d.Transport, Size: d.Size, SectorSize: d.SectorSize,
		ReadOnly: d.ReadOnly, Table: d.Table,
	}
	if d.Boot {
		out.Medium = "the system runs from it"
	} else if i := slices.IndexFunc(media, func(s seed.Device) bool { return s.Disk == d.Path }); i >= 0 {
		out.Medium = "it is the medium " + media[i].Label
	}
	for _, p := range d.Partitions {
		out.Bootable = out.Bootable || p.Label == disklayout.ESP && p.Loader
		out.Partitions = append(out.Partitions, install.Partition{Number: p.Number, Label: p.Label, Type: p.Type, UUID: p.UUID, Size: p.Size, Content: p.Content.String()})
	}
	return out
}

// expressionError is an error in the expression of a disk selector.
type expressionError struct{ reason string }

func (e *expressionError) Error() string { return config.MatchField + ": " + e.reason }

// problem returns the error with its position in the documents.
func (e *expressionError) problem(c *config.Config) config.Problems {
	at := c.Origin(config.MatchField)
	return config.Problems{{File: at.File, Line: at.Line, Column: at.Column, Field: config.MatchField, Reason: "the expression " + e.reason}}
}

// matchDisks evaluates an expression for each disk; the result is by path. The orchestrator has the
// compiler; see docs/decisions/0016-disk-expressions.md.
func (m *machine) matchDisks(ctx context.Context, expression string, disks []disk.Disk) (map[string]bool, error) {
	q := nodespec.DiskMatchRequest{Expression: expression}
	for _, d := range disks {
		q.Disks = append(q.Disks, nodespec.DiskMatchDisk{
			Path: d.Path, Size: int64(d.Size), SectorSize: int64(d.SectorSize), Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus,
			Transport: d.Transport, Rotational: d.Rotational, ReadOnly: d.ReadOnly,
		})
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	a, err := runCommand[nodespec.DiskMatchResult](ctx, m, paths.UserAPI, "match-disks", q)
	if err != nil {
		return nil, err
	}
	if a.Problem != "" {
		return nil, &expressionError{a.Problem}
	}
	matches := map[string]bool{}
	for _, path := range a.Matches {
		matches[path] = true
	}
	return matches, nil
}

// beginInstall starts the operations and returns. Only one installation runs at a time, and none
// after a success: the machine reboots.
func (m *machine) beginInstall(w install.Want, documents []byte, by string) error {
	unlock, ok := m.upgrade.Controller.TryLock()
	if !ok {
		return transition.Refuse(errors.New("an installation is running (`orlopctl get install`)"))
	}
	identity := m.identity.Load()
	// The configuration last: a key without a configuration is harmless.
	files := []install.File{
		{Name: paths.MachineKey, Content: identity.KeyPEM()}, {Name: paths.MachineCert, Content: identity.CertPEM()},
	}
	ca, err := os.ReadFile(paths.PairedCAInMemory) // no pairing is possible while the lock is held
	switch {
	case err == nil:
		files = append(files, install.File{Name: paths.PairedCA, Content: ca})
	case !errors.Is(err, fs.ErrNotExist):
		unlock()
		return transition.Refuse(fmt.Errorf("the operator's CA: %w", err))
	}
	m.events.add("install", "operation", "onto "+w.Disk.String()+", asked by "+by)
	m.installation.Set(installState{Phase: installing, Disk: w.Disk.Path})
	ops := install.Operations(w, install.Tools{
		Run:     func(ctx context.Context, args ...string) ([]byte, error) { return m.reaper.Run(ctx, args...) },
		Modules: m.kernel.LoadModules,
		Report: func(bytes, of int64) {
			m.installation.Update(func(s installState) installState { s.Done, s.Total = bytes, of; return s })
		},
		Files: append(files, install.File{Name: configs.Current(), Content: documents}),
	})
	panics.Go("installation", func() {
		defer func() {
			if now, _ := m.installation.Get(); now.Phase == installing { // it has panicked
				m.installation.Set(installState{Phase: installFailed, Disk: w.Disk.Path, Reason: "machined panicked; `orlopctl events` shows the reason"})
				unlock()
			}
		}()
		m.doInstall(m.runCtx, w, ops, unlock)
	})
	return nil
}

// doInstall performs the operations and reboots.
func (m *machine) doInstall(ctx context.Context, w install.Want, ops []reconcile.Op, unlock func()) {
	began := time.Now()
	for _, op := range ops {
		m.installation.Update(func(s installState) installState { s.Operation, s.Done, s.Total = op.String(), 0, 0; return s })
		m.logConsole("install: " + op.String())
		if err := op.Do(ctx); err != nil {
			reason := fmt.Sprintf("cannot %s: %v", op, err)
			m.installation.Set(installState{Phase: installFailed, Disk: w.Disk.Path, Reason: reason})
			m.logConsole("install: " + reason + "; no system boots from " + w.Disk.Path + "; apply a configuration to start again")
			unlock()
			return
		}
	}
	m.installation.Set(installState{Phase: installDone, Disk: w.Disk.Path})
	m.logConsole(fmt.Sprintf("install: version %s is on %s after %.1f s; rebooting into it", w.System.Version, w.Disk.Path, time.Since(began).Seconds()))
	m.runShutdown(powerRequest{to: power.Reboot, why: "installed on " + w.Disk.Path})
}
