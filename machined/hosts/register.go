package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// publishInterval is the shortest time between two values of the list for clients and controllers.
const publishInterval = 10 * time.Second

// RegisterDeps is the environment of a Register.
type RegisterDeps struct {
	// Enabled reports whether the configuration accepts inventories.
	Enabled func() bool
	// CheckSource returns an error if a source address belongs to the cluster (to a machine, a pod
	// or the control plane), or to no machine in particular (such as loopback).
	CheckSource func(netip.Addr) error
	// Members returns the fingerprints of the members of the cluster. Names returns their names,
	// and the names of the machines with a ticket to join.
	Members, Names func() []string
	// Approvals returns the approvals by rules. Operators returns the CAs of the operators, in PEM.
	Approvals func() []trust.Approval
	Operators func() []byte
	// Offer returns the configuration of a claimed machine; nil without a claim.
	Offer func(key string) *claim.Signed
	// Write writes the file of the controllers; fs.ErrNotExist: its directory does not exist yet.
	Write func(content []byte) error
	// Event adds an event to the machine's events.
	Event func(kind, message string)
	// Now is the clock.
	Now func() time.Time
}

// Register lists the machines that send their inventory to this control-plane machine. The list is
// in memory only: the machines repeat their messages.
type Register struct {
	deps      RegisterDeps
	published *cell.Cell[[]inventory.Entry]

	mu         sync.Mutex
	list       inventory.List
	callers    limits.Callers
	eventLimit *rate.Limiter // limits the events about new machines
	known      []byte        // the published list
	written    []byte        // the content of the file
	failing    bool          // the last write has failed
}

// NewRegister returns an empty register.
func NewRegister(d RegisterDeps) *Register {
	return &Register{
		deps: d, published: cell.New([]inventory.Entry{}),
		// A machine sends a message every 30 seconds (inventory.Interval).
		callers:    limits.Callers{Address: limits.Rates{Interval: 5 * time.Second, Burst: 20}, Network: limits.Rates{Interval: 100 * time.Millisecond, Burst: 200}},
		eventLimit: rate.NewLimiter(rate.Every(10*time.Second), 10),
	}
}

// Published holds the list, at most publishInterval old.
func (g *Register) Published() *cell.Cell[[]inventory.Entry] { return g.published }

// Host returns the inventory that the machine with a key has sent.
func (g *Register) Host(key string) (inventory.Host, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.list.Current(g.deps.Now()) {
		if e.Key == key {
			return e.Host, true
		}
	}
	return inventory.Host{}, false
}

// Report answers the message of a machine without a configuration.
func (g *Register) Report(r *api.ReportInventoryRequest) *api.ReportInventoryResponse {
	e, err := g.check(r)
	if err != nil {
		return &api.ReportInventoryResponse{Reason: err.Error()}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.list[e.Key]
	var answer inventory.Answer
	g.list, answer = g.list.Record(e, g.deps.Now())
	if answer.Listed && !known && g.eventLimit.AllowN(g.deps.Now(), 1) {
		g.deps.Event("operation", fmt.Sprintf("a machine without a configuration at %s, with key %s, claims the serial number %q (`orlopctl get inventory`)", e.Address, e.Key, e.Host.Serial))
	}
	out := &api.ReportInventoryResponse{Listed: answer.Listed, Reason: answer.Reason}
	if offer := g.deps.Offer(e.Key); answer.Listed && offer != nil {
		out.Documents, out.Signature = offer.Documents, offer.Signature
	}
	return out
}

// check returns the entry of a valid message. The cheap checks come first.
func (g *Register) check(r *api.ReportInventoryRequest) (inventory.Entry, error) {
	var out inventory.Entry
	if !g.callers.Allow(r.Peer) {
		return out, errors.New("too many messages from your address; wait a minute")
	}
	if !g.deps.Enabled() {
		return out, client.ErrInventoryDisabled
	}
	peer, err := netip.ParseAddrPort(r.Peer)
	if err != nil {
		return out, errors.New("cannot read the source address of the message")
	}
	source := peer.Addr().Unmap()
	if err := g.deps.CheckSource(source); err != nil {
		return out, err
	}
	key, h, err := inventory.Request{Key: r.Key, Inventory: r.Inventory, Signature: r.Signature}.Verify(r.ChannelBinding)
	if err != nil {
		return out, err
	}
	fingerprint := pki.KeyFingerprint(key)
	if slices.Contains(g.deps.Members(), fingerprint) {
		return out, errors.New("a member of the cluster has this key; an operator removes it first (`orlopctl nodes remove`)")
	}
	return inventory.Entry{Key: fingerprint, Address: source, Host: h}, nil
}

// Run publishes the list until ctx is done.
func (g *Register) Run(ctx context.Context) {
	tick := time.NewTicker(publishInterval)
	defer tick.Stop()
	for {
		g.publish()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// publish sets the cell and writes the file, if the list has changed. Machines that have joined
// leave the list. After an error, the next call tries again. Only the first of several consecutive
// errors is an event.
func (g *Register) publish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := inventory.Listing{Waiting: []inventory.Entry{}}
	if g.deps.Enabled() {
		now.Members, now.Names = append([]string{}, g.deps.Members()...), append([]string{}, g.deps.Names()...)
		now.Approvals, now.Operators = g.deps.Approvals(), g.deps.Operators()
		g.list = g.list.Without(func(key string) bool { return slices.Contains(now.Members, key) })
		now.Waiting = append(now.Waiting, g.list.Current(g.deps.Now())...)
	} else {
		g.list = nil
	}
	content, err := json.Marshal(now)
	if err == nil && !bytes.Equal(content, g.known) {
		g.known = content
		g.published.Set(now.Waiting)
	}
	if err == nil && bytes.Equal(content, g.written) {
		return
	}
	if err == nil {
		err = g.deps.Write(content)
	}
	switch {
	case err == nil:
		g.written, g.failing = content, false
	case errors.Is(err, fs.ErrNotExist): // no control plane runs here
	case !g.failing:
		g.failing = true
		g.deps.Event("failure", fmt.Sprintf("cannot pass the list to the controllers: %v; the objects of waiting machines are out of date", err))
	}
}
