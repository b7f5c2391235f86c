package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disklayout"
	"github.com/orlop-os/orlop/pkg/esp"
	"github.com/orlop-os/orlop/pkg/kmsg"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// How an upgrade and its rollback work:
//
//  1. A bundle is received and checked (receive.go). A savepoint of the etcd data is taken
//     (savepoint.go). The new version is written into the other slot, and the configuration is
//     saved for the running version (package upgrade). The machine reboots.
//  2. The boot loader starts the new version and counts the attempt. machined records the boot
//     (stepUpgrade) and watches the upgrade checks: all of them have to pass before the deadline
//     (probes.go).
//  3. If all checks pass, the boot entry loses its counter, and the version is committed.
//  4. Otherwise, or if the version never reaches that point, the loader starts the old version, by
//     itself or because machined has marked the new version as failed. stepUpgrade then restores
//     the configuration of the old version.
//
// slot.Step alone decides the effect of each event.

// savedLines is the number of log lines that are saved of a failed boot.
const savedLines = 200

// upgradeState is the state of upgrades: topic "upgrade".
type upgradeState struct {
	slot.Record
	Operation  string `json:"operation,omitempty"` // running operation
	Done       int64  `json:"done,omitempty"`      // bytes done
	Total      int64  `json:"total,omitempty"`
	WaitingFor string `json:"waitingFor,omitempty"` // missing check of a version on trial
}

// records is the store of the upgrade record.
var records = upgrade.Store{Dir: paths.Upgrade}

// stepUpgrade loads the record of the last upgrade. Only if that has not ended, it reads the ESP,
// before the configuration is loaded, which a rollback replaces.
func stepUpgrade(ctx context.Context, m *machine) error {
	if why, _ := m.storageProblem.Get(); why != "" {
		return nil
	}
	r, err := records.Load()
	if err != nil {
		m.logConsole(err.Error())
	}
	m.upgrade.Set(upgradeState{Record: r})
	if r.Phase.Done() {
		return nil
	}
	if err := m.recordBoot(ctx); err != nil {
		// the entries decide the next boot even if they are unreadable here
		m.logConsole(err.Error())
		m.restarter().Go(m.runCtx, "the loader's entries", m.retryRecordBoot)
	}
	return nil
}

// resumeTrial continues a trial without a record: a reset may have wiped STATE meanwhile. A version
// that is not on trial raises the epoch floor, also if the floor was lost with STATE.
func (m *machine) resumeTrial(ctx context.Context) {
	if now, _ := m.upgrade.Get(); !now.Phase.Done() {
		return // stepUpgrade has handled it
	}
	err := m.recordBoot(ctx)
	if now, _ := m.upgrade.Get(); err == nil && now.Phase.Done() {
		err = m.raiseFloor()
	}
	if floor := m.epochFloor(); m.release.Epoch < floor {
		m.logConsole(fmt.Sprintf("version %s has epoch %d, and one with epoch %d was committed on this machine; upgrade to a version with at least that epoch", m.release.Version, m.release.Epoch, floor))
	}
	if err != nil && (m.slot != "" || !errors.Is(err, upgrade.ErrNoSlots)) {
		m.events.add("upgrade", "failure", err.Error())
		m.restarter().Go(m.runCtx, "the loader's entries", m.retryRecordBoot)
	}
}

// recordBoot passes the boot of this version to slot.Step.
func (m *machine) recordBoot(ctx context.Context) error {
	entries, err := m.esp.Entries()
	if err != nil {
		counted, known := esp.CurrentTrial()
		now, _ := m.upgrade.Get()
		var ok bool
		if entries, ok = entriesUnread(m.release.Version, now.Record, counted, known); !ok {
			return err
		}
		m.logConsole(err.Error())
	}
	return m.handleEvent(ctx, slot.Booted{Entries: entries, At: time.Now(), Log: records.SavedLog()})
}

// entriesUnread returns substitute entries if the ESP is unreadable: the trial is watched all the
// same, or a version that cannot read its disk would never be rolled back. The loader's counter
// decides (counted, if known), else the unfinished record. Otherwise ok is false.
func entriesUnread(running string, r slot.Record, counted slot.Entry, known bool) (entries []slot.Entry, ok bool) {
	if known && counted.Version == running {
		return []slot.Entry{counted}, true
	}
	return nil, r.To == running && !r.Phase.Done()
}

// espRetryInterval is the delay before the ESP is read again after an error.
const espRetryInterval = 10 * time.Second

// retryRecordBoot repeats recordBoot until the ESP is readable: after a rollback the machine gets
// its configuration back.
func (m *machine) retryRecordBoot(ctx context.Context) {
	tick := time.NewTicker(espRetryInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		before, _ := m.upgrade.Get()
		if err := m.recordBoot(ctx); err != nil {
			continue
		}
		if now, _ := m.upgrade.Get(); now.Phase != slot.RolledBack || before.Phase == slot.RolledBack {
			return
		}
		m.applyMu.Lock()
		defer m.applyMu.Unlock()
		_, _ = m.reload() // the configuration topic reports the problem
		return
	}
}

// handleEvent passes an event to slot.Step, stores the record, and performs the actions.
func (m *machine) handleEvent(ctx context.Context, e slot.Event) error {
	m.upgradeMu.Lock()
	defer m.upgradeMu.Unlock()
	before, _ := m.upgrade.Get()
	r, actions, err := slot.Step(m.release.Version, before.Record, e)
	if err != nil {
		return err
	}
	// The configuration is restored before the record says so: after a power cut here, the next
	// boot repeats it.
	var tidy error
	actions = slices.DeleteFunc(actions, func(a slot.Action) bool {
		restore, is := a.(slot.RestoreConfiguration)
		if is {
			tidy = m.perform(ctx, restore)
		}
		return is
	})
	if r.Phase == slot.Committed {
		// A version is not reported as committed while its entry is on trial after a power cut: the
		// other version must not start any more.
		for _, a := range actions {
			if err := m.perform(ctx, a); err != nil {
				return err
			}
		}
		actions = nil
		// After the entry: a version on trial must not raise the floor. After a power cut in
		// between, the next boot raises it.
		if err := m.raiseFloor(); err != nil {
			return err
		}
	}
	switch {
	case r.Phase == before.Phase:
	case r.Phase == slot.Committed:
		tidy = errors.Join(inbox.Drop(), records.DropLog())
	case r.Phase == slot.Writing:
		tidy = records.DropLog()
	}
	if tidy != nil {
		m.logConsole(tidy.Error())
	}
	// most boots change nothing
	if why, _ := m.storageProblem.Get(); why == "" && !reflect.DeepEqual(r, before.Record) {
		if err := records.Save(r); err != nil {
			switch e.(type) {
			// the entries are authoritative; the record only holds the reason
			case slot.Booted, slot.ChecksPassed, slot.ChecksFailed:
				m.logConsole(err.Error())
			default: // no action was performed yet
				return err
			}
		}
	}
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Record = r; return s })
	if r.Phase != before.Phase {
		text := fmt.Sprintf("upgrade from %s to %s: %s", r.From, r.To, r.Phase)
		if r.Reason != "" {
			text += ": " + r.Reason
		}
		m.logConsole(text)
	}
	var failed error
	for _, a := range actions {
		if err := m.perform(ctx, a); err != nil {
			// A version that failed its checks is left even if its entry cannot be renamed: the
			// loader continues to count.
			switch e.(type) {
			case slot.ChecksFailed:
			case slot.RollbackRequested:
				// If the entry was not renamed, no rollback was started, and no version is on
				// trial.
				mark, is := a.(slot.Rename)
				if entries, unread := m.esp.Entries(); is && unread == nil && !slices.Contains(entries, mark.To) {
					m.upgrade.Update(func(s upgradeState) upgradeState { s.Record = before.Record; return s })
					err = errors.Join(err, records.Save(before.Record))
				}
				return err
			default:
				return err
			}
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (m *machine) perform(ctx context.Context, a slot.Action) error {
	switch a := a.(type) {
	case slot.Watch:
		watching, stop := context.WithCancel(context.WithoutCancel(ctx))
		m.restarter().Go(watching, "log of a trial", m.saveLog)
		go func() {
			defer stop()
			m.restarter().Run(watching, "trial", m.watchTrialVersion)
		}()
	case slot.Rename:
		return m.esp.Rename(a.To)
	case slot.RestoreConfiguration:
		if err := configs.DropStaged(); err != nil { // they belong to the failed version
			return err
		}
		saved, err := records.SavedConfiguration(a.Version)
		if err != nil || saved == nil {
			return err
		}
		// Without a present configuration there are no keys to retain.
		if current, err := os.ReadFile(configs.Current()); err == nil {
			if saved, err = transition.WithPresentKeys(saved, current); err != nil {
				return fmt.Errorf("upgrade: cannot restore the configuration: %w", err)
			}
		}
		if err := configs.Put(saved); err != nil {
			return fmt.Errorf("upgrade: cannot restore the configuration: %w", err)
		}
		m.events.add("upgrade", "config", "the configuration is again the one that version "+a.Version+" was good with")
	case slot.Reboot:
		return m.shutDown(powerRequest{to: power.Reboot, why: a.Why})
	}
	return nil
}

// epochFloor returns the lowest epoch that an operator can install: the highest epoch of a
// committed version.
func (m *machine) epochFloor() int {
	floor, err := records.EpochFloor()
	if err != nil {
		m.events.add("upgrade", "failure", err.Error())
		return m.release.Epoch
	}
	return floor
}

// raiseFloor raises the epoch floor to the running version, which is committed.
func (m *machine) raiseFloor() error {
	if why, _ := m.storageProblem.Get(); why != "" {
		return nil
	}
	return records.RaiseEpochFloor(m.release.Epoch)
}

// releaseCheck adds a warning to the health if the version has expired, or if its epoch is lower
// than that of a committed version. The warning does not make the machine unhealthy: its behavior
// has not changed.
func releaseCheck(health *api.HealthResponse, r buildinfo.Release, floor int, now time.Time) {
	warn := func(detail string, since time.Time) {
		health.Checks = append(health.Checks, &api.HealthCheck{Name: "release", Ok: true, Detail: "warning: " + detail, Since: timestamppb.New(since)})
	}
	if expires := time.Unix(r.Expires, 0).UTC(); r.Expires > 0 && !now.Before(expires) {
		warn(fmt.Sprintf("version %s is not maintained any more since %s; upgrade to a newer one", r.Version, expires.Format(time.DateOnly)), expires)
	}
	if r.Epoch < floor {
		warn(fmt.Sprintf("version %s has epoch %d, and one with epoch %d was committed on this machine; upgrade to a newer one", r.Version, r.Epoch, floor), now)
	}
}

// slots returns the partitions of the two slots.
func (m *machine) slots() (upgrade.Slot, error) {
	label := disklayout.RootA
	if m.slot == "A" {
		label = disklayout.RootB
	}
	disks, _ := m.disks.Get()
	for _, d := range disks.Disks {
		p := upgrade.Slot{Disk: d.Path, Label: label}
		for _, part := range d.Partitions {
			switch part.Label {
			case disklayout.ESP:
				p.ESP = part.Path
			case label:
				p.Root, p.Number, p.Size, p.UUID = part.Path, part.Number, int64(part.Size), part.UUID
			case disklayout.RootA, disklayout.RootB:
				p.Running = part.Path
			}
		}
		if d.Boot && p.ESP != "" && p.Root != "" {
			return p, nil
		}
	}
	return upgrade.Slot{}, upgrade.ErrNoSlots
}

// probeInterval is the delay after a failed upgrade probe.
const probeInterval = 2 * time.Second

// watchTrialVersion waits until all checks of this version have passed, or the deadline has passed.
func (m *machine) watchTrialVersion(ctx context.Context) {
	services, configuration, members := m.services.Status().Watch(), m.config.Watch(), m.members.Worker.State.Watch()
	rules, program := m.rulesProblem.Watch(), m.panicState.Watch()
	for {
		now, again := configuration.Current(), (<-chan time.Time)(nil)
		storage, _ := m.storageProblem.Get()
		failed := cmp.Or(failedCheck(now, members.Current(), services.Current(), hasStoredConfig(), storage), rules.Current())
		if failed == "" {
			record, _ := m.upgrade.Get()
			if err := m.runProbes(ctx, now, record.NetworkReached); err != nil {
				failed, again = err.Error(), time.After(probeInterval)
			}
		}
		m.upgrade.Update(func(s upgradeState) upgradeState { s.WaitingFor = failed; return s })
		var e slot.Event = slot.ChecksPassed{At: time.Now()}
		if why := panicReason(m.release.Version, program.Current()); why != "" {
			e = slot.ChecksFailed{Reason: why, Log: m.lastLines()}
		} else if failed != "" {
			deadline := config.DefaultUpgradeDeadline
			if now.config != nil {
				deadline = time.Duration(now.config.Machine.Spec.Upgrade.Deadline)
			}
			timer := time.NewTimer(time.Until(m.started.Add(deadline)))
			select {
			case <-services.Changed():
				timer.Stop()
				continue
			case <-configuration.Changed():
				timer.Stop()
				continue
			case <-members.Changed():
				timer.Stop()
				continue
			case <-rules.Changed():
				timer.Stop()
				continue
			case <-program.Changed():
				timer.Stop()
				continue
			case <-again:
				timer.Stop()
				continue
			case <-timer.C:
			}
			e = slot.ChecksFailed{Reason: fmt.Sprintf("version %s did not pass its checks within %v: %s", m.release.Version, deadline, failed), Log: m.lastLines()}
		}
		err := m.handleEvent(ctx, e)
		_, passed := e.(slot.ChecksPassed)
		// The loader would start the other version at the next boot: a rollback now restores its
		// configuration too.
		if passed && errors.Is(err, esp.ErrNoEntry) {
			passed, err = false, m.handleEvent(ctx, slot.ChecksFailed{Reason: err.Error(), Log: m.lastLines()})
		}
		if err == nil {
			return
		}
		m.logConsole(err.Error()) // the loader continues to count
		if !passed {
			return
		}
		select { // the checks passed, but the entry is not renamed yet
		case <-time.After(espRetryInterval):
		case <-ctx.Done():
			return
		}
	}
}

// failedCheck returns the first failed check of a version on trial; "" if all passed. Without a
// configuration the management API is the only check, because a client can apply a configuration
// over it; with a configuration all checks of `orlopctl health` count. storage is the reason for
// which STATE is absent: the former version had STATE, or no upgrade would have been possible.
func failedCheck(now applied, member membership.State, services []supervise.Status, stored bool, storage string) string {
	switch {
	case storage != "":
		return "storage: " + storage
	case stored && now.config == nil:
		return "configuration: the stored one is unusable"
	case now.config == nil || now.config.Cluster == nil:
		i := slices.IndexFunc(services, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceApid })
		if i < 0 || services[i].State != supervise.Running {
			return "management API: not answering yet"
		}
		return ""
	}
	for _, c := range clusterHealth(now, member, services).Checks {
		if !c.Ok && !isUserProblem(c) {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// isUserProblem reports whether objects of users cause a failed check: the version is not at fault,
// and an upgrade that fixes the problem must be possible.
func isUserProblem(c *api.HealthCheck) bool {
	return strings.HasPrefix(c.Detail, nodespec.ProblemPrefix) && slices.Contains([]string{"bootstrap", "metrics", nodespec.Extensions}, c.Name)
}

// hasStoredConfig reports whether STATE has a configuration.
func hasStoredConfig() bool {
	_, err := os.Stat(configs.Current())
	return !errors.Is(err, fs.ErrNotExist)
}

// saveLogInterval is the interval at which a version on trial saves the end of its log.
const saveLogInterval = 5 * time.Second

// saveLog saves the end of the log of a version on trial, in case it ends without a message: after
// the rollback the old version shows it.
func (m *machine) saveLog(ctx context.Context) {
	tick := time.NewTicker(saveLogInterval)
	defer tick.Stop()
	for {
		if err := records.SaveLog(m.lastLines()); err != nil {
			m.logConsole(err.Error())
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lastLines returns the end of the logs of this boot, a third each of the events, the services'
// logs and the kernel log.
func (m *machine) lastLines() []string {
	const third = savedLines / 3
	line := func(at time.Time, source, text string) string {
		return fmt.Sprintf("%s %s: %s", at.UTC().Format(time.RFC3339), source, text)
	}
	var lines []string
	for _, e := range m.events.after(0) {
		lines = append(lines, line(e.time, e.source, e.message))
	}
	lines = lines[max(0, len(lines)-third):]
	all, _ := m.services.Status().Get()
	for _, s := range all {
		ring, err := m.services.Log(s.Name)
		if err != nil {
			continue
		}
		for _, l := range ring.Tail(third / len(all)) {
			lines = append(lines, line(l.Time, "service/"+s.Name, l.Text))
		}
	}
	kernel, err := kmsg.Tail(third)
	system, err2 := m.kernel.ReadSystem()
	if err := errors.Join(err, err2); err != nil {
		return append(lines, err.Error())
	}
	for _, r := range kernel {
		lines = append(lines, line(system.Started.Add(r.At), "kernel", r.Text))
	}
	return lines
}

type upgradeAPI struct {
	api.UnimplementedUpgradeServer
	m *machine
}

// saveConfiguration saves the active configuration for the running version. A configuration on
// trial ends with this boot, so the previous configuration is saved instead.
func (m *machine) saveConfiguration() error {
	text, err := configs.Confirmed()
	if err != nil || text == nil {
		return err
	}
	return records.SaveConfiguration(m.release.Version, text)
}

func (a upgradeAPI) Status(context.Context, *api.UpgradeStatusRequest) (*api.UpgradeStatus, error) {
	now, _ := a.m.upgrade.Get()
	return a.m.upgradeStatus(now), nil
}

func (a upgradeAPI) Watch(_ *api.WatchUpgradeRequest, stream grpc.ServerStreamingServer[api.UpgradeStatus]) error {
	for w := a.m.upgrade.Watch(); ; {
		now, _, err := w.Next(stream.Context())
		if err != nil {
			return endOfStream(err)
		}
		if err := stream.Send(a.m.upgradeStatus(now)); err != nil {
			return err
		}
	}
}

func (m *machine) upgradeStatus(s upgradeState) *api.UpgradeStatus {
	out := &api.UpgradeStatus{
		Running: m.release.Version, From: s.From, To: s.To, Phase: string(s.Phase), Tries: uint32(s.Tries), Reason: s.Reason, Log: s.Log,
		Operation: s.Operation, Done: s.Done, Total: s.Total, WaitingFor: s.WaitingFor,
	}
	if lost := savepointRestored(s.Started); !lost.At.IsZero() {
		out.DataRestoredFrom, out.LostRevisions = timestamppb.New(lost.Saved), lost.LostRevisions
	}
	if !s.Started.IsZero() {
		out.Started = timestamppb.New(s.Started)
	}
	if !s.Ended.IsZero() {
		out.Ended = timestamppb.New(s.Ended)
	}
	return out
}

func (a upgradeAPI) Rollback(ctx context.Context, _ *api.RollbackRequest) (*api.RollbackResponse, error) {
	entries, err := a.m.esp.Entries()
	if errors.Is(err, upgrade.ErrNoSlots) {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if !a.m.writeMu.TryLock() {
		return nil, errBusy
	}
	defer a.m.writeMu.Unlock()
	epochs, err := upgrade.Epochs(entries, a.m.esp)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	event := slot.RollbackRequested{Entries: entries, Reason: "rollback asked by " + caller(ctx), At: time.Now(), Epochs: epochs, Floor: a.m.epochFloor()}
	now, _ := a.m.upgrade.Get()
	next, _, err := slot.Step(a.m.release.Version, now.Record, event)
	if err != nil { // before any pod is evicted
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	where, err := a.m.slots()
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	if err := where.VerifySlot(next.From, a.m.esp); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: version %s, the target of the rollback, would not boot: %v; upgrade to a newer version", next.From, err)
	}
	if err := a.m.drain(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	if err := a.m.handleEvent(context.WithoutCancel(ctx), event); err != nil {
		a.m.uncordon()
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	now, _ = a.m.upgrade.Get()
	return &api.RollbackResponse{To: now.From}, nil
}
