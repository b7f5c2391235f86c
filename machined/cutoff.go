package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// Which changes of a configuration can cut off the caller, and what the machine does about that: it
// puts them on trial by itself (docs/decisions/0056-lockout.md).

// autoTrial is how long a change that can cut off its caller is tried when the caller names no
// time.
const autoTrial = time.Minute

// cutting are the fields, as config.Changes names them, that decide whether a caller reaches the
// machine, trusts it and is trusted by it. An entry stands for the field itself and for everything
// below it.
var cutting = []string{
	"Network.spec.links",
	"Network.spec.firewall",
	"Machine.spec.trust",
	"Machine.metadata.name", // a name in the machine's certificate, and what it tells DHCP
	"Machine.spec.kernelModules",
	"Cluster.spec.endpoint",
	// which of its addresses a machine stands for, and has in its certificate
	"Cluster.spec.controlPlanes",
	"Cluster.spec.virtualAddresses",
	"Cluster.spec.pki.machine",
	"Cluster.spec.pki.client",
	"Cluster.spec.pki.accepted.machine",
	"Cluster.spec.pki.accepted.client",
}

// cuttingSysctls are the first parts of kernel parameters that decide about packets.
var cuttingSysctls = []string{"net."}

// cutsOff returns the changes between two configurations that can cut off their caller, as
// config.Changes writes them; none when there is no configuration before. It is pure.
func cutsOff(before, next *config.Config) []string {
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(config.Changes(before, next), func(line string) bool { return !cuts(line) })
}

// cuts judges one line of config.Changes.
func cuts(line string) bool {
	field, _, _ := strings.Cut(line, ": ")
	if name, is := strings.CutPrefix(field, `Machine.spec.sysctls["`); is {
		return slices.ContainsFunc(cuttingSysctls, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	return slices.ContainsFunc(cutting, func(of string) bool {
		rest, is := strings.CutPrefix(field, of)
		return is && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// trialPlan is whether a configuration goes on trial, and why.
type trialPlan struct {
	length time.Duration // 0: it does not
	cuts   []string      // changes that can cut off the caller
	never  string        // why it cannot be tried although it should; empty: it can, or need not
}

// planTrial decides whether a request puts the next configuration on trial. base is what would come
// back: the configuration in force or, while another is on trial, the one before that; nil for
// none. It is pure.
func planTrial(base, next *config.Config, r *api.ApplyRequest) trialPlan {
	p := trialPlan{cuts: cutsOff(base, next)}
	switch {
	case r.Mode == api.ApplyRequest_MODE_TRY:
		p.length = tryFor(r, defaultTrial)
	case len(p.cuts) == 0:
	case base.Cluster == nil && next.Cluster != nil:
		p.never = "the first Cluster document cannot be tried: what it writes would stay"
	case networkChanges(base, next):
		p.never = "the machine starts anew for it"
	case r.NoTrial:
		p.never = "the caller asked for no trial"
	case automatic(r.Mode):
		p.length = tryFor(r, autoTrial)
	default:
		p.never = "what is staged for the next start is not tried"
	}
	return p
}

// automatic reports whether a mode puts a change on trial by itself. A dry run says what the mode
// auto would do.
func automatic(m api.ApplyRequest_Mode) bool {
	return m == api.ApplyRequest_MODE_UNSPECIFIED || m == api.ApplyRequest_MODE_AUTO || m == api.ApplyRequest_MODE_NO_REBOOT || m == api.ApplyRequest_MODE_DRY_RUN
}

// warnings are what an operator should know before or after the request.
func (p trialPlan) warnings() []string {
	var out []string
	for _, change := range p.cuts {
		out = append(out, "this can cut you off: "+change)
	}
	switch {
	case len(p.cuts) == 0:
	case p.never != "":
		out = append(out, "the configuration before does not come back by itself: "+p.never)
	default:
		out = append(out, fmt.Sprintf("it is tried for %v: unless it is confirmed over a new connection in that time, the configuration before comes back by itself", p.length))
	}
	return out
}

// staticAddresses are the addresses that a configuration gives to links, by which the machine may
// have to be called when it is in force.
func staticAddresses(c *config.Config) (list []netip.Addr) {
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
