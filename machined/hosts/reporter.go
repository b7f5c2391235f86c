package hosts

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Name is the name that a machine without a configuration looks up in the search domains of its
// network.
const Name = "orlop-inventory"

const (
	maxDomains   = 4 // search domains that are looked up
	maxReceivers = 8 // addresses that get an inventory
	// sendTimeout bounds the lookup of a name, and a message to an address.
	sendTimeout = 10 * time.Second
	maxReason   = 120 // characters of a reason from an unauthenticated peer
	maxRefusal  = 600 // characters of the reason for which a configuration is rejected
)

// ReporterDeps is the environment of a Reporter.
type ReporterDeps struct {
	// Waits is true while the machine waits for a configuration.
	Waits cell.View[bool]
	// Domains are the search domains of the network.
	Domains cell.View[[]string]
	// Lookup returns the addresses of an absolute name.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// Host reads the inventory.
	Host func() inventory.Host
	// Key returns the machine key; nil before it was read.
	Key func() *ecdsa.PrivateKey
	// Send sends an inventory to an address.
	Send func(ctx context.Context, address netip.Addr, key *ecdsa.PrivateKey, h inventory.Host) (inventory.Answer, error)
	// Adopt activates the signed configuration that an address sent in its answer, or rejects it.
	Adopt func(ctx context.Context, address netip.Addr, answer inventory.Answer) error
	// Event adds an event to the machine's events.
	Event func(kind, message string)
	// Tick returns a channel that receives after a time, and a function that stops it.
	Tick func(time.Duration) (<-chan time.Time, func())
}

// Reporter sends the inventory of the machine while it waits for a configuration.
type Reporter struct {
	deps ReporterDeps
	last string // the last event, which is not repeated
}

// NewReporter returns a reporter. Run starts it.
func NewReporter(d ReporterDeps) *Reporter {
	if d.Tick == nil {
		d.Tick = func(after time.Duration) (<-chan time.Time, func()) {
			t := time.NewTimer(after)
			return t.C, func() { t.Stop() }
		}
	}
	return &Reporter{deps: d}
}

// Run sends the inventory every inventory.Interval while the machine waits, until ctx is done.
func (r *Reporter) Run(ctx context.Context) {
	waits, domains := r.deps.Waits.Watch(), r.deps.Domains.Watch()
	for ctx.Err() == nil {
		found := domains.Current()
		if waits.Current() && len(found) > 0 {
			r.report(ctx, names(found))
		}
		tick, stop := r.deps.Tick(inventory.Interval)
		select {
		case <-tick:
		case <-waits.Changed():
		case <-domains.Changed():
		case <-ctx.Done():
		}
		stop()
	}
}

// names returns the absolute names to look up.
func names(domains []string) []string {
	var out []string
	for _, d := range domains {
		d = strings.Trim(d, ".")
		if name := Name + "." + d + "."; d != "" && !slices.Contains(out, name) && len(out) < maxDomains {
			out = append(out, name)
		}
	}
	return out
}

// report sends the inventory to the addresses of the names, one after the other.
func (r *Reporter) report(ctx context.Context, names []string) {
	key := r.deps.Key()
	if key == nil {
		return
	}
	receivers := r.receivers(ctx, names)
	if len(receivers) == 0 {
		return // no machine of the site receives inventories
	}
	h, listed, why, refused := r.deps.Host(), []string{}, "", ""
	for _, address := range receivers {
		answer, err := r.send(ctx, address, key, h)
		switch {
		case err != nil:
			why = err.Error()
		case answer.Template != nil:
			// After a rejection, report tries the next address: any computer can send a
			// configuration, so this answer may be false.
			if err = r.deps.Adopt(ctx, address, answer); err == nil {
				return
			}
			refused = fmt.Sprintf("configuration from %s refused: %s", address, sanitize.ASCII(err.Error(), maxRefusal))
		case answer.Listed:
			listed = append(listed, address.String())
		default:
			why = fmt.Sprintf("%s: %s", address, sanitize.ASCII(answer.Reason, maxReason))
		}
	}
	if ctx.Err() != nil {
		return
	}
	if refused != "" {
		r.event("failure", refused)
	} else if len(listed) > 0 {
		r.event("operation", "a machine that calls itself a control plane lists this machine: "+strings.Join(listed, ", "))
	} else {
		r.event("failure", "no receiver of the inventory lists this machine: "+why)
	}
}

func (r *Reporter) send(ctx context.Context, address netip.Addr, key *ecdsa.PrivateKey, h inventory.Host) (inventory.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return r.deps.Send(ctx, address, key, h)
}

// receivers returns the addresses of the names, without duplicates. A name that does not exist is
// no error: most networks do not have the name.
func (r *Reporter) receivers(ctx context.Context, names []string) []netip.Addr {
	var out []netip.Addr
	for _, name := range names {
		found, err := r.lookup(ctx, name)
		if err != nil {
			continue
		}
		for _, a := range found {
			if a = a.Unmap(); a.IsGlobalUnicast() && !slices.Contains(out, a) && len(out) < maxReceivers {
				out = append(out, a)
			}
		}
	}
	return out
}

// lookup returns the addresses of a name. It has a deadline of its own, because a name without an
// answer must not prevent the lookup of the next name.
func (r *Reporter) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return r.deps.Lookup(ctx, name)
}

// event adds an event if it differs from the last one.
func (r *Reporter) event(kind, message string) {
	if message != r.last {
		r.last = message
		r.deps.Event(kind, message)
	}
}
