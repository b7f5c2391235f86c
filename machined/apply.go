package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/approvals"
	"github.com/orlop-os/orlop/machined/configcheck"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/disk"
	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/facts"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
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
//     documents are stored separately: they replace the present documents at the next boot, where
//     their trial begins if they have one. During a trial, the previous documents are stored
//     separately, for the revert (package activeconfig).
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
	check    configcheck.Checker
	install  *install.Manager
	volumes  *volumes.Controller
	etcd     *etcd.Manager
	power    *power.Controller
	guard    *guard.Guard

	active     *activeconfig.Manager
	facts      *facts.Reader
	reconciler *converge.Reconciler
	approvals  *approvals.Gate
}

// apply converges the machine to the documents of a request, or rejects them. The error is
// config.Problems if the documents have problems.
func (a *applier) apply(ctx context.Context, filename string, r *api.ApplyRequest) (outcome, error) {
	a.active.Lock()
	defer a.active.Unlock()
	return a.applyLocked(ctx, filename, r)
}

// applyFirst is apply for a machine without a configuration. If the machine has got a configuration
// meanwhile, applyFirst changes nothing and returns an error.
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
	t, _ := a.clock.status.Get()
	next, text, err := a.active.Parse(before, filename, r, t.Synced)
	if err != nil {
		return outcome{}, err
	}
	change := facts.Change{Before: before.Config, Fallback: a.active.Fallback(before), OnTrial: before.OnTrial(), Request: r}
	facts, err := a.facts.Transition(ctx, change, next)
	if err == nil {
		err = a.check.Transition(ctx, before.Config, next, facts)
	}
	if err != nil {
		return outcome{}, err
	}
	if a.system.inMemory() { // booted from a medium, not installed yet
		return a.beginInstallation(ctx, before.Config, next, text, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	}
	// An installed machine does not use the expression install.disk.match, but the expression must
	// be valid there too.
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
	if err := a.approve(ctx, before.Config, next, r, out.answer); err != nil {
		return outcome{}, err
	}
	out.trialPlan, out.answer.Warnings, out.answer.CutOffWarnings = facts.Trial, slices.Concat(hardware, out.answer.Warnings), cutOff
	lines, err := a.etcd.DropKeys(ctx, transition.DroppedKeys(before.Config, next), r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	if err != nil {
		return outcome{}, err
	}
	out.add("etcd", lines)
	staged := r.Mode == api.ApplyRequest_MODE_STAGED
	// a replacement of the pod network needs a reboot
	out.answer.Reboot = r.Mode == api.ApplyRequest_MODE_REBOOT || !staged && transition.ReplacesPodNetwork(before.Config, next)
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		return out, nil
	}
	if staged || out.answer.Reboot {
		out.staged = next
		return a.stageForBoot(ctx, r, text, out)
	}
	if a.active.Repeats(before, next, r.Mode) {
		// The audit log records that the call changed nothing. The text is stored nevertheless,
		// because its comments can differ.
		machinedapi.SetUnchanged(ctx)
	}
	return a.activate(ctx, before, next, text, r, out)
}

// outcome is the result of an apply or a dry run.
type outcome struct {
	answer   *api.ApplyResponse // still without the fields of the trial and of the failures
	deadline time.Time          // end of the trial; zero without a trial
	// plan of the trial; its duration is 0 without a trial
	trialPlan transition.Trial
	config    *config.Config // activated configuration; nil if none
	before    *config.Config // the previous configuration; nil if none
	staged    *config.Config // configuration for the next boot; nil if none
}

// add adds the operations of a domain.
func (o *outcome) add(domain string, lines []string) {
	for _, l := range lines {
		o.answer.Operations = append(o.answer.Operations, domain+": "+l)
	}
}

// dryRun returns the changes of the next configuration and the operations of every domain for it.
func (a *applier) dryRun(ctx context.Context, before, next *config.Config) (outcome, error) {
	out := outcome{answer: &api.ApplyResponse{}}
	out.add("config", config.Changes(before, next))
	dry, err := a.reconciler.DryRun(ctx, next)
	out.answer.Operations, out.answer.Restarts, out.answer.Warnings = append(out.answer.Operations, dry.Operations...), dry.Restarts, dry.Warnings
	return out, err
}

// request applies the documents of a request. Without a trial, it returns after the first attempt
// to perform their operations.
func (a *applier) request(ctx context.Context, filename string, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	done, err := a.apply(ctx, filename, r)
	if err != nil {
		return nil, err
	}
	out := done.answer
	switch {
	// A configuration on trial may cut this connection. So the answer is sent before the operations
	// run, and Confirm returns their failures.
	case !done.deadline.IsZero():
		out.TrialDeadline, out.TrialDuration = timestamppb.New(done.deadline), durationpb.New(time.Until(done.deadline))
		out.Addresses = transition.StaticAddresses(done.config)
	case done.staged != nil && done.trialPlan.AfterBoot:
		out.TrialDuration, out.Addresses = durationpb.New(done.trialPlan.Duration), transition.StaticAddresses(done.staged)
	case done.config != nil:
		out.Failures = a.reconciler.AwaitConverged(ctx, done.config, nodeplan.Network(done.before))
		out.Operations = reconcile.Done(out.Operations, out.Failures)
	}
	return out, nil
}

// stageForBoot stores documents for the next boot, with their trial. If the answer announces a
// reboot, the machine reboots at once.
func (a *applier) stageForBoot(ctx context.Context, r *api.ApplyRequest, text []byte, out outcome) (outcome, error) {
	next := activeconfig.NewActivation(ctx, r, out.staged, text, out.trialPlan)
	if !out.trialPlan.AfterBoot {
		next.Trial = 0
	}
	giveBack, err := func() {}, error(nil)
	if out.answer.Reboot {
		if giveBack, err = a.guard.Permit(ctx, disruption.Request{Operation: disruption.Reboot, By: next.By}); err != nil {
			return outcome{}, transition.RefuseReboot(err)
		}
	}
	if err = a.active.Stage(next); err == nil && out.answer.Reboot {
		err = a.power.Shutdown(power.Request{To: power.Reboot, Why: "to apply a configuration, asked by " + next.By})
	}
	if err != nil {
		giveBack()
		return outcome{}, err
	}
	return out, nil
}

// activate stores the checked documents and makes their configuration active; a.active is locked.
func (a *applier) activate(ctx context.Context, before activeconfig.Active, next *config.Config, text []byte, r *api.ApplyRequest, out outcome) (outcome, error) {
	// If STATE and DATA are not mounted, the configuration allows machined to wipe the disk:
	// transition.Check rejects every other configuration.
	if a.disks.StorageProblem() != "" {
		if err := a.disks.SetUp(ctx, applyDiskConfig(next)); err != nil {
			return outcome{}, fmt.Errorf("configuration refused: no disk to store it on: %w", err)
		}
	}
	// Until now, the machine key and the operator CA that a pairing installed may be in memory
	// only.
	if err := errors.Join(a.identity.Persist(), ownership.PersistOwner()); err != nil {
		return outcome{}, err
	}
	fresh, err := a.active.Activate(before, activeconfig.NewActivation(ctx, r, next, text, out.trialPlan))
	if err != nil {
		return outcome{}, err
	}
	out.config, out.before, out.deadline = next, before.Config, fresh.TrialEnd
	// The reconciliation runs ConfigureAPI again later. With this first run, already the caller's
	// next call reaches the machine under its new name.
	state, _ := a.network.State.Get()
	return out, a.reconciler.ConfigureAPI(ctx, next, state)
}

// confirm ends the trial, and returns the failed operations of the configuration.
func (a *applier) confirm(ctx context.Context, by api.Caller, name string) (failures []string, err error) {
	c, err := a.active.Confirm(ctx, by, name)
	if err != nil {
		return nil, err
	}
	return a.reconciler.AwaitConverged(ctx, c, nodeplan.Network(c)), nil
}
