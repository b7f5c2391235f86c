package transition

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// The trial of a configuration: the machine starts it by itself for a change that can cut off the
// caller (docs/decisions/0056-lockout.md).

// Limits of a trial.
const (
	autoTrial    = time.Minute // of a cut-off change if the caller gives none
	defaultTrial = 2 * time.Minute
	// of a trial that begins with a boot: the network and the API start during the trial
	bootTrial    = 5 * time.Minute
	minTrial     = 10 * time.Second
	minBootTrial = time.Minute
	maxTrial     = time.Hour
	maxTrialName = 64 // bytes
)

// Trial says whether a configuration goes on trial, and why.
type Trial struct {
	Duration time.Duration // 0: no trial
	// the trial begins when the machine has booted with the configuration
	AfterBoot bool
	CutOffs   []string // changes that can cut off the caller
	// why there is no trial although the change needs a trial; empty otherwise
	noTrial string
}

// PlanTrial decides whether a request puts the next configuration on trial. base is the
// configuration to which the trial would revert; nil if there is none.
//
//	change can cut off   mode                   trial
//	-                    try                    at once
//	no                   any other              none
//	yes                  auto, no-reboot        at once; after the reboot if the change needs one
//	yes                  reboot                 after the reboot
//	yes                  staged                 none: checkUnconfirmed rejects it without NoTrial
//
// NoTrial and the first Cluster document exclude a trial.
func PlanTrial(base, next *config.Config, r *api.ApplyRequest) Trial {
	p := Trial{CutOffs: cutOffChanges(base, next)}
	switch {
	case r.Mode == api.ApplyRequest_MODE_TRY:
		p.Duration = trialTime(r, defaultTrial)
	case len(p.CutOffs) == 0:
	case r.NoTrial:
		p.noTrial = "the caller requested no trial"
	case base.Cluster == nil && next.Cluster != nil:
		p.noTrial = "the first Cluster document cannot be on trial: its data would stay"
	case r.Mode == api.ApplyRequest_MODE_STAGED:
		p.noTrial = "no client confirms a staged configuration at the next boot"
	case r.Mode == api.ApplyRequest_MODE_REBOOT || ReplacesPodNetwork(base, next):
		p.Duration, p.AfterBoot = trialTime(r, bootTrial), true
	default:
		p.Duration = trialTime(r, autoTrial)
	}
	return p
}

// Remark returns the end of the text of an event: a note if a change can cut off its caller and the
// caller asked to apply it without a trial, else an empty string.
func (p Trial) Remark(r *api.ApplyRequest) string {
	if r.NoTrial && len(p.CutOffs) > 0 {
		return ", without a trial, although it can cut off its caller"
	}
	return ""
}

// warnings returns the warnings for the operator, before or after the request.
func (p Trial) warnings() []string {
	var out []string
	for _, change := range p.CutOffs {
		out = append(out, fmt.Sprintf("this can cut you off: %s (%s)", change, judge(change).reason))
	}
	switch {
	case len(p.CutOffs) == 0:
	case p.noTrial != "":
		out = append(out, "the previous configuration does not become active again by itself: "+p.noTrial)
	case p.AfterBoot:
		out = append(out, fmt.Sprintf("it is on trial for %v from the reboot on: unless it is confirmed over a new connection in that time, or if the machine reboots again before, the previous configuration becomes active again", p.Duration))
	default:
		out = append(out, fmt.Sprintf("it is on trial for %v: unless it is confirmed over a new connection in that time, the previous configuration becomes active again", p.Duration))
	}
	return out
}

// trialTime returns the trial time of a request; defaultTime if it has none.
func trialTime(r *api.ApplyRequest, defaultTime time.Duration) time.Duration {
	if duration := r.GetTrialDuration().AsDuration(); duration != 0 {
		return duration
	}
	return defaultTime
}

// ReplacesPodNetwork reports whether the pod network is replaced by an external network, or the
// reverse. The network of running pods cannot be replaced: that takes a reboot, which leaves no
// state of the former network.
func ReplacesPodNetwork(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		before.Cluster.Spec.HasExternal(config.PartNetwork) != next.Cluster.Spec.HasExternal(config.PartNetwork)
}

// NeedsReboot reports whether the return from a tried configuration to the next one takes a reboot:
// parts of the former last until the next boot. Kernel modules do, and the network of running pods.
// Kernel parameters return to their former values (machined/host), but parameters of the network
// have side effects on links, addresses and routes.
func NeedsReboot(tried, next *config.Config) bool {
	net := func(name string) bool { return strings.HasPrefix(name, "net.") }
	return slices.ContainsFunc(changedSysctls(tried, next), net) || ReplacesPodNetwork(tried, next) ||
		slices.ContainsFunc(tried.Machine.Spec.KernelModules, func(module string) bool {
			return !slices.Contains(next.Machine.Spec.KernelModules, module)
		})
}

// RestoredSysctls returns the kernel parameters that return to their former values without a
// reboot, from the tried configurations to the next one.
func RestoredSysctls(tried []*config.Config, next *config.Config) (names []string) {
	for _, c := range tried {
		names = append(names, changedSysctls(c, next)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// changedSysctls returns the kernel parameters of a configuration that another one lacks, or sets
// to another value.
func changedSysctls(tried, next *config.Config) (names []string) {
	for name, value := range tried.Machine.Spec.Sysctls {
		if next.Machine.Spec.Sysctls[name] != value {
			names = append(names, name)
		}
	}
	return names
}

// StaticAddresses returns the addresses that a configuration assigns to links: a client may have to
// use them after the activation.
func StaticAddresses(c *config.Config) (list []string) {
	if c == nil {
		return nil
	}
	for _, l := range c.Network.Spec.Links {
		for _, a := range l.Addresses {
			list = append(list, a.Addr().String())
		}
	}
	return list
}
