package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// LevelName is the name of the component that reports the level of the cluster, and ends the
// process after the level was raised.
const LevelName = "level"

const (
	// levelInterval is the time between two reads of the level.
	levelInterval = 5 * time.Second
	// describeInterval is the time between two observations of the members while the level can be
	// raised. An observation costs a request to each machine.
	describeInterval = 15 * time.Second
	// maxRaises is the number of attempts to store a level. A few are sufficient, because a member
	// changes its record only when it starts.
	maxRaises = 5
)

// raise raises the level of the cluster for a caller, or returns an error with the reason why this
// is not possible. The level is stored only if, since the observation, no member has changed its
// version and no machine has taken the turn.
func (l turns) raise(ctx context.Context, order nodespec.RaiseLevel) (nodespec.LevelRaised, error) {
	for range maxRaises {
		cluster, have, err := l.observeLevel(ctx)
		if err != nil {
			return nodespec.LevelRaised{}, fmt.Errorf("finalize refused: the cluster cannot be observed: %w; try again when etcd answers (`orlopctl etcd members`)", err)
		}
		next, no := cluster.Next()
		if no != nil {
			return nodespec.LevelRaised{}, fmt.Errorf("finalize refused: %s; %s", no.Reason, no.Remedy)
		}
		raised := nodespec.LevelRaised{From: cluster.Level, To: next}
		if next == cluster.Level {
			return raised, nil
		}
		done, err := l.storeLevel(ctx, have, levelRecord{Kubernetes: next, By: order.By, At: time.Now().UTC().Truncate(time.Second)})
		if err != nil {
			return nodespec.LevelRaised{}, fmt.Errorf("etcd: cannot store the level: %w; the same call repeats it", err)
		}
		if done {
			return raised, nil
		}
	}
	return nodespec.LevelRaised{}, errors.New("finalize refused: the members of the control plane change; wait until they are healthy (`orlopctl health`)")
}

func (l turns) storeLevel(ctx context.Context, have storedLevel, next levelRecord) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return false, err
	}
	defer c.Close()
	return have.store(ctx, c, next)
}

// presentLevel returns the level of the cluster from etcd. If etcd does not answer, it returns the
// level of the last start of etcd on this machine.
func (l localMember) presentLevel(ctx context.Context) (disruption.Level, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err == nil {
		defer c.Close()
		have, wrong := readLevel(ctx, c)
		if err = wrong; err == nil && have.level.Known() {
			return disruption.Level{Level: have.level}, nil
		}
	}
	if last, wrong := level.Read(l.dirs); wrong == nil {
		return disruption.Level{Level: last}, nil
	}
	if err == nil {
		err = errors.New("no level is stored")
	}
	return disruption.Level{Problem: err.Error()}, nil
}

// levelRunner is component LevelName.
type levelRunner struct {
	turns
	announce func(detail string)
	reported string
	observed time.Time // of the last observation of the members
	settled  bool      // the level is this executable's version, so it cannot rise further
}

// RunLevel reports the level of the cluster until ctx is done. After a raise of the level, RunLevel
// returns an error as soon as no other control-plane machine is away. The error ends the process,
// which then starts again at the new level. serving waits until the API server of this process
// answers. The component is always ready.
func RunLevel(ctx context.Context, env component.Env, serving func(context.Context) error) error {
	env.Announce(LevelName, true, "")
	if err := serving(ctx); err != nil {
		return nil // stopped before the start
	}
	r := &levelRunner{turns: turns{localMember{env.Dirs, env.Spec}.members()}, announce: env.AnnounceReady(LevelName)}
	ticker := time.NewTicker(levelInterval)
	defer ticker.Stop()
	for turnReturned := false; !turnReturned || !r.settled; {
		if !turnReturned {
			turnReturned = r.returnTurn(ctx) == nil
		}
		if err := r.pass(ctx); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// pass reports the level. It returns an error if the process must start again.
func (r *levelRunner) pass(ctx context.Context) error {
	now, err := r.presentLevel(ctx)
	switch {
	case err != nil || !now.Level.Known(): // the health of etcd reports the problem
		return nil
	case now.Level != r.spec.Level:
		return r.restart(ctx, now.Level)
	case now.Level == level.Own():
		r.settled = true
		r.report("level " + now.Level.String())
	case time.Since(r.observed) >= describeInterval:
		cluster, _, err := r.observeLevel(ctx)
		if err != nil {
			r.report(fmt.Sprintf("level %s, finalize blocked because the cluster cannot be observed: %s", now.Level, shortReason(err)))
			return nil
		}
		r.observed = time.Now()
		r.report(cluster.Describe(level.Own()))
	}
	return nil
}

func (r *levelRunner) report(detail string) {
	if detail != r.reported {
		r.reported = detail
		r.announce(detail)
	}
}

// restart returns an error that ends the process, or nil if the process has to wait for another
// machine.
func (r *levelRunner) restart(ctx context.Context, to emulation.Minor) error {
	if why := r.takeForRestart(ctx); why != "" {
		r.report(fmt.Sprintf("level %s; this machine still emulates %s and waits: %s", to, r.spec.Level, why))
		return nil
	}
	if err := level.Write(r.dirs, to); err != nil {
		return err
	}
	return level.Changed(r.spec.Level, to)
}

// takeForRestart takes the turn for a restart of the process, and returns the reason for which this
// machine has to wait; empty if it may restart.
func (r *levelRunner) takeForRestart(ctx context.Context) string {
	m := disruption.Machine{Name: r.spec.Node.Name, ControlPlane: true, Others: len(r.spec.OtherControlPlanes()) > 0}
	request := disruption.Request{Operation: disruption.Finalize, By: LevelName}
	if !m.Others {
		return ""
	}
	if held, err := r.held(ctx); err != nil {
		return err.Error()
	} else if held.Machine == m.Name && held.Operation != disruption.Finalize {
		return held.String() // an operator's operation on this machine
	}
	address := ""
	if own := r.spec.OwnAddress(); own.IsValid() {
		address = own.String()
	}
	control := r.take(ctx, disruption.TurnRequest{Turn: request.NewTurn(m.Name, address, time.Now()), Life: request.TurnLife()})
	no := disruption.Decide(m, request, control, disruption.Versions{})
	if no == nil {
		return ""
	}
	if control.Turn.Machine == m.Name {
		_ = r.giveBack(ctx, m.Name) // a turn that cannot be returned expires by itself
	}
	return no.Reason
}

// returnTurn returns the turn that this machine took for the restart.
func (r *levelRunner) returnTurn(ctx context.Context) error {
	held, err := r.held(ctx)
	if err != nil || held.Machine != r.spec.Node.Name || held.Operation != disruption.Finalize {
		return err
	}
	return r.giveBack(ctx, r.spec.Node.Name)
}

// held returns the present turn.
func (l turns) held(ctx context.Context) (disruption.Turn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return disruption.Turn{}, err
	}
	defer c.Close()
	have, err := readTurn(ctx, c)
	if err != nil {
		return disruption.Turn{}, err
	}
	return have.present(ctx, c)
}
