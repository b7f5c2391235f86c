package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kmod"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// How an upgrade goes, and goes back:
//
//  1. Upgrade.Start checks the bundle, keeps the configuration for the running version, and writes the new version into the
//     other slot (package upgrade). The machine reboots.
//  2. The boot loader starts the new version and counts the try. When machined comes up it notes that (stepUpgrade), and
//     watches the gate: everything that a good system does has to be seen before the deadline.
//  3. The gate holds: the entry loses its counter, and the version is committed.
//  4. It does not, or the version never comes so far: the loader starts the old version, by itself or because machined has
//     marked the new one as failed. stepUpgrade then puts the configuration back that the old version was good with.
//
// What each event means is decided by slot.Step alone.

// keptLines is how much of the log of a failed boot is remembered.
const keptLines = 200

// upgradeState is what there is to say about upgrades: topic "upgrade".
type upgradeState struct {
	slot.Record
	Operation string `json:"operation,omitempty"` // what is done now
	Done      int64  `json:"done,omitempty"`      // bytes of it
	Total     int64  `json:"total,omitempty"`
	Waits     string `json:"waits,omitempty"` // what a version on trial still has to show
}

// records is where the record is kept.
var records = upgrade.Store{Dir: paths.Upgrade}

// stepUpgrade reads what is remembered of the last upgrade. Only when it has not ended the ESP is looked at, before the
// configuration is loaded, which may be another one then.
func stepUpgrade(ctx context.Context, m *machine) error {
	if why, _ := m.noStorage.Get(); why != "" {
		return nil
	}
	r, err := records.Load()
	if err != nil {
		m.say(err.Error())
	}
	m.upgrade.Set(upgradeState{Record: r})
	if r.Phase.Done() {
		return nil
	}
	if err := m.noteBoot(ctx); err != nil {
		m.say(err.Error()) // the entries decide what starts next, whether or not we can read them
	}
	return nil
}

// lookForTrial sees to a version on trial of which nothing is remembered: a reset may have wiped STATE meanwhile.
func (m *machine) lookForTrial(ctx context.Context) {
	now, _ := m.upgrade.Get()
	if _, err := m.place(); !now.Phase.Done() || err != nil {
		return
	}
	if err := m.noteBoot(ctx); err != nil {
		m.events.add("upgrade", "failure", err.Error())
	}
}

// noteBoot tells the decision that this version has come up.
func (m *machine) noteBoot(ctx context.Context) error {
	p, err := m.place()
	if err != nil {
		return err
	}
	entries, err := m.espOf(p).Entries()
	if err != nil {
		return err
	}
	return m.happened(ctx, slot.Booted{Entries: entries, At: time.Now()})
}

// happened decides what an event means, stores that, and does it.
func (m *machine) happened(ctx context.Context, e slot.Event) error {
	m.stepping.Lock()
	defer m.stepping.Unlock()
	before, _ := m.upgrade.Get()
	r, actions, err := slot.Step(m.release.Version, before.Record, e)
	if err != nil {
		return err
	}
	if why, _ := m.noStorage.Get(); why == "" {
		if err := records.Save(r); err != nil {
			return err
		}
	}
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Record = r; return s })
	if r.Phase != before.Phase {
		text := fmt.Sprintf("upgrade from %s to %s: %s", r.From, r.To, r.Phase)
		if r.Reason != "" {
			text += ": " + r.Reason
		}
		m.say(text)
	}
	for _, a := range actions {
		if err := m.act(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) act(ctx context.Context, a slot.Action) error {
	switch a := a.(type) {
	case slot.Watch:
		go m.watchGate(context.WithoutCancel(ctx))
	case slot.Rename:
		p, err := m.place()
		if err != nil {
			return err
		}
		return m.espOf(p).Rename(a.To)
	case slot.RestoreConfiguration:
		kept, err := records.Kept(a.Version)
		if err != nil || kept == nil {
			return err
		}
		if err := renameio.WriteFile(paths.ConfigCurrent, kept, 0o600); err != nil {
			return fmt.Errorf("upgrade: cannot put the configuration back: %w", err)
		}
		m.events.add("upgrade", "config", "the configuration is again the one that version "+a.Version+" was good with")
		return syncFolder(filepath.Dir(paths.ConfigCurrent))
	case slot.Reboot:
		return m.goDown(powerRequest{to: power.Reboot, why: a.Why})
	}
	return nil
}

// place is where the two systems lie.
func (m *machine) place() (upgrade.Place, error) {
	label := disk.LabelRootA
	if m.slot == "A" {
		label = disk.LabelRootB
	}
	disks, _ := m.disks.Get()
	for _, d := range disks.Disks {
		p := upgrade.Place{Disk: d.Path, Label: label}
		for _, part := range d.Partitions {
			switch part.Label {
			case disk.LabelESP:
				p.ESP = part.Path
			case label:
				p.Root, p.Number, p.Size = part.Path, part.Number, int64(part.Size)
			}
		}
		if d.Boot && p.ESP != "" && p.Root != "" {
			return p, nil
		}
	}
	return upgrade.Place{}, upgrade.ErrNoSlots
}

func (m *machine) espOf(p upgrade.Place) *upgrade.ESP {
	m.esp.Device = p.ESP
	return m.esp
}

// loadModules loads kernel modules with what they need.
func (m *machine) loadModules(names ...string) error {
	index, err := m.modules()
	if err != nil {
		return err
	}
	steps, err := index.Plan(names...)
	if err != nil {
		return err
	}
	return kmod.Load(steps)
}

// watchGate waits until this version has proved itself, or its time is up.
func (m *machine) watchGate(ctx context.Context) {
	services, configuration := m.services.Status().Watch(), m.config.Watch()
	for {
		now := configuration.Take()
		waits := gate(now, services.Take(), unread())
		m.upgrade.Update(func(s upgradeState) upgradeState { s.Waits = waits; return s })
		var e slot.Event = slot.GateHeld{At: time.Now()}
		if waits != "" {
			patience := config.DefaultUpgradeDeadline
			if now.config != nil {
				patience = time.Duration(now.config.Machine.Spec.Upgrade.Deadline)
			}
			late := time.NewTimer(time.Until(m.started.Add(patience)))
			select {
			case <-services.Changed():
				late.Stop()
				continue
			case <-configuration.Changed():
				late.Stop()
				continue
			case <-late.C:
			}
			e = slot.GateFailed{Reason: fmt.Sprintf("version %s did not prove itself within %v: %s", m.release.Version, patience, waits), Log: m.lastLines()}
		}
		if err := m.happened(ctx, e); err != nil {
			m.say(err.Error()) // the loader goes on counting
		}
		return
	}
}

// gate tells what a version on trial still has to show; "" when that is everything. Without a configuration that is the
// management API, through which one can come; with one it is all that `orlopctl health` asks for.
func gate(now applied, services []supervise.Status, unread bool) string {
	switch {
	case unread && now.config == nil:
		return "configuration: the stored one cannot be used"
	case now.config == nil || now.config.Cluster == nil:
		i := slices.IndexFunc(services, func(s supervise.Status) bool { return s.Name == serviceApid })
		if i < 0 || services[i].State != supervise.Running {
			return "management API: not answering yet"
		}
		return ""
	}
	for _, c := range clusterHealth(now, services).Checks {
		if !c.Ok {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// unread tells whether a configuration is stored.
func unread() bool {
	_, err := os.Stat(paths.ConfigCurrent)
	return !errors.Is(err, fs.ErrNotExist)
}

// lastLines is the end of what happened in this boot: the events, and the last words of the services.
func (m *machine) lastLines() []string {
	var lines []string
	for _, e := range m.events.after(0) {
		lines = append(lines, fmt.Sprintf("%s %s: %s", e.time.UTC().Format(time.RFC3339), e.source, e.message))
	}
	lines = lines[max(0, len(lines)-keptLines/2):]
	all, _ := m.services.Status().Get()
	for _, s := range all {
		ring, err := m.services.Log(s.Name)
		if err != nil {
			continue
		}
		for _, l := range ring.Tail(keptLines / 2 / len(all)) {
			lines = append(lines, fmt.Sprintf("%s service/%s: %s", l.Time.UTC().Format(time.RFC3339), s.Name, l.Text))
		}
	}
	return lines
}

type upgradeAPI struct {
	api.UnimplementedUpgradeServer
	m *machine
}

func (a upgradeAPI) Start(stream grpc.ClientStreamingServer[api.StartUpgradeRequest, api.StartUpgradeResponse]) error {
	r, err := a.m.install(stream.Context(), &chunks[*api.StartUpgradeRequest]{receive: stream.Recv}, caller(stream.Context()))
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := stream.SendAndClose(&api.StartUpgradeResponse{From: r.From, To: r.To}); err != nil {
		a.m.events.add("upgrade", "failure", "who asked for it is gone: "+err.Error())
	}
	return a.m.happened(context.WithoutCancel(stream.Context()), slot.EntryWritten{})
}

// install writes a bundle into the other slot.
func (m *machine) install(ctx context.Context, from io.Reader, who string) (slot.Record, error) {
	if !m.writing.TryLock() {
		return slot.Record{}, errors.New("upgrade refused: another one is being written")
	}
	defer m.writing.Unlock()
	if why, _ := m.noStorage.Get(); why != "" {
		return slot.Record{}, fmt.Errorf("upgrade refused: there is nothing to keep its record on: %s", why)
	}
	p, err := m.place()
	if err != nil {
		return slot.Record{}, fmt.Errorf("upgrade refused: %w", err)
	}
	keys, err := os.ReadFile(paths.ReleaseKeys)
	if err != nil {
		return slot.Record{}, fmt.Errorf("upgrade refused: this image trusts nobody's bundles: %w", err)
	}
	trust, err := bundle.ParseTrust(keys)
	if err != nil {
		return slot.Record{}, fmt.Errorf("upgrade refused: %s: %w", paths.ReleaseKeys, err)
	}
	began := false
	i := upgrade.Installer{
		Running: m.release.Version, Profile: m.release.Profile, Trust: trust, Place: p, ESP: m.espOf(p),
		Admit: func(version string) error {
			if err := m.happened(ctx, slot.Began{To: version, At: time.Now()}); err != nil {
				return fmt.Errorf("upgrade refused, nothing was written: %w", err)
			}
			began = true
			m.events.add("upgrade", "op", "to version "+version+", asked by "+who)
			return m.keepConfiguration()
		},
		Report: func(operation string, done, total int64) {
			m.upgrade.Update(func(s upgradeState) upgradeState {
				if operation != "" {
					s.Operation = operation
				}
				s.Done, s.Total = done, total
				return s
			})
			if operation != "" {
				m.events.add("upgrade", "op", operation)
			}
		},
	}
	err = i.Install(ctx, from)
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Operation, s.Done, s.Total = "", 0, 0; return s })
	if err == nil {
		err = m.keepConfiguration() // it may have changed while the slot was written
	}
	if err != nil && began {
		err = errors.Join(err, m.happened(ctx, slot.WriteFailed{Reason: err.Error(), At: time.Now()}))
	}
	now, _ := m.upgrade.Get()
	return now.Record, err
}

// keepConfiguration keeps the configuration in force as the one that the running version is good with.
func (m *machine) keepConfiguration() error {
	text, err := os.ReadFile(paths.ConfigCurrent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("upgrade: cannot keep the configuration: %w", err)
	}
	return records.Keep(m.release.Version, text)
}

func (a upgradeAPI) Status(context.Context, *api.UpgradeStatusRequest) (*api.UpgradeStatus, error) {
	s, _ := a.m.upgrade.Get()
	out := &api.UpgradeStatus{
		Running: a.m.release.Version, From: s.From, To: s.To, Phase: string(s.Phase), Tries: uint32(s.Tries), Reason: s.Reason, Log: s.Log,
		Operation: s.Operation, Done: s.Done, Total: s.Total, Waits: s.Waits,
	}
	if !s.Began.IsZero() {
		out.Began = timestamppb.New(s.Began)
	}
	if !s.Ended.IsZero() {
		out.Ended = timestamppb.New(s.Ended)
	}
	return out, nil
}

func (a upgradeAPI) Rollback(ctx context.Context, _ *api.RollbackRequest) (*api.RollbackResponse, error) {
	p, err := a.m.place()
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	entries, err := a.m.espOf(p).Entries()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := a.m.happened(context.WithoutCancel(ctx), slot.BackAsked{Entries: entries, Reason: "rollback asked by " + caller(ctx), At: time.Now()}); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	now, _ := a.m.upgrade.Get()
	return &api.RollbackResponse{To: now.From}, nil
}
