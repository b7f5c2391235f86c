package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Config is the configuration to which the domains converge.
type Config struct {
	Config *config.Config // nil: none
	// Due is the time at which the domains begin to converge. It is late enough for the caller to
	// receive the answer first.
	Due time.Time
}

// Deps is the environment of a Reconciler.
type Deps struct {
	Config  cell.View[Config]
	Domains Domains
	// HostConfig returns the host settings of a configuration.
	HostConfig func(*config.Config) host.Config
	// APIFacts returns the facts on which the credentials of apid depend. NodeFacts returns the
	// facts on which the node and its services depend. Both read the ledger and STATE, and a read
	// of STATE may block.
	APIFacts, NodeFacts func(*config.Config, network.State) nodeplan.Facts
	// Each change of a value in Changes starts a reconciliation.
	Changes Changes
	// MemberProblem returns why a worker is no member of its cluster; empty if the worker is a
	// member.
	MemberProblem func() string
	// ConfigureRegistries writes the configuration of the image registries.
	ConfigureRegistries func(*config.Config, egress.Config) error
	// Enter sets the current step of the boot, with the resource for which it waits.
	Enter func(step, waitsFor string)
	// Stopping reports whether the machine shuts down. The Reconciler then changes no domain.
	Stopping func() bool
	// Event adds an event; Console also writes the line to the console.
	Event   func(source, kind, message string)
	Console func(line string)
}

// Domains is the access to the actual state of the domains.
type Domains struct {
	// StorageProblem returns why no disk is mounted for storage; empty if a disk is mounted.
	StorageProblem func() string
	InMemory       bool // the system runs from memory and writes to no disk
	// DiskConfig returns the configuration of the system disk.
	DiskConfig func(*config.Config) disk.Config
	Firewall   *firewall.Filter
	Network    Network
	Kernel     *host.Kernel
	HostFacts  func() host.Facts
	// HasIdentity reports whether the machine key exists.
	HasIdentity func() bool
	// UpdatePairing begins or ends the pairing; operators are the operator CAs of the machine.
	UpdatePairing func(c *config.Config, operators []byte)
	Services      *supervise.Manager
	Volumes       *volumes.Controller
	// ExtensionChanges returns the operations that lead to the extensions of a configuration.
	ExtensionChanges func(*config.Config) ([]string, error)
}

// Network is the controller of the network with its cells.
type Network struct {
	Controller  *network.Controller
	Config      *cell.Cell[network.Config]   // written: the input of the controller
	State       *cell.Cell[network.State]    // read
	TimeSources *cell.Cell[timesync.Sources] // written: the input of the time client
}

// Changes signal changes of values in the facts; each starts a reconciliation.
type Changes struct {
	Membership, Artifacts, Ledger, LLDPLabels, Volumes cell.View[struct{}]
}

// Reconciler converges the domains to the active configuration.
type Reconciler struct {
	deps  Deps
	mu    sync.Mutex // at most one reconciliation at a time
	state *cell.Cell[State]
	// time since which the machine has had no address; nil if it has an address
	noAddressSince atomic.Pointer[time.Time]
	// resolvers that pods do not use; guarded by mu
	unusedResolvers []string
	waitingReads    limits.Bounded // reads of WaitingServices
}

// New returns a reconciler before its first reconciliation.
func New(d Deps) *Reconciler { return &Reconciler{deps: d, state: cell.New(State{})} }

// State holds the result of the latest reconciliation.
func (r *Reconciler) State() *cell.Cell[State] { return r.state }

// Lock prevents a reconciliation until Unlock; the caller may call ConfigureAPILocked.
func (r *Reconciler) Lock() { r.mu.Lock() }

// Unlock ends Lock.
func (r *Reconciler) Unlock() { r.mu.Unlock() }

// resyncInterval is the interval at which credentials are reconciled without a change: after a step
// of the clock, the renewal of a certificate may be due at once. Reading the credentials takes less
// than a millisecond.
const resyncInterval = membership.ResyncInterval

// rulesRetry decides when nftables rules that the kernel has rejected are tried again. They are
// tried again before the next resync, because the services of the cluster may wait for the rules.
type rulesRetry struct{ rejections int }

// next returns the delay until the next attempt, given the problem of the last attempt (empty: the
// rules are active). 0 means no separate attempt: the rules are active, or the resync comes first.
func (t *rulesRetry) next(problem string) time.Duration {
	if problem == "" {
		t.rejections = 0
		return 0
	}
	t.rejections++
	delay := backoff.Backoff{Min: time.Second, Max: resyncInterval}.Delay(t.rejections)
	if delay == resyncInterval {
		return 0
	}
	return delay
}

// Run reconciles the machine each time the configuration, the addresses or one of Deps.Changes
// changes.
func (r *Reconciler) Run(ctx context.Context) {
	configs, states := r.deps.Config.Watch(), r.deps.Domains.Network.State.Watch()
	members, artifacts, ledger := r.deps.Changes.Membership.Watch(), r.deps.Changes.Artifacts.Watch(), r.deps.Changes.Ledger.Watch()
	labels, placed := r.deps.Changes.LLDPLabels.Watch(), r.deps.Changes.Volumes.Watch()
	tick := time.NewTicker(resyncInterval)
	defer tick.Stop()
	var problem string
	var retry rulesRetry
	for {
		// These values are read before the reconciliation, which can take seconds, so that the
		// select below sees a change during the reconciliation.
		now, state := configs.Current(), states.Current()
		members.Current()
		artifacts.Current()
		ledger.Current()
		labels.Current()
		placed.Current()
		if early := time.Until(now.Due); early > 0 {
			select {
			case <-time.After(early):
			case <-configs.Changed():
				continue
			case <-ctx.Done():
				return
			}
		}
		err := r.reconcile(ctx, now.Config, state)
		r.state.Update(func(s State) State { return s.next(now.Config, failuresOf(err), time.Now()) })
		switch {
		case err != nil && err.Error() != problem:
			problem = err.Error()
			r.deps.Event("config", "failure", problem)
			r.deps.Console(problem)
		case err == nil:
			problem = ""
		}
		var rules <-chan time.Time
		rejected, _ := r.deps.Domains.Firewall.Problem().Get()
		if delay := retry.next(rejected); delay > 0 {
			rules = time.After(delay)
		}
		select {
		case <-configs.Changed():
		case <-states.Changed():
		case <-members.Changed():
		case <-artifacts.Changed():
		case <-ledger.Changed():
		case <-labels.Changed():
		case <-placed.Changed():
		case <-tick.C:
		case <-rules:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile converges the machine to a configuration once (nil for none). It is idempotent.
func (r *Reconciler) reconcile(ctx context.Context, c *config.Config, state network.State) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deps.Stopping() {
		return nil
	}
	return r.lead(ctx, r.domains(), c, state)
}

// lead converges the domains in all to a configuration. First it records the loss of the address
// and reports the unused resolvers, so both happen even if a domain fails.
func (r *Reconciler) lead(ctx context.Context, all []domain, c *config.Config, state network.State) error {
	r.recordAddress(c, state)
	r.reportUnusedResolvers(c, state)
	return convergeAll(ctx, all, func() goal { return r.goal(c, state) }, r.report)
}

// recordAddress records since when the machine has no address.
func (r *Reconciler) recordAddress(c *config.Config, state network.State) {
	if len(nodeplan.Addresses(c, state)) > 0 {
		r.noAddressSince.Store(nil)
		return
	}
	now := time.Now()
	r.noAddressSince.CompareAndSwap(nil, &now)
}

// goal returns the goal of a configuration (nil for none).
func (r *Reconciler) goal(c *config.Config, state network.State) goal {
	filter := nodeplan.Firewall(c)
	return goal{
		config: c, state: state,
		network: nodeplan.Network(c), host: r.deps.HostConfig(c), firewall: filter, guard: nodeplan.Guard(c),
		api: sync.OnceValue(func() apiGoal { return r.apiGoal(c, state) }),
		node: sync.OnceValue(func() nodeplan.Want {
			facts := r.deps.NodeFacts(c, state)
			facts.Services.Exposed = r.deps.Domains.Firewall.Exposed(filter)
			since := r.noAddressSince.Load()
			facts.Services.AddressLost = since != nil && time.Since(*since) >= noAddressTime
			return nodeplan.Plan(c, facts)
		}),
	}
}

// apiGoal returns the goal of the API for a configuration (nil for none).
func (r *Reconciler) apiGoal(c *config.Config, state network.State) apiGoal {
	facts := r.deps.APIFacts(c, state)
	want, err := nodeplan.API(c, facts)
	return apiGoal{want: want, operators: facts.Trust.Callers.Operators, problem: err}
}

// ConfigureHost converges the host to a configuration at boot, before the other domains.
func (r *Reconciler) ConfigureHost(ctx context.Context, c host.Config) error {
	return r.domain("host").converge(ctx, goal{host: c}, r.report)
}

// ConfigureFirewall installs the nftables rules of a configuration at boot, before the network
// starts. If the kernel rejects rules, Run tries them again.
func (r *Reconciler) ConfigureFirewall(ctx context.Context, c *config.Config) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.domain("firewall").converge(ctx, goal{firewall: nodeplan.Firewall(c), guard: nodeplan.Guard(c)}, r.report)
}

// ConfigureAPI converges apid to a configuration, without the other domains.
func (r *Reconciler) ConfigureAPI(ctx context.Context, c *config.Config, state network.State) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ConfigureAPILocked(ctx, c, state)
}

// ConfigureAPILocked is ConfigureAPI for a caller that has called Lock.
func (r *Reconciler) ConfigureAPILocked(ctx context.Context, c *config.Config, state network.State) error {
	g := goal{config: c, state: state, api: sync.OnceValue(func() apiGoal { return r.apiGoal(c, state) })}
	return r.domain("api").converge(ctx, g, r.report)
}

// EnforceRevocations makes the revocations of the ledger effective in apid and in the API server.
func (r *Reconciler) EnforceRevocations(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, _ := r.deps.Config.Get()
	state, _ := r.deps.Domains.Network.State.Get()
	if err := r.ConfigureAPILocked(ctx, now.Config, state); err != nil {
		return err
	}
	if !now.Config.IsControlPlane() {
		return nil
	}
	w := r.goal(now.Config, state).node()
	if errors.Is(w.NodeProblem, nodeplan.ErrNoAddress) || errors.Is(w.NodeProblem, nodeplan.ErrNoNode) {
		return nil // no API server runs yet
	}
	return r.convergeCredentials(ctx, w)
}

// convergeCredentials converges the credentials of the node's processes, even while services are
// held back, because the processes may still run.
func (r *Reconciler) convergeCredentials(ctx context.Context, w nodeplan.Want) error {
	if w.NodeProblem != nil {
		return w.NodeProblem
	}
	d := credentialsDomain()
	d.want = nil
	return d.converge(ctx, goal{node: func() nodeplan.Want { return w }}, r.report)
}

// report adds an event about an operation.
func (r *Reconciler) report(done reconcile.Report) {
	r.deps.Event(done.Domain, done.Kind(), done.String())
}

// WaitingServices returns the names of the services that still have to start, restart or stop for a
// configuration, and of the services that do not run. It reads STATE; the error is
// limits.ErrUnknown if STATE does not answer.
func (r *Reconciler) WaitingServices(ctx context.Context, c *config.Config) ([]string, error) {
	return limits.Read(ctx, &r.waitingReads, "plan of the services", limits.StateTimeout, func(context.Context) ([]string, error) { return r.waitingServices(c) })
}

// CheckRunning returns an error if a service does not run with a configuration yet.
func (r *Reconciler) CheckRunning(ctx context.Context, c *config.Config, service string) error {
	waits, err := r.WaitingServices(ctx, c)
	if err == nil && slices.Contains(waits, service) {
		err = fmt.Errorf("%s does not run with the present configuration yet; wait for that (`orlopctl health`)", service)
	}
	return err
}

func (r *Reconciler) waitingServices(c *config.Config) ([]string, error) {
	state, _ := r.deps.Domains.Network.State.Get()
	want := r.goal(c, state).node().Services
	if want.Problem != nil && want.Hold != nodeplan.HoldRefused && want.Hold != nodeplan.HoldVolumes {
		return nil, want.Problem
	}
	var names []string
	for _, change := range supervise.Diff(r.deps.Domains.Services.Services(), want.All) {
		names = append(names, change.Service)
	}
	list, _ := r.deps.Domains.Services.Status().Get()
	for _, s := range list {
		if s.State != supervise.Running && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names, nil
}
