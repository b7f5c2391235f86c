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

	"github.com/orlop-os/orlop/machined/power"
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

// How an upgrade goes, and goes back:
//
//  1. A bundle comes and is checked (bundles.go). The cluster's data are saved (data.go). The new version is written into the other
//     slot, and the configuration is kept for the running one (package upgrade). The machine reboots.
//  2. The boot loader starts the new version and counts the try. When machined comes up it notes that (stepUpgrade), and
//     watches the gate: everything that a good system does has to be seen before the deadline (prove.go).
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

// stepUpgrade reads what is remembered of the last upgrade. Only when it has not ended the ESP is
// looked at, before the configuration is loaded, which may be another one then.
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
		m.keeper().Go(m.working, "the loader's entries", m.noteBootLater)
	}
	return nil
}

// lookForTrial sees to a version on trial of which nothing is remembered: a reset may have wiped
// STATE meanwhile. A version that is not on trial raises the floor of epochs, also where that was
// lost with STATE.
func (m *machine) lookForTrial(ctx context.Context) {
	if now, _ := m.upgrade.Get(); !now.Phase.Done() {
		return // stepUpgrade has seen to it
	}
	err := m.noteBoot(ctx)
	if now, _ := m.upgrade.Get(); err == nil && now.Phase.Done() {
		err = m.raiseFloor()
	}
	if floor := m.floor(); m.release.Epoch < floor {
		m.say(fmt.Sprintf("version %s has epoch %d, and one with epoch %d was committed on this machine; upgrade to a version that is as new", m.release.Version, m.release.Epoch, floor))
	}
	if err != nil && (m.slot != "" || !errors.Is(err, upgrade.ErrNoSlots)) {
		m.events.add("upgrade", "failure", err.Error())
		m.keeper().Go(m.working, "the loader's entries", m.noteBootLater)
	}
}

// noteBoot tells the decision that this version has come up.
func (m *machine) noteBoot(ctx context.Context) error {
	entries, err := m.esp.Entries()
	if err != nil {
		counted, known := esp.CurrentTrial()
		now, _ := m.upgrade.Get()
		var ok bool
		if entries, ok = unread(m.release.Version, now.Record, counted, known); !ok {
			return err
		}
		m.say(err.Error())
	}
	return m.happened(ctx, slot.Booted{Entries: entries, At: time.Now(), Log: records.SavedLog()})
}

// unread is what stands for the entries when the ESP cannot be read: a version on trial is watched
// all the same, or nobody would go back from one that cannot read its disk. The loader says whether
// it counts (counted, if known), or else the record that is not at its end. Otherwise ok is false.
func unread(running string, r slot.Record, counted slot.Entry, known bool) (entries []slot.Entry, ok bool) {
	if known && counted.Version == running {
		return []slot.Entry{counted}, true
	}
	return nil, r.To == running && !r.Phase.Done()
}

// readAgain is how long after the ESP could not be read it is tried again.
const readAgain = 10 * time.Second

// noteBootLater goes on to do what noteBoot could not, because the ESP could not be read: a machine
// that has gone back gets its configuration back.
func (m *machine) noteBootLater(ctx context.Context) {
	tick := time.NewTicker(readAgain)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		before, _ := m.upgrade.Get()
		if err := m.noteBoot(ctx); err != nil {
			continue
		}
		if now, _ := m.upgrade.Get(); now.Phase != slot.RolledBack || before.Phase == slot.RolledBack {
			return
		}
		m.applying.Lock()
		defer m.applying.Unlock()
		_, _ = m.reload() // the topic of the configuration says what is wrong with it
		return
	}
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
	// PreviousBoot the record says so: who is cut here looks again.
	var tidy error
	actions = slices.DeleteFunc(actions, func(a slot.Action) bool {
		restore, is := a.(slot.RestoreConfiguration)
		if is {
			tidy = m.act(ctx, restore)
		}
		return is
	})
	if r.Phase == slot.Committed {
		// Nobody hears of a version as committed whose entry a power cut would leave on trial: the
		// other one may not start any more.
		for _, a := range actions {
			if err := m.act(ctx, a); err != nil {
				return err
			}
		}
		actions = nil
		// After the entry: a version that is not good yet must not raise it. A cut in between is
		// made up for when this version starts.
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
		m.say(tidy.Error())
	}
	// most boots change nothing
	if why, _ := m.noStorage.Get(); why == "" && !reflect.DeepEqual(r, before.Record) {
		if err := records.Save(r); err != nil {
			switch e.(type) {
			// what the entries say counts; the record only says why
			case slot.Booted, slot.ChecksPassed, slot.ChecksFailed:
				m.say(err.Error())
			default: // nothing has happened yet
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
		m.say(text)
	}
	var failed error
	for _, a := range actions {
		if err := m.act(ctx, a); err != nil {
			// A version that has not proved itself is left even if its entry cannot be renamed: the
			// loader goes on counting.
			switch e.(type) {
			case slot.ChecksFailed:
			case slot.RollbackRequested:
				// Unless the entry says otherwise nothing has happened, and nobody waits for a
				// version that would have to prove itself.
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

func (m *machine) act(ctx context.Context, a slot.Action) error {
	switch a := a.(type) {
	case slot.Watch:
		watching, stop := context.WithCancel(context.WithoutCancel(ctx))
		m.keeper().Go(watching, "log of a trial", m.keepLog)
		go func() {
			defer stop()
			m.keeper().Run(watching, "trial", m.watchGate)
		}()
	case slot.Rename:
		return m.esp.Rename(a.To)
	case slot.RestoreConfiguration:
		if err := configs.DropStaged(); err != nil { // it was for the version that has failed
			return err
		}
		kept, err := records.SavedConfiguration(a.Version)
		if err != nil || kept == nil {
			return err
		}
		// without one there is nothing whose keys could be kept
		if present, err := os.ReadFile(configs.Current()); err == nil {
			if kept, err = withPresentKeys(kept, present); err != nil {
				return fmt.Errorf("upgrade: cannot put the configuration back: %w", err)
			}
		}
		if err := configs.Put(kept); err != nil {
			return fmt.Errorf("upgrade: cannot put the configuration back: %w", err)
		}
		m.events.add("upgrade", "config", "the configuration is again the one that version "+a.Version+" was good with")
	case slot.Reboot:
		return m.goDown(powerRequest{to: power.Reboot, why: a.Why})
	}
	return nil
}

// floor is the lowest epoch that somebody can have this machine run: the highest of a version that
// was committed on it.
func (m *machine) floor() int {
	floor, err := records.EpochFloor()
	if err != nil {
		m.events.add("upgrade", "failure", err.Error())
		return m.release.Epoch
	}
	return floor
}

// raiseFloor has no version of a lower epoch than the running one, which is good, come after it.
func (m *machine) raiseFloor() error {
	if why, _ := m.noStorage.Get(); why != "" {
		return nil
	}
	return records.RaiseEpochFloor(m.release.Epoch)
}

// releaseCheck warns in the health of a version that is not mended any more, or that is of a time
// before what was committed on this machine. Neither makes the machine unhealthy: it does what it
// did yesterday.
func releaseCheck(health *api.HealthResponse, r buildinfo.Release, floor int, now time.Time) {
	warn := func(detail string, since time.Time) {
		health.Checks = append(health.Checks, &api.HealthCheck{Name: "release", Ok: true, Detail: "warning: " + detail, Since: timestamppb.New(since)})
	}
	if expires := time.Unix(r.Expires, 0).UTC(); r.Expires > 0 && !now.Before(expires) {
		warn(fmt.Sprintf("version %s is not mended any more since %s; upgrade to a newer one", r.Version, expires.Format(time.DateOnly)), expires)
	}
	if r.Epoch < floor {
		warn(fmt.Sprintf("version %s has epoch %d, and one with epoch %d was committed on this machine; upgrade to a newer one", r.Version, r.Epoch, floor), now)
	}
}

// place is where the two systems lie.
func (m *machine) place() (upgrade.Slot, error) {
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

// proveEvery is how long a proof that failed rests.
const proveEvery = 2 * time.Second

// watchGate waits until this version has proved itself, or its time is up.
func (m *machine) watchGate(ctx context.Context) {
	services, configuration, members := m.services.Status().Watch(), m.config.Watch(), m.membership.Watch()
	rules, program := m.noRules.Watch(), m.program.Watch()
	for {
		now, again := configuration.Current(), (<-chan time.Time)(nil)
		storage, _ := m.noStorage.Get()
		waits := cmp.Or(gate(now, members.Current(), services.Current(), stored(), storage), rules.Current())
		if waits == "" {
			record, _ := m.upgrade.Get()
			if err := m.prove(ctx, now, record.NetworkReached); err != nil {
				waits, again = err.Error(), time.After(proveEvery)
			}
		}
		m.upgrade.Update(func(s upgradeState) upgradeState { s.Waits = waits; return s })
		var e slot.Event = slot.ChecksPassed{At: time.Now()}
		if why := leftFor(m.release.Version, program.Current()); why != "" {
			e = slot.ChecksFailed{Reason: why, Log: m.lastLines()}
		} else if waits != "" {
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
			case <-members.Changed():
				late.Stop()
				continue
			case <-rules.Changed():
				late.Stop()
				continue
			case <-program.Changed():
				late.Stop()
				continue
			case <-again:
				late.Stop()
				continue
			case <-late.C:
			}
			e = slot.ChecksFailed{Reason: fmt.Sprintf("version %s did not prove itself within %v: %s", m.release.Version, patience, waits), Log: m.lastLines()}
		}
		err := m.happened(ctx, e)
		_, held := e.(slot.ChecksPassed)
		// the loader would start the other one the next time: better now, and with its
		// configuration
		if held && errors.Is(err, esp.ErrNoEntry) {
			held, err = false, m.happened(ctx, slot.ChecksFailed{Reason: err.Error(), Log: m.lastLines()})
		}
		if err == nil {
			return
		}
		m.say(err.Error()) // the loader goes on counting
		if !held {
			return
		}
		select { // it is good, and its entry does not say so yet
		case <-time.After(readAgain):
		case <-ctx.Done():
			return
		}
	}
}

// gate tells what a version on trial still has to show; "" when that is everything. Without a
// configuration that is the management API, through which one can come; with one it is all that
// `orlopctl health` asks for. storage is why there is no STATE: the version before had one, or it
// could not have been upgraded.
func gate(now applied, member membershipState, services []supervise.Status, stored bool, storage string) string {
	switch {
	case storage != "":
		return "storage: " + storage
	case stored && now.config == nil:
		return "configuration: the stored one cannot be used"
	case now.config == nil || now.config.Cluster == nil:
		i := slices.IndexFunc(services, func(s supervise.Status) bool { return s.Name == serviceApid })
		if i < 0 || services[i].State != supervise.Running {
			return "management API: not answering yet"
		}
		return ""
	}
	for _, c := range clusterHealth(now, member, services).Checks {
		if !c.Ok && !usersTrouble(c) {
			return strings.TrimSuffix(c.Name+": "+c.Detail, ": ")
		}
	}
	return ""
}

// usersTrouble tells a fault that comes of what users have put into the cluster: it says nothing
// against a version, and a version that does away with it has to be able to come.
func usersTrouble(c *api.HealthCheck) bool {
	return strings.HasPrefix(c.Detail, nodespec.ProblemPrefix) && slices.Contains([]string{"bootstrap", "metrics", nodespec.Extensions}, c.Name)
}

// stored tells whether there is a configuration on STATE.
func stored() bool {
	_, err := os.Stat(configs.Current())
	return !errors.Is(err, fs.ErrNotExist)
}

// keepLogEvery is how often a version on trial keeps the end of its log.
const keepLogEvery = 5 * time.Second

// keepLog keeps the end of the log of a version on trial, for the case that it ends without a word:
// the version that the machine goes back to shows it.
func (m *machine) keepLog(ctx context.Context) {
	tick := time.NewTicker(keepLogEvery)
	defer tick.Stop()
	for {
		if err := records.SaveLog(m.lastLines()); err != nil {
			m.say(err.Error())
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lastLines is the end of what happened in this boot, of each a third: the events, the last words
// of the services, the kernel's.
func (m *machine) lastLines() []string {
	const third = keptLines / 3
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

// keepConfiguration keeps the configuration in force as the one that the running version is good
// with. One on trial ends with this boot, so the one before it is kept.
func (m *machine) keepConfiguration() error {
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
		Operation: s.Operation, Done: s.Done, Total: s.Total, Waits: s.Waits,
	}
	if lost := dataRestored(s.Started); !lost.At.IsZero() {
		out.DataOf, out.DroppedRevisions = timestamppb.New(lost.Saved), lost.Dropped
	}
	if !s.Started.IsZero() {
		out.Began = timestamppb.New(s.Started)
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
	if !a.m.writing.TryLock() {
		return nil, errBusy
	}
	defer a.m.writing.Unlock()
	epochs, err := upgrade.Epochs(entries, a.m.esp)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	asked := slot.RollbackRequested{Entries: entries, Reason: "rollback asked by " + caller(ctx), At: time.Now(), Epochs: epochs, Floor: a.m.floor()}
	now, _ := a.m.upgrade.Get()
	next, _, err := slot.Step(a.m.release.Version, now.Record, asked)
	if err != nil { // before a pod has to leave for nothing
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	where, err := a.m.place()
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	if err := where.VerifySlot(next.From, a.m.esp); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: version %s, to which it would go back, would not start: %v; upgrade to a newer version", next.From, err)
	}
	if err := a.m.leave(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "rollback refused: %v", err)
	}
	if err := a.m.happened(context.WithoutCancel(ctx), asked); err != nil {
		a.m.stay()
		return nil, status.Errorf(codes.FailedPrecondition, "rollback: %v", err)
	}
	now, _ = a.m.upgrade.Get()
	return &api.RollbackResponse{To: now.From}, nil
}
