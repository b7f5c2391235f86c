package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// retryInterval is the delay after a failed return or renewal of the turn.
const retryInterval = 15 * time.Second

// Run gives the turn that the machine took before this boot back to the cluster, as soon as the
// machine is healthy. It renews the turn of a version on trial. Any other turn ends by itself if
// the machine does not become healthy.
func (g *Guard) Run(ctx context.Context) {
	for g.state().Booted && !g.awaitHealthy(ctx) {
		if ctx.Err() != nil {
			return
		}
		g.keepBooted(ctx)
	}
	for g.state().Booted && !g.Return() {
		if backoff.Sleep(ctx, retryInterval) != nil {
			return
		}
	}
}

// keepBooted renews the turn of a version on trial, and gives back a turn that has ended.
func (g *Guard) keepBooted(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.state()
	switch {
	case !t.Booted || g.operations > 0:
		// upkeep (guard.go) renews the turn while an operation needs it; a turn of this boot is not
		// handled here
	case g.deps.Undecided():
		asking, cancel := context.WithTimeout(ctx, renewTimeout)
		defer cancel()
		g.renew(asking, t, t.life)
	case time.Now().After(t.ends):
		g.giveBack()
	}
}

// awaitHealthy waits until the machine is healthy, at most for the time after which a turn is
// renewed.
func (g *Guard) awaitHealthy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, disruption.TurnLife/renewals)
	defer cancel()
	return g.deps.Healthy(ctx) == nil
}

// Load reads the turn that the machine took before this boot. It ignores the end in the record,
// because the clock may be wrong now, and assumes that the turn has its whole life left.
func (g *Guard) Load() {
	t, err := loadTurn(g.deps.File)
	if err != nil {
		g.deps.Event("failure", err.Error())
		return
	}
	if t.Turn != (disruption.Turn{}) {
		g.held.Set(State{Turn: t.Turn, Booted: true, life: t.Life, ends: time.Now().Add(t.Life)})
	}
}

// CheckName is the name of the check of the turn.
const CheckName = "turn"

// Check returns the check of a turn; nil without a turn. After a boot the check fails until the
// turn is returned: operators wait for the health of a machine before they continue with the next
// machine.
func (s State) Check() *api.HealthCheck {
	if s.none() {
		return nil
	}
	detail := fmt.Sprintf("the machine has the turn of the control plane for its %s, asked by %s", s.Operation.Name(), s.By)
	if s.Booted {
		detail += ", and returns it when it is healthy"
	}
	return &api.HealthCheck{Name: CheckName, Ok: !s.Booted, Detail: detail, Since: timestamppb.New(s.At)}
}

// writeTimeout bounds a change of File: a machine can be rebooted even if its disk does not answer.
const writeTimeout = 5 * time.Second

// loadTurn reads the stored turn. It returns the zero value if no turn is stored.
func loadTurn(file string) (disruption.TurnRequest, error) {
	var t disruption.TurnRequest
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return disruption.TurnRequest{}, fmt.Errorf("disruption: cannot read the turn: %w", err)
	}
	return t, nil
}

// saveTurn stores a turn with its life.
func (g *Guard) saveTurn(t State) error {
	text, err := json.Marshal(disruption.TurnRequest{Turn: t.Turn, Life: t.life})
	if err == nil {
		err = g.change(func() error { return safefile.WriteFile(g.deps.File, text, 0o600) })
	}
	if err != nil {
		return fmt.Errorf("disruption: cannot store the turn: %w", err)
	}
	return nil
}

func (g *Guard) removeTurn() error {
	if err := g.change(func() error { return os.Remove(g.deps.File) }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disruption: cannot remove the turn: %w", err)
	}
	return nil
}

// change changes File within writeTimeout. If the disk completes a change after this time, File may
// still have an old turn. The next boot then gives it back.
func (g *Guard) change(do func() error) error {
	_, err := limits.Read(context.Background(), &g.writes, "record of the turn", writeTimeout, func(context.Context) (struct{}, error) { return struct{}{}, do() })
	return err
}
