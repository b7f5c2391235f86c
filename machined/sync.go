package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a revocation comes to every machine of a cluster
// (docs/decisions/0021-client-certificates.md):
//
//  1. Each machine asks those that Cluster.spec.controlPlanes names, and a worker those that let it in, every few seconds and when it has started, what was revoked and
//     restored there. It knocks as a machine, and verifies them as machines.
//  2. What is news is written into its own book (trust.Book.Merge), and in force.
//  3. Control-plane machines ask each other for the roll of the cluster's members in the same way (agree.go).
//
// So whoever was away learns it from anybody who was not, and nothing has to be remembered about
// who knows what.

const (
	// learnEvery is how often the others are asked: what was revoked on one of them is in force
	// here twice that time later at most.
	learnEvery = 4 * time.Second
	// learnTime bounds one question, the connection included.
	learnTime = 4 * time.Second
)

// learnRevocations learns as long as the machine runs.
func (m *machine) learnRevocations(ctx context.Context) {
	l := learner{m: m, problems: map[netip.Addr]string{}}
	tick := time.NewTicker(learnEvery)
	defer tick.Stop()
	for configs := m.config.Watch(); ; {
		now := configs.Current()
		l.round(ctx, now)
		select {
		case <-tick.C:
		case <-configs.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// learner is the machine as one who learns.
type learner struct {
	m *machine
	// why nothing, or not all, was learnt the last time, of those that were asked
	problems map[netip.Addr]string
	// members that had the name of a control-plane machine the last time
	doubles []string
}

// round asks all of them once, at the same time.
func (l *learner) round(ctx context.Context, now applied) {
	named := l.m.teachers(now.config)
	l.m.connections.keep(named)
	maps.DeleteFunc(l.problems, func(addr netip.Addr, _ string) bool { return !slices.Contains(named, addr) })
	problems := make([]string, len(named))
	var asking sync.WaitGroup
	for i, addr := range named {
		asking.Go(func() {
			err := panics.Do("learning from "+addr.String(), func() error { return l.m.learn(ctx, addr, now.config) })
			if worker(now.config) {
				l.m.noteRemoved(err)
			}
			if err != nil {
				problems[i] = err.Error()
			}
		})
	}
	asking.Wait()
	if worker(now.config) && len(named) > 0 && !slices.ContainsFunc(problems, func(p string) bool { return p != "" }) {
		l.m.noteCounts()
	}
	for i, addr := range named {
		if problems[i] != "" && problems[i] != l.problems[addr] {
			l.m.events.add("trust", "failure", fmt.Sprintf("no revocations are learnt from %s: %s", addr, problems[i]))
		}
		if problems[i] == "" && l.problems[addr] != "" {
			l.m.events.add("trust", "state", fmt.Sprintf("revocations are learnt from %s again", addr))
		}
		l.problems[addr] = problems[i]
	}
	if controls(now.config) {
		l.tellDoubles(now.config)
	}
}

// tellDoubles says which members have the name of a control-plane machine, so that their
// certificates are for its Node. They were let in where nobody had heard of that machine yet.
func (l *learner) tellDoubles(c *config.Config) {
	known := l.m.book.known()
	var doubles []string
	for _, member := range known.Members {
		if !reservedName(c, known, member.Name) {
			continue
		}
		if doubles = append(doubles, member.Name); !slices.Contains(l.doubles, member.Name) {
			l.m.events.add("trust", "failure", fmt.Sprintf("machine %s at %s: it has joined by the name of the control plane; take it out (`orlopctl nodes remove %s`), and invite it by another name", member.Name, member.Address, member.Name))
		}
	}
	l.doubles = doubles
}

// teachers are the machines to ask: those of the configuration but this one.
func (m *machine) teachers(c *config.Config) []netip.Addr {
	if c == nil || c.Cluster == nil {
		return nil
	}
	state, _ := m.networkState.Get()
	own := ownAddresses(state)
	named := slices.Clone(c.Cluster.Spec.ControlPlanes)
	if worker(c) {
		if member, _ := m.membership.Get(); !member.Joined {
			return nil // nobody knows it yet
		}
		for _, from := range controlPlanes(c) {
			if a, err := netip.ParseAddr(from); err == nil && !slices.Contains(named, a) {
				named = append(named, a)
			}
		}
	}
	return slices.DeleteFunc(named, func(a netip.Addr) bool { return slices.Contains(own, a) })
}

// learn asks one machine, of those that configuration c names; the control plane asks for the roll,
// too.
func (m *machine) learn(ctx context.Context, addr netip.Addr, c *config.Config) error {
	asking, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	var news []trust.Revocation
	_, err := call(asking, m, addr, func(other *client.Client) (_ struct{}, err error) {
		news, err = m.book.learn(func(r *api.RevocationsRequest) (*api.RevocationsResponse, error) {
			answer, err := other.Trust.Revocations(asking, r)
			if err != nil {
				return nil, errors.New(status.Convert(err).Message())
			}
			return answer, nil
		})
		if err == nil && controls(c) {
			said := ""
			_, err = m.book.learnRoll(func(r *api.RollRequest) (*api.RollResponse, error) {
				answer, err := other.Cluster.Roll(asking, r)
				if err != nil {
					return nil, fmt.Errorf("members: %s", status.Convert(err).Message())
				}
				said = answer.Machine
				return answer, nil
			})
			if err == nil {
				err = m.book.meet(addr, said, c.Cluster.Spec.ControlPlanes)
			}
		}
		return struct{}{}, err
	})
	for _, r := range news {
		what := "is revoked"
		if r.Restored {
			what = "counts again"
		}
		m.events.add("trust", "config", fmt.Sprintf("%s %s: learnt from %s, done by %s", r, what, addr, r.By))
	}
	if len(news) == 0 {
		return err
	}
	return errors.Join(err, m.enforce(ctx))
}

// learn writes down what is news of what another machine knows.
func (b *book) learn(ask func(*api.RevocationsRequest) (*api.RevocationsResponse, error)) ([]trust.Revocation, error) {
	b.Lock()
	known, damaged := b.openLocked(), b.damaged
	b.Unlock()
	if damaged != nil {
		return nil, damaged
	}
	answer, err := ask(&api.RevocationsRequest{Digest: known.Digest()})
	if err != nil {
		return nil, err
	}
	var learnt []trust.Revocation
	for _, r := range answer.Revocations {
		learnt = append(learnt, revocationOf(r))
	}
	b.Lock()
	defer b.Unlock()
	if known = b.openLocked(); b.damaged != nil { // somebody else may have written meanwhile
		return nil, b.damaged
	}
	next, news, err := known.MergeRevocations(learnt, time.Now())
	if len(news) == 0 {
		return nil, err
	}
	if keeping := b.keepLocked(next); keeping != nil {
		return nil, keeping
	}
	return news, err
}

func (a trustAPI) Revocations(_ context.Context, r *api.RevocationsRequest) (*api.RevocationsResponse, error) {
	a.m.book.Lock()
	known, damaged := a.m.book.openLocked(), a.m.book.damaged
	a.m.book.Unlock()
	if damaged != nil {
		return nil, status.Error(codes.FailedPrecondition, damaged.Error())
	}
	out := &api.RevocationsResponse{}
	if slices.Equal(known.Digest(), r.Digest) {
		return out, nil
	}
	for _, v := range known.Revoked {
		out.Revocations = append(out.Revocations, toldRevocation(v))
	}
	return out, nil
}

// toldRevocation is one as the API has it.
func toldRevocation(r trust.Revocation) *api.Revocation {
	return &api.Revocation{Origin: r.Lineage, Name: r.Name, Machine: r.Machine, At: timestamppb.New(r.At), By: r.By, Count: r.Generation, Restored: r.Restored}
}

// revocationOf is one that was told.
func revocationOf(r *api.Revocation) trust.Revocation {
	return trust.Revocation{Lineage: r.Origin, Name: r.Name, Machine: r.Machine, At: r.At.AsTime(), By: r.By, Generation: r.Count, Restored: r.Restored}
}
