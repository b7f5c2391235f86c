package transition

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// Changes of a configuration that can cut off the caller: the machine starts a trial for them by
// itself (docs/decisions/0056-lockout.md).

// Limits of a trial.
const (
	autoTrial    = time.Minute // of a cut-off change if the caller gives none
	defaultTrial = 2 * time.Minute
	minTrial     = 10 * time.Second
	maxTrial     = time.Hour
	maxTrialName = 64 // bytes
)

// cuttingFields are the fields, in the form of config.Changes, that decide whether a caller reaches
// the machine, trusts it and is trusted by it. An entry includes all fields below it.
var cuttingFields = []string{
	"Network.spec.links",
	"Network.spec.firewall",
	"Machine.spec.trust",
	"Machine.metadata.name", // a name in the machine's certificate, and the host name for DHCP
	"Machine.spec.kernelModules",
	"Cluster.spec.endpoint",
	// addresses of the machine that are in its certificate
	"Cluster.spec.controlPlanes",
	"Cluster.spec.virtualAddresses",
	"Cluster.spec.pki.machine",
	"Cluster.spec.pki.client",
	"Cluster.spec.pki.accepted.machine",
	"Cluster.spec.pki.accepted.client",
}

// cuttingSysctls are the prefixes of kernel parameters that affect packets.
var cuttingSysctls = []string{"net."}

// cutOffChanges returns the changes between two configurations that can cut off their caller, in
// the form of config.Changes; none if there is no previous configuration.
func cutOffChanges(before, next *config.Config) []string {
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(config.Changes(before, next), func(line string) bool { return !cutsOff(line) })
}

// cutsOff reports whether a line of config.Changes can cut off the caller.
func cutsOff(line string) bool {
	field, _, _ := strings.Cut(line, ": ")
	if name, is := strings.CutPrefix(field, `Machine.spec.sysctls["`); is {
		return slices.ContainsFunc(cuttingSysctls, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	return slices.ContainsFunc(cuttingFields, func(of string) bool {
		rest, is := strings.CutPrefix(field, of)
		return is && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Trial says whether a configuration goes on trial, and why.
type Trial struct {
	Duration time.Duration // 0: no trial
	CutOffs  []string      // changes that can cut off the caller
	// why there is no trial although the change needs a trial; empty otherwise
	noTrial string
}

// PlanTrial decides whether a request puts the next configuration on trial. base is the
// configuration to which the trial would revert; nil if there is none.
func PlanTrial(base, next *config.Config, r *api.ApplyRequest) Trial {
	p := Trial{CutOffs: cutOffChanges(base, next)}
	switch {
	case r.Mode == api.ApplyRequest_MODE_TRY:
		p.Duration = trialTime(r, defaultTrial)
	case len(p.CutOffs) == 0:
	case base.Cluster == nil && next.Cluster != nil:
		p.noTrial = "the first Cluster document cannot be on trial: its data would stay"
	case ReplacesPodNetwork(base, next):
		p.noTrial = "the machine reboots for it"
	case r.NoTrial:
		p.noTrial = "the caller requested no trial"
	case automatic(r.Mode):
		p.Duration = trialTime(r, autoTrial)
	default:
		p.noTrial = "a staged configuration has no trial"
	}
	return p
}

// automatic reports whether a mode starts a trial by itself. A dry run reports the result of mode
// auto.
func automatic(m api.ApplyRequest_Mode) bool {
	return m == api.ApplyRequest_MODE_UNSPECIFIED || m == api.ApplyRequest_MODE_AUTO || m == api.ApplyRequest_MODE_NO_REBOOT || m == api.ApplyRequest_MODE_DRY_RUN
}

// warnings returns the warnings for the operator, before or after the request.
func (p Trial) warnings() []string {
	var out []string
	for _, change := range p.CutOffs {
		out = append(out, "this can cut you off: "+change)
	}
	switch {
	case len(p.CutOffs) == 0:
	case p.noTrial != "":
		out = append(out, "the previous configuration does not become active again by itself: "+p.noTrial)
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

// NeedsReboot reports whether parts of a configuration last until the next boot. Kernel modules do.
// Kernel parameters revert to their former values (machined/host), but parameters of the network
// have side effects on links, addresses and routes.
func NeedsReboot(tried, next *config.Config) bool {
	t, n := tried.Machine.Spec, next.Machine.Spec
	for name, value := range t.Sysctls {
		if n.Sysctls[name] != value && slices.ContainsFunc(cuttingSysctls, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return true
		}
	}
	return slices.ContainsFunc(t.KernelModules, func(module string) bool { return !slices.Contains(n.KernelModules, module) })
}

// StaticAddresses returns the addresses that a configuration assigns to links: a client may have to
// use them after the activation.
func StaticAddresses(c *config.Config) (list []netip.Addr) {
	if c == nil {
		return nil
	}
	for _, l := range c.Network.Spec.Links {
		for _, a := range l.Addresses {
			list = append(list, a.Addr())
		}
	}
	return list
}
