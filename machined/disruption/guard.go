package disruption

import (
	"context"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// observeTimeout bounds the request to the cluster. It includes the start of two processes, and
// some seconds for a member that is down.
const observeTimeout = time.Minute

// renewTimeout bounds a renewal and a return: a forced operation waits for their end.
const renewTimeout = 20 * time.Second

// renewals is the number of renewals in the life of a turn.
const renewals = 3

// Deps is the environment of a Guard.
type Deps struct {
	// Machine returns the machine with its active configuration.
	Machine func() Machine
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// File is the record of the turn on STATE.
	File string
	// Healthy waits until the machine is healthy and no upgrade is undecided, or returns the error
	// of ctx.
	Healthy func(ctx context.Context) error
	// Undecided reports whether an upgrade is neither committed nor rolled back.
	Undecided func() bool
	// Stopping is canceled at shutdown.
	Stopping context.Context
	// Event adds an event of the package to the machine's events.
	Event func(kind, message string)
}

// State is the turn of the machine.
type State struct {
	disruption.Turn // zero if the machine has none
	// the machine has booted since it took the turn, and was not healthy yet
	Booted bool
	life   time.Duration // time from a renewal to the end of the turn
	ends   time.Time     // the time of Turn.Ends, by a clock that no correction changes
}

// none reports whether the machine has no turn.
func (s State) none() bool { return s.Turn == disruption.Turn{} }

// Guard asks the cluster before the machine is away. All methods are safe for concurrent use.
type Guard struct {
	deps   Deps
	mu     sync.Mutex // serializes the requests to the cluster
	held   *cell.Cell[State]
	writes limits.Bounded // writes to File
	// operations is the number of permitted operations that have not given the turn back.
	operations int
	stopUpkeep context.CancelFunc // nil if no upkeep runs
	reported   bool               // the events contain the failure to return the turn
}

// New returns the guard of a machine. Run returns the turn of an earlier boot.
func New(d Deps) *Guard { return &Guard{deps: d, held: cell.New(State{})} }

// Held reports whether the machine has the turn.
func (g *Guard) Held() bool { return !g.state().none() }

// State holds the turn of the machine.
func (g *Guard) State() *cell.Cell[State] { return g.held }

// Permit takes the turn for an operation of an operator if the machine needs the turn, and returns
// an error if the operation is refused and not forced. If the operation does not happen, its caller
// calls giveBack, which returns the turn unless another operation needs it.
func (g *Guard) Permit(ctx context.Context, r disruption.Request) (giveBack func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ask(ctx, r); err != nil {
		return nil, err
	}
	g.operations++
	return sync.OnceFunc(g.end), nil
}

// Confirm checks a permitted operation again: since Permit, the cluster may have changed, the turn
// may be lost, or the version after the operation may have become known.
func (g *Guard) Confirm(ctx context.Context, r disruption.Request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ask(ctx, r)
}

// ask returns an error if an operation is refused and not forced. If it returns an error, it has
// restored the previous state of the turn. The request to the cluster continues if the caller
// disconnects, because only the answer says whether the machine has the turn.
func (g *Guard) ask(ctx context.Context, r disruption.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := g.deps.Machine()
	if !m.InCluster {
		return nil
	}
	asking, cancel := context.WithTimeout(g.deps.Stopping, observeTimeout)
	defer cancel()
	before := g.state()
	err := g.check(asking, m, r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		g.restore(asking, before)
	}
	return err
}

// end ends a permitted operation that does not happen.
func (g *Guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.operations--
	if g.operations == 0 && !g.state().Booted {
		g.giveBack()
	}
}

// check observes the cluster, takes the turn, and returns the reason if the operation is refused
// and not forced.
func (g *Guard) check(ctx context.Context, m Machine, r disruption.Request) error {
	versions, control := g.observe(ctx, m, r)
	if control.Turn.Machine == m.Name {
		g.hold(State{Turn: control.Turn, Booted: g.state().Booted, life: r.TurnLife()})
	}
	no := disruption.Decide(m.Machine, r, control, versions)
	if final := g.checkLevel(ctx, m, r); final != nil && (no == nil || final.Final) {
		no = final
	}
	switch {
	case no == nil:
		return nil
	case r.Force && !no.Final:
		g.deps.Event("forced", r.Operation.Name()+" forced by "+r.By+", although: "+no.Reason)
		return nil
	}
	return no
}

// checkLevel returns a refusal if the level of the cluster excludes the version after an operation.
// check takes the turn before this call, because the level is not raised while a machine has the
// turn.
func (g *Guard) checkLevel(ctx context.Context, m Machine, r disruption.Request) *disruption.Refusal {
	if !disruption.NeedsLevel(m.Machine, r) {
		return nil
	}
	level, err := nodespec.Run[disruption.Level](ctx, g.deps.Command, paths.UserAPI, "read-level", nil)
	if err != nil {
		level = disruption.Level{Problem: err.Error()}
	}
	return disruption.CheckLevel(m.Machine, r, level)
}

// restore restores the turn that the machine had before a refused operation.
func (g *Guard) restore(ctx context.Context, before State) {
	switch {
	case g.state() == before:
	case before.none():
		g.giveBack()
	default:
		g.renew(ctx, before, time.Until(before.ends))
	}
}

// observe runs the commands that the decision needs. If a command fails, its answer has the error
// as its Problem.
func (g *Guard) observe(ctx context.Context, m Machine, r disruption.Request) (versions disruption.Versions, control disruption.ControlPlane) {
	var err error
	if disruption.NeedsVersions(m.Machine, r) {
		user := uint32(0) // root, which can read the certificate of the kubelet
		if m.ControlPlane {
			user = paths.UserControllers
		}
		if versions, err = nodespec.Run[disruption.Versions](ctx, g.deps.Command, user, "list-versions", nil); err != nil {
			versions = disruption.Versions{Problem: err.Error()}
		}
	}
	if disruption.NeedsControlPlane(m.Machine, r) {
		order := disruption.TurnRequest{Turn: r.NewTurn(m.Name, m.Address, clock()), Life: r.TurnLife(), Force: r.Force}
		if control, err = g.takeTurn(ctx, order); err != nil {
			control = disruption.ControlPlane{Problem: err.Error()}
		}
	}
	return versions, control
}

// clock returns the time for operators.
func clock() time.Time { return time.Now().UTC().Truncate(time.Second) }

func (g *Guard) takeTurn(ctx context.Context, order disruption.TurnRequest) (disruption.ControlPlane, error) {
	return nodespec.Run[disruption.ControlPlane](ctx, g.deps.Command, paths.UserAPI, "take-turn", order)
}

// state returns the turn of the machine.
func (g *Guard) state() State {
	now, _ := g.held.Get()
	return now
}

// hold records a turn that begins now, and renews the turn until the machine shuts down or returns
// it.
func (g *Guard) hold(t State) {
	g.set(t, t.life)
	g.keepUp(t.life / renewals)
}

// set records a turn that ends after a time unless it is renewed.
func (g *Guard) set(t State, life time.Duration) {
	t.ends = time.Now().Add(life)
	g.held.Set(t)
	if err := g.saveTurn(t); err != nil {
		g.deps.Event("failure", err.Error()+"; the turn ends by itself")
	}
}

// keepUp begins the upkeep of the turn after a delay.
func (g *Guard) keepUp(delay time.Duration) {
	g.stopKeeping()
	ctx, cancel := context.WithCancel(g.deps.Stopping)
	g.stopUpkeep = cancel
	panics.Go("upkeep of the turn", func() {
		for next := delay; next > 0 && backoff.Sleep(ctx, next) == nil; {
			next = g.upkeep(ctx)
		}
	})
}

func (g *Guard) stopKeeping() {
	if g.stopUpkeep != nil {
		g.stopUpkeep()
		g.stopUpkeep = nil
	}
}

// upkeep renews the turn while an operation needs it, because a drain may take an hour. If no
// operation needs the turn any more, an attempt to return it has failed, and upkeep tries to return
// it again. It returns the time until the next upkeep; 0 if there is none.
func (g *Guard) upkeep(ctx context.Context) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.state()
	switch {
	case ctx.Err() != nil || t.none():
		return 0
	case g.operations > 0:
		asking, cancel := context.WithTimeout(ctx, renewTimeout)
		defer cancel()
		return g.renew(asking, t, t.life)
	case !t.Booted: // after a boot, Run returns the turn
		g.giveBack()
	}
	return 0
}

// renew renews a turn for a time, and returns the time until the next attempt. A renewal that fails
// because etcd has no quorum is harmless: no lease ends before the quorum is back.
func (g *Guard) renew(ctx context.Context, t State, life time.Duration) time.Duration {
	next := t
	next.Ends = clock().Add(life)
	control, err := g.takeTurn(ctx, disruption.TurnRequest{Turn: next.Turn, Life: life})
	switch {
	case err == nil && control.Turn.OfAnother(t.Machine):
		g.deps.Event("failure", "this machine has lost its turn: "+control.Turn.String())
		g.drop()
		return 0
	case err != nil || control.Turn.Machine != t.Machine:
		return retryInterval
	}
	g.set(next, life)
	return t.life / renewals
}

// Return returns the turn because the machine is healthy again, or leaves the cluster. If an
// operation was permitted meanwhile, the turn stays for that operation. Return reports false if it
// must be called again.
func (g *Guard) Return() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.state()
	if g.operations > 0 && !t.none() {
		t.Booted = false
		g.held.Set(t)
		return true
	}
	return g.giveBack()
}

// giveBack returns the turn, and reports whether the machine now has no turn. A turn that cannot be
// returned ends by itself. At a shutdown, giveBack retains the turn, because the machine is away
// then.
func (g *Guard) giveBack() bool {
	t := g.state()
	if t.none() {
		return true
	}
	if g.deps.Stopping.Err() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(g.deps.Stopping, renewTimeout)
	defer cancel()
	_, err := nodespec.Run[struct{}](ctx, g.deps.Command, paths.UserAPI, "return-turn", disruption.TurnRequest{Turn: t.Turn})
	if err != nil && time.Now().Before(t.ends) {
		if !g.reported {
			g.deps.Event("failure", "cannot return the turn: "+err.Error())
		}
		g.reported = true
		if !t.Booted {
			g.keepUp(retryInterval)
		}
		return false
	}
	g.drop()
	return true
}

// drop records that the machine has no turn.
func (g *Guard) drop() {
	g.stopKeeping()
	g.reported = false
	if err := g.removeTurn(); err != nil {
		g.deps.Event("failure", err.Error())
	}
	g.held.Set(State{})
}
