package firewall

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// SetRules installs commands of nft(8), all of them or none; modules are the kernel modules that
// the commands need.
type SetRules func(ctx context.Context, commands string, modules ...string) error

// Filter is the tables of the firewall and the port guard in the kernel.
type Filter struct {
	set     SetRules
	problem *cell.Cell[string]

	mu    sync.Mutex
	rules installed
}

// installed is the state of the rules in the kernel. Filter remembers this state and does not read
// it from the kernel, because no other component changes the tables.
type installed struct {
	firewall string // commands of the firewall table; empty if none were installed
	guard    string // commands of the port guard
	// the services of the cluster have started; from then on, the former rules stay if the kernel
	// rejects new rules
	started bool
}

// NewFilter returns the filter of a kernel without the tables.
func NewFilter(set SetRules) *Filter { return &Filter{set: set, problem: cell.New("")} }

// Problem holds the reason why the wanted rules are not active; empty if they are active.
func (f *Filter) Problem() *cell.Cell[string] { return f.problem }

// SetProblem records the result of the operations of Diff.
func (f *Filter) SetProblem(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.problem.Set(text)
}

// SetStarted records that the services of the cluster have started.
func (f *Filter) SetStarted() { f.update(func(r *installed) { r.started = true }) }

// Exposed reports whether the services of the cluster must not start: the kernel has no port guard,
// or a firewall is wanted and the kernel has no firewall rules.
func (f *Filter) Exposed(want *Config) bool {
	r := f.get()
	return r.exposed(want)
}

// Diff returns the operations that install a firewall (nil for none) and a port guard.
func (f *Filter) Diff(want *Config, guard Guard) (ops []reconcile.Op) {
	have := f.get()
	if want.Commands(nodespec.PodBridge) != cmp.Or(have.firewall, Absent) {
		ops = append(ops, setFirewall{f, want})
	}
	if commands := guard.Commands(nodespec.PodBridge); commands != have.guard {
		ops = append(ops, setGuard{f, commands})
	}
	return ops
}

// get returns the installed rules.
func (f *Filter) get() installed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// update records a change of the installed rules.
func (f *Filter) update(change func(*installed)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.rules)
}

// install installs a firewall. If the kernel rejects the firewall, the former rules stay. Without
// former rules, and before the cluster's services have started, install then drops all connections
// to the machine except connections to its API.
func (r *installed) install(ctx context.Context, set SetRules, want *Config) error {
	commands := want.Commands(nodespec.PodBridge)
	err := set(ctx, commands, "nft_reject_inet")
	switch {
	case err == nil:
		r.firewall = commands
		return nil
	case want == nil || r.started || r.firewall != "":
		return fmt.Errorf("firewall: %w; the former rules stay active until a retry succeeds", err)
	}
	closed := APIOnly(paths.PortApid)
	if last := set(ctx, closed); last != nil {
		return fmt.Errorf("firewall: %w; the kernel rejects other rules too (%w): the cluster's services wait, and only port %d listens, until a retry succeeds", err, last, paths.PortApid)
	}
	r.firewall = closed
	return fmt.Errorf("firewall: %w; only port %d of the machine is reachable until a retry succeeds", err, paths.PortApid)
}

// exposed does the work of Filter.Exposed. Services that have started continue: if a later
// transaction fails, it leaves the former rules in place.
func (r *installed) exposed(want *Config) bool {
	return !r.started && (r.guard == "" || want != nil && r.firewall == "")
}

// remedy describes the protection of the machine until a retry of a failed operation succeeds.
func (r *installed) remedy() string {
	if r.started || r.guard != "" {
		return "the former rules stay active until a retry succeeds"
	}
	return fmt.Sprintf("the cluster's services wait, and only port %d listens, until a retry succeeds", paths.PortApid)
}

// setFirewall is the operation that installs or deletes the firewall table.
type setFirewall struct {
	filter *Filter
	want   *Config
}

func (s setFirewall) String() string {
	if s.want == nil {
		return "accept all connections"
	}
	return fmt.Sprintf("accept the connections of %d rules, and reject all others", len(s.want.Lines())-1)
}

// Details returns the rules, for a dry run.
func (s setFirewall) Details() []string {
	if s.want == nil {
		return []string{s.String()}
	}
	return s.want.Lines()
}

// Do is atomic: nft(8) sends one transaction to the kernel.
func (s setFirewall) Do(ctx context.Context) error {
	rules := s.filter.get()
	err := rules.install(ctx, s.filter.set, s.want)
	s.filter.update(func(r *installed) { r.firewall = rules.firewall })
	return err
}

// setGuard is the operation that installs the port guard.
type setGuard struct {
	filter   *Filter
	commands string
}

func (setGuard) String() string { return "keep Services and pods from the machine's own ports" }

// Do is atomic, like that of setFirewall.
func (s setGuard) Do(ctx context.Context) error {
	if err := s.filter.set(ctx, s.commands, "nft_chain_nat", "nft_nat", "nft_fib_inet", "nft_reject_inet"); err != nil {
		rules := s.filter.get()
		return fmt.Errorf("port guard: cannot keep Services and pods from the machine's own ports: %w; %s", err, rules.remedy())
	}
	s.filter.update(func(r *installed) { r.guard = s.commands })
	return nil
}
