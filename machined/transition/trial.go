package transition

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// The machine starts a trial of a configuration by itself if the change can cut off its caller
// (docs/decisions/0056-lockout.md).

// The limits and the default durations of a trial.
const (
	autoTrial    = time.Minute // default of a trial that the machine starts by itself
	defaultTrial = 2 * time.Minute
	// bootTrial is the default of a trial that begins with a boot. It is longer, because the
	// network and the API start during the trial.
	bootTrial    = 5 * time.Minute
	minTrial     = 10 * time.Second
	minBootTrial = time.Minute
	maxTrial     = time.Hour
	maxTrialName = 64 // bytes
)

// Trial says whether a configuration goes on trial, and why or why not.
type Trial struct {
	Duration time.Duration // 0 if there is no trial
	// AfterBoot is true if the trial begins when the machine has booted with the configuration.
	AfterBoot bool
	CutOffs   []string // changes that can cut off the caller
	// noTrial says why there is no trial although the change can cut off the caller; empty
	// otherwise.
	noTrial string
}

// PlanTrial decides whether a request puts the next configuration on trial. base is the
// configuration to which the trial would revert; nil if there is none. The column cut-off says
// whether the change can cut off the caller.
//
//	cut-off   mode                       trial
//	-         try                        at once
//	no        any other                  none
//	yes       auto, no-reboot, dry run   at once; after the reboot if the change needs one
//	yes       reboot                     after the reboot
//	yes       staged                     none; checkUnconfirmed rejects it unless NoTrial is set
//
// Except in mode try, there is no trial if the request has NoTrial or if next adds the first
// Cluster document.
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

// Remark returns the end of the text of an event. It is a note if the change can cut off its caller
// and the caller requested no trial, else an empty string.
func (p Trial) Remark(r *api.ApplyRequest) string {
	if r.NoTrial && len(p.CutOffs) > 0 {
		return ", without a trial, although it can cut off its caller"
	}
	return ""
}

// warnings returns the warnings about changes that can cut off the caller, and about their trial.
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
		out = append(out, fmt.Sprintf("it is on trial for %v from the reboot on. Confirm it over a new connection in that time. Otherwise, or if the machine reboots again before, the previous configuration becomes active again", p.Duration))
	default:
		out = append(out, fmt.Sprintf("it is on trial for %v. Confirm it over a new connection in that time. Otherwise the previous configuration becomes active again", p.Duration))
	}
	return out
}

// trialTime returns the trial time of a request, or defaultTime if the request has none.
func trialTime(r *api.ApplyRequest, defaultTime time.Duration) time.Duration {
	if duration := r.GetTrialDuration().AsDuration(); duration != 0 {
		return duration
	}
	return defaultTime
}

// ReplacesPodNetwork reports whether an external network replaces the built-in pod network, or the
// reverse. Such a change needs a reboot: the network of running pods cannot be replaced, and a
// reboot leaves no state of the former network.
func ReplacesPodNetwork(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		before.Cluster.Spec.HasExternal(config.PartNetwork) != next.Cluster.Spec.HasExternal(config.PartNetwork)
}

// NeedsReboot reports whether a revert from the tried configuration to next needs a reboot, because
// some effects of the tried configuration last until the next boot: kernel modules, and the network
// of running pods. Kernel parameters return to their former values without a reboot
// (machined/host). But parameters of the network have side effects on links, addresses and routes,
// so a revert of these parameters needs a reboot.
func NeedsReboot(tried, next *config.Config) bool {
	net := func(name string) bool { return strings.HasPrefix(name, "net.") }
	return slices.ContainsFunc(changedSysctls(tried, next), net) || ReplacesPodNetwork(tried, next) ||
		slices.ContainsFunc(tried.Machine.Spec.KernelModules, func(module string) bool {
			return !slices.Contains(next.Machine.Spec.KernelModules, module)
		})
}

// RestoredSysctls returns the names of the kernel parameters that return to their former values
// without a reboot when next replaces the tried configurations.
func RestoredSysctls(tried []*config.Config, next *config.Config) (names []string) {
	for _, c := range tried {
		names = append(names, changedSysctls(c, next)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// changedSysctls returns the kernel parameters of tried that next lacks, or sets to another value.
func changedSysctls(tried, next *config.Config) (names []string) {
	for name, value := range tried.Machine.Spec.Sysctls {
		if next.Machine.Spec.Sysctls[name] != value {
			names = append(names, name)
		}
	}
	return names
}

// StaticAddresses returns the addresses that a configuration (nil for none) assigns to links. A
// client may have to use these addresses after the configuration becomes active.
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
