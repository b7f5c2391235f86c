package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/disk"
	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// How a configuration is applied:
//
//  1. The documents are parsed and checked as a whole; a problem rejects all of them.
//  2. Changes that the running machine cannot make are rejected (package transition).
//  3. Every domain (an area of the machine such as disk, network or host) lists its operations
//     (package converge). A dry run ends here.
//  4. The documents are written to STATE and replace the present documents by a rename (package
//     configstore). After a power cut either the old or the new documents are complete. Staged
//     documents are stored beside them and replace them at the next boot, which may begin their
//     trial; during a trial, the previous documents are stored beside them (package activeconfig).
//  5. The cell of the active configuration, a variable that every domain watches, gets the new
//     value. Each domain reads its actual state, computes the difference and performs its
//     operations, now and whenever the kernel's state changes. It reports each operation as an
//     event, and a failure in its topic (a part of the machine's state that clients can watch).

// applier applies configurations.
type applier struct {
	system   *system
	disks    *disk.Controller
	network  converge.Network
	clock    clock
	identity *identity.Identity
	commands *commands
	install  *install.Manager
	volumes  *volumes.Controller
	etcd     *etcd.Manager
	power    *power.Controller
	guard    *guard.Guard

	active     *activeconfig.Manager
	facts      *facts
	reconciler *converge.Reconciler
	event      func(source, kind, message string)
}

// activationDelay is the delay before a configuration on trial becomes active, so that the answer
// is sent over the connection that the configuration may cut.
const activationDelay = time.Second

// apply converges the machine to the documents of a request, or rejects them. The error is
// config.Problems if the documents have problems.
func (a *applier) apply(ctx context.Context, filename string, r *api.ApplyRequest) (outcome, error) {
	a.active.Lock()
	defer a.active.Unlock()
	return a.applyLocked(ctx, filename, r)
}

// applyFirst is apply for a machine without a configuration. A configuration of an operator that
// came meanwhile stays.
func (a *applier) applyFirst(ctx context.Context, filename string, r *api.ApplyRequest) (outcome, error) {
	a.active.Lock()
	defer a.active.Unlock()
	if now := a.active.Current(); now.Config != nil || now.Problem != "" {
		return outcome{}, errors.New("this machine has a configuration, or one that it cannot read")
	}
	return a.applyLocked(ctx, filename, r)
}

// applyLocked is apply while the caller holds the lock a.active.
func (a *applier) applyLocked(ctx context.Context, filename string, r *api.ApplyRequest) (outcome, error) {
	before := a.active.Current()
	next, text, err := a.parseRequest(before, filename, r)
	if err != nil {
		return outcome{}, err
	}
	facts, err := a.checkTransition(ctx, before, next, r)
	if err != nil {
		return outcome{}, err
	}
	if a.system.inMemory() { // booted from a medium, not installed yet
		return a.beginInstallation(ctx, before.Config, next, text, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	}
	// The expression install.disk.match must be valid also on an installed machine, which does not
	// use it.
	if err := a.install.CheckMatch(ctx, next); err != nil {
		return outcome{}, err
	}
	if err := a.volumes.CheckMatch(ctx, next); err != nil {
		return outcome{}, err
	}
	out, err := a.dryRun(ctx, before.Config, next)
	if err != nil {
		return out, err
	}
	hardware, cutOff := facts.Warnings(next)
	out.trialPlan, out.warnings = facts.Trial, slices.Concat(hardware, out.warnings, cutOff)
	lines, err := a.reencryptSecrets(ctx, before.Config, next, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	if err != nil {
		return outcome{}, err
	}
	out.add("etcd", lines)
	staged := r.Mode == api.ApplyRequest_MODE_STAGED
	// a replacement of the pod network needs a reboot
	out.reboot = !staged && transition.ReplacesPodNetwork(before.Config, next)
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		return out, nil
	}
	out.reboot = out.reboot || r.Mode == api.ApplyRequest_MODE_REBOOT
	if staged || out.reboot {
		out.staged = next
		return a.stageForBoot(ctx, r, text, out)
	}
	if before.Config != nil && len(config.Changes(before.Config, next)) == 0 && !before.OnTrial() && r.Mode != api.ApplyRequest_MODE_TRY && a.active.Store().Staged().IsZero() {
		// The record of the call in the audit log says that it changed nothing. The text is stored
		// all the same, because its comments can differ.
		machinedapi.SetUnchanged(ctx)
	}
	return a.activate(ctx, before, next, text, r, out)
}

// outcome is the result of an apply or a dry run.
type outcome struct {
	operations []string
	restarts   []string
	reboot     bool
	install    string    // disk of the installation
	deadline   time.Time // end of the trial; zero without a trial
	warnings   []string
	// plan of the trial; its duration is 0 without a trial
	trialPlan transition.Trial
	config    *config.Config // activated configuration; nil if none
	before    *config.Config // the configuration that it replaced; nil if none
	staged    *config.Config // configuration for the next boot; nil if none
}

// add adds the operations of a domain.
func (o *outcome) add(domain string, lines []string) {
	for _, l := range lines {
		o.operations = append(o.operations, domain+": "+l)
	}
}

// dryRun returns the changes of the next configuration and the operations of every domain for it.
func (a *applier) dryRun(ctx context.Context, before, next *config.Config) (outcome, error) {
	var out outcome
	out.add("config", config.Changes(before, next))
	dry, err := a.reconciler.DryRun(ctx, next)
	out.operations, out.restarts, out.warnings = append(out.operations, dry.Operations...), dry.Restarts, dry.Warnings
	return out, err
}

// request applies the documents of a request. Without a trial, it waits until their operations were
// tried.
func (a *applier) request(ctx context.Context, filename string, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	done, err := a.apply(ctx, filename, r)
	if err != nil {
		return nil, err
	}
	out := &api.ApplyResponse{Operations: done.operations, Restarts: done.restarts, Reboot: done.reboot, Install: done.install, Warnings: done.warnings}
	switch {
	// On trial, the configuration may cut this connection. So the answer does not wait for the
	// operations: Confirm returns the failures.
	case !done.deadline.IsZero():
		out.TrialDeadline, out.TrialDuration = timestamppb.New(done.deadline), durationpb.New(time.Until(done.deadline))
		out.Addresses = staticAddresses(done.config)
	case done.staged != nil && done.trialPlan.AfterBoot:
		out.TrialDuration, out.Addresses = durationpb.New(done.trialPlan.Duration), staticAddresses(done.staged)
	case done.config != nil:
		out.Failures = a.reconciler.AwaitConverged(ctx, done.config, nodeplan.Network(done.before))
		out.Operations = reconcile.Done(out.Operations, out.Failures)
	}
	return out, nil
}

// staticAddresses returns the addresses at which a client may have to look for the machine.
func staticAddresses(c *config.Config) (list []string) {
	for _, address := range transition.StaticAddresses(c) {
		list = append(list, address.String())
	}
	return list
}

// stageForBoot stores documents for the next boot, with their trial. If out.reboot is set, the
// machine reboots at once.
func (a *applier) stageForBoot(ctx context.Context, r *api.ApplyRequest, text []byte, out outcome) (outcome, error) {
	by := api.CallerFromContext(ctx).String()
	giveBack := func() {}
	if out.reboot {
		var err error
		if giveBack, err = permitApply(ctx, a.guard, by); err != nil {
			return outcome{}, err
		}
	}
	var err error
	if out.trialPlan.AfterBoot {
		err = a.active.Store().StageTrial(text, r.TrialName, out.trialPlan.Duration)
	} else {
		err = a.active.Store().Stage(text)
	}
	if err == nil {
		a.event("config", "config", "staged for the next boot by "+by+withoutTrial(r, out.trialPlan))
	}
	if err == nil && out.reboot {
		err = a.power.Shutdown(power.Request{To: power.Reboot, Why: "to apply a configuration, asked by " + by})
	}
	if err != nil {
		giveBack()
		return outcome{}, err
	}
	return out, nil
}

// activate stores the checked documents and sets the cell of the active configuration. The caller
// holds the lock a.active.
func (a *applier) activate(ctx context.Context, before activeconfig.Active, next *config.Config, text []byte, r *api.ApplyRequest, out outcome) (outcome, error) {
	// Without storage, transition.Check has accepted only a configuration that allows machined to
	// wipe the disk.
	if a.disks.StorageProblem() != "" {
		if err := a.disks.SetUp(ctx, disk.Config{Wipe: true}); err != nil {
			return outcome{}, fmt.Errorf("configuration refused: no disk to store it on: %w", err)
		}
	}
	// Until now, the machine's key and the operator CA of a pairing (which claimed the machine) may
	// be in memory only.
	err := errors.Join(a.identity.Persist(), ownership.PersistOwner())
	if err != nil {
		return outcome{}, err
	}
	if out.trialPlan.Duration > 0 {
		out.deadline = time.Now().Add(out.trialPlan.Duration)
		err = a.active.Store().StartTrial(text)
	} else if err = a.active.Store().Put(text); err == nil {
		err = a.active.Store().DropStaged()
	}
	if err != nil {
		return outcome{}, err
	}
	by := api.CallerFromContext(ctx).String()
	a.event("config", "config", "applied by "+by+withoutTrial(r, out.trialPlan))
	for _, change := range config.Changes(before.Config, next) {
		a.event("config", "config", change)
	}
	fresh := activeconfig.Active{Config: next, At: time.Now(), Source: "API (" + by + ")", TrialEnd: out.deadline}
	if out.trialPlan.Duration > 0 {
		fresh.TrialName = r.TrialName
		// Confirm does not wait for the network if it is unchanged.
		fresh.SameNetwork = !before.OnTrial() && reflect.DeepEqual(nodeplan.Network(before.Config), nodeplan.Network(next))
	}
	if len(out.trialPlan.CutOffs) > 0 {
		fresh.Due = time.Now().Add(activationDelay)
	}
	out.config, out.before = next, before.Config
	// If this trial replaces a trial, Tried also contains the configuration of the replaced trial:
	// the revert needs a reboot if any tried configuration needs it.
	if !out.deadline.IsZero() && before.OnTrial() {
		fresh.Tried = append(slices.Clone(before.Tried), before.Config)
	}
	a.active.Cell().Set(fresh)
	a.active.AddToHistory(text, by)
	// ConfigureAPI runs here already, and again in the reconciliation, so that the caller's next
	// call reaches the machine under its new name.
	state, _ := a.network.State.Get()
	return out, a.reconciler.ConfigureAPI(ctx, next, state)
}

// withoutTrial returns the end of the text of an event: a note if a change can cut off its caller
// and the caller asked to apply it without a trial, else an empty string.
func withoutTrial(r *api.ApplyRequest, p transition.Trial) string {
	if r.NoTrial && len(p.CutOffs) > 0 {
		return ", without a trial, although it can cut off its caller"
	}
	return ""
}

// confirm ends the trial, and returns the failed operations of the configuration.
func (a *applier) confirm(ctx context.Context, by api.Caller, name string) (failures []string, err error) {
	c, err := a.active.Confirm(ctx, by, name)
	if err != nil {
		return nil, err
	}
	return a.reconciler.AwaitConverged(ctx, c, nodeplan.Network(c)), nil
}
