package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Drift is what would be done now to make the machine as it was configured: of every domain the
// operations of a diff, as a dry run says them. A machine that is well has none, because each
// domain does them as soon as it sees them; what stays could not be done, and the events say why.
// It is looked for only while somebody watches, and at most every driftEvery, because that reads
// the disks.

const (
	driftEvery = 10 * time.Second
	// driftTime is how long a domain may take to say it. Below a second is usual.
	driftTime = 5 * time.Second
)

// driftState is what one domain would do: one of topic "drift".
type driftState struct {
	Domain string `json:"domain"`
	// as a dry run says them; none: all is as it was configured
	Operations []string `json:"operations"`
	// when a look first found that something was to be done, or could not be
	Since   time.Time `json:"since,omitzero"`
	Problem string    `json:"problem,omitempty"` // why it cannot be said, or what cannot be done
}

// well tells whether there is nothing to say.
func (s driftState) well() bool { return len(s.Operations) == 0 && s.Problem == "" }

// domain is a part of the machine that can say what it would do.
type domain struct {
	name string
	// diff says what would be done. It fails when that cannot be said, or, with operations, when
	// not all of it can be done. errNoDomain: the machine has no such part at present.
	diff func(context.Context) ([]string, error)
}

var errNoDomain = errors.New("nothing is configured here")

// drift looks for drift, for all who watch.
type drift struct {
	domains  []domain
	every    time.Duration // driftEvery
	patience time.Duration // driftTime
	// epoch changes with what the domains compare with: what was found before says nothing any
	// more. nil: it never does.
	epoch func() uint64

	mu       sync.Mutex
	states   []driftState
	revision uint64          // grows with each change
	looked   time.Time       // when states was found
	of       uint64          // epoch of states
	running  chan struct{}   // closed when the look that goes on ends; nil: none goes on
	hung     map[string]bool // domains that have not come back from an earlier look
}

// topic is the topic. A watcher is woken only for a change.
func (d *drift) topic() topic {
	return topic{
		name: "drift",
		get: func(ctx context.Context) (any, uint64, error) {
			states, revision, err := d.look(ctx)
			return states, revision, err
		},
		next: func(ctx context.Context, seen uint64) error {
			tick := time.NewTicker(d.every)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				if _, revision, err := d.look(ctx); err != nil || revision > seen {
					return err
				}
			}
		},
	}
}

// look returns the drift, which is not older than driftEvery. Those who ask at the same time share
// one look.
func (d *drift) look(ctx context.Context) ([]driftState, uint64, error) {
	for {
		d.mu.Lock()
		fresh := !d.looked.IsZero() && time.Since(d.looked) < d.every && d.of == d.present()
		states, revision := d.states, d.revision
		if !fresh && d.running == nil {
			d.running = make(chan struct{})
			panics.Go("drift", d.refresh)
		}
		running := d.running
		d.mu.Unlock()
		if fresh {
			return states, revision, nil
		}
		select {
		case <-running:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// present is the epoch of now.
func (d *drift) present() uint64 {
	if d.epoch == nil {
		return 0
	}
	return d.epoch()
}

// refresh asks all domains at the same time.
func (d *drift) refresh() {
	of := d.present() // before they look
	found := make([]*driftState, len(d.domains))
	var wait sync.WaitGroup
	for i, one := range d.domains {
		wait.Go(panics.Guarded("drift of "+one.name, func() { found[i] = d.ask(one) }))
	}
	wait.Wait()
	states := []driftState{}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, s := range found {
		if s == nil {
			continue
		}
		if !s.well() {
			s.Since = now
			if i := slices.IndexFunc(d.states, func(old driftState) bool { return old.Domain == s.Domain && !old.well() }); i >= 0 {
				s.Since = d.states[i].Since
			}
		}
		states = append(states, *s)
	}
	same := func(a, b driftState) bool {
		return a.Domain == b.Domain && a.Problem == b.Problem && a.Since.Equal(b.Since) && slices.Equal(a.Operations, b.Operations)
	}
	if d.revision == 0 || !slices.EqualFunc(d.states, states, same) {
		d.states = states
		d.revision++
	}
	d.looked, d.of = now, of
	close(d.running)
	d.running = nil
}

// ask asks one domain; nil where there is none. A domain that hangs (a disk that does not answer)
// is not asked again before it comes back.
func (d *drift) ask(one domain) *driftState {
	s := &driftState{Domain: one.name, Operations: []string{}}
	d.mu.Lock()
	hung := d.hung[one.name]
	d.mu.Unlock()
	if hung {
		s.Problem = "an earlier look has not come back"
		return s
	}
	type answer struct {
		operations []string
		err        error
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.patience)
	defer cancel()
	answers := make(chan answer, 1)
	d.mark(one.name, true)
	go func() {
		var a answer
		a.err = panics.Do("drift of "+one.name, func() (err error) { a.operations, err = one.diff(ctx); return err })
		d.mark(one.name, false)
		answers <- a
	}()
	select {
	case a := <-answers:
		if errors.Is(a.err, errNoDomain) {
			return nil
		}
		s.Operations = append(s.Operations, a.operations...)
		if a.err != nil {
			s.Problem = a.err.Error()
		}
	case <-ctx.Done():
		s.Problem = fmt.Sprintf("cannot be said within %v", d.patience)
	}
	return s
}

func (d *drift) mark(name string, hung bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = map[string]bool{}
	}
	d.hung[name] = hung
}

// newDrift returns what looks at the machine's domains. None says a secret: operations name files
// and parameters, and those that write keys do not show what they write.
func (m *machine) newDrift() *drift {
	return &drift{every: driftEvery, patience: driftTime, epoch: m.driftEpoch, domains: []domain{
		{"configuration", m.configurationDrift}, {"disk", m.diskDrift}, {"network", m.networkDrift}, {"firewall", m.firewallDrift},
		{"host", m.hostDrift}, {"door", m.doorDrift}, {"credentials", m.credentialsDrift}, {"services", m.servicesDrift},
	}}
}

// driftEpoch changes whenever another configuration is in force, and whenever one was tried to be
// put in force.
func (m *machine) driftEpoch() uint64 {
	_, configured := m.config.Get()
	_, settled := m.settled.Get()
	return configured + settled
}

// configurationDrift has no operations of its own: it says what failed the last time that all
// domains were brought to the configuration, whichever domain it was, so that nothing that settle
// does can fail without being seen here.
func (m *machine) configurationDrift(context.Context) ([]string, error) {
	c, _, err := m.inForce()
	if err != nil {
		return nil, err
	}
	s, _ := m.settled.Get()
	if s.config != c {
		return []string{"put the configuration in force"}, nil
	}
	if len(s.failures) > 0 {
		return nil, errors.New(strings.Join(s.failures, "; "))
	}
	return nil, nil
}

// firewallDrift says what the kernel should let in if that is not what it was last given.
func (m *machine) firewallDrift(context.Context) ([]string, error) {
	c, _, err := m.inForce()
	if err != nil {
		return nil, err
	}
	m.settling.Lock()
	have := cmp.Or(m.packets.firewall, firewall.Absent)
	m.settling.Unlock()
	want := firewallConfig(c)
	if have == want.Commands(nodespec.PodBridge) {
		return nil, nil
	}
	return []string{setFirewall{m: m, want: want}.String()}, nil
}

// inForce is the configuration in force, nil for none, and the network as it is. A machine that
// goes down is not as it was configured.
func (m *machine) inForce() (*config.Config, network.State, error) {
	if m.going.Load() != nil {
		return nil, network.State{}, errNoDomain
	}
	now, _ := m.config.Get()
	state, _ := m.networkState.Get()
	return now.config, state, nil
}

func (m *machine) diskDrift(ctx context.Context) ([]string, error) {
	if m.medium != "" {
		return nil, errNoDomain // it touches no disk
	}
	if _, _, err := m.inForce(); err != nil {
		return nil, err
	}
	have, err := disk.Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	want, err := disk.Plan(disk.Config{}, have)
	if err != nil {
		return nil, err
	}
	return reconcile.Print(disk.Diff(have, want, nil)), nil
}

func (m *machine) networkDrift(context.Context) ([]string, error) {
	_, state, err := m.inForce()
	if err != nil {
		return nil, err
	}
	want, _ := m.networkConfig.Get()
	lines, err := m.network.DryRun(want)
	if err != nil {
		return nil, err
	}
	// a link that is configured and not there, a lease that does not come: nothing can be done
	// about them here
	var problems []error
	for _, p := range state.Problems {
		problems = append(problems, errors.New(p))
	}
	return lines, errors.Join(problems...)
}

func (m *machine) hostDrift(ctx context.Context) ([]string, error) {
	c, _, err := m.inForce()
	if err != nil {
		return nil, err
	}
	lines, err := m.hostDryRun(ctx, c)
	if err != nil {
		return nil, err
	}
	left, err := m.kernel.UnrestorableSysctls(m.hostConfig(c))
	if err == nil && len(left) > 0 {
		err = errors.New(leftover(left))
	}
	return lines, err
}

// leftover is the line about modules that stay although the configuration no longer names them.
func leftover(modules []string) string {
	return fmt.Sprintf("kernel modules %s stay in the kernel until the next start (`orlopctl reboot`): the configuration no longer names them", strings.Join(modules, ", "))
}

func (m *machine) doorDrift(context.Context) ([]string, error) {
	c, state, err := m.inForce()
	if err != nil {
		return nil, err
	}
	if m.identity.Load() == nil {
		return nil, errNoDomain // it has not come so far
	}
	want, _, err := m.wantedDoor(c, state)
	if err != nil {
		return nil, err
	}
	return credentialsDiff(want)
}

func (m *machine) credentialsDrift(context.Context) ([]string, error) {
	c, state, err := m.inForce()
	if err != nil {
		return nil, err
	}
	if c == nil || c.Cluster == nil || m.medium != "" {
		return nil, errNoDomain
	}
	spec, err := nodeSpec(c, state, m.release)
	if err != nil {
		return nil, err
	}
	a, err := m.authorities(c)
	if err != nil {
		return nil, err
	}
	want, err := credentials.Plan(spec, a)
	if err != nil {
		return nil, err
	}
	return credentialsDiff(want)
}

func credentialsDiff(want credentials.Want) ([]string, error) {
	have, err := credentials.Read(want)
	if err != nil {
		return nil, err
	}
	return reconcile.Print(credentials.Diff(have, want)), nil
}

func (m *machine) servicesDrift(context.Context) ([]string, error) {
	c, _, err := m.inForce()
	if err != nil {
		return nil, err
	}
	if m.medium != "" {
		c = nil // it runs nothing
	}
	if c != nil {
		if err := m.able(c); err != nil {
			return nil, err
		}
	}
	want, err := m.wantedServices(c)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, change := range supervise.Diff(m.services.Services(), want) {
		lines = append(lines, change.String())
	}
	return lines, nil
}
