package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How Kubernetes forgets a machine that was taken out (docs/decisions/0028-joining.md). Others
// reach the pods of every Node, so the Node of a stolen machine must neither stay nor come back:
//
//  1. Whoever is asked to remove the machine deletes its Node and its pods at once (members.go).
//  2. Until an API server has heard of it, the machine can make its Node anew there. So each control-plane machine, from when it has heard
//     itself, looks for the Node every forgetEvery, and deletes it, until it was not there forgetLooks times in a row. One that was off hears
//     later, and begins then.
//  3. A name that somebody has again is left alone. More than half of the control plane is asked for that first: so many know a ticket before
//     anybody has it.
//
// How far it has come is not written down: a machine that has started begins anew with all that
// were removed within memberLife. Nothing that was removed before that has a certificate that is
// valid.

const (
	// forgetEvery is how often it is looked for the Nodes of removed machines that were not there
	// when it was looked last. A look costs a process: under emulation ten seconds of a processor,
	// on each control-plane machine, also after each of their starts.
	forgetEvery = time.Minute
	// forgetSoon is how soon it is looked after one that was there, or that it has just heard of,
	// or when a look came to nothing; the next time twice as late. It is longer than it takes
	// others to hear of a removal (learnEvery) and their API servers to read it.
	forgetSoon = 15 * time.Second
	// forgetLooks is how often in a row a Node must not be there: five minutes, in which what was
	// not in force at once is tried again (lookAgain) some times.
	forgetLooks = 5
	// forgetTime bounds deleting Nodes: a process, which takes seconds to begin where a processor
	// is slow, and an API server that may be down.
	forgetTime = time.Minute
	// forgetMade is how long after it was looked who has the name a Node may be made that is
	// deleted all the same: the API servers hear a moment later whom they refuse. A machine that is
	// invited meanwhile under that name has made none by then.
	forgetMade = 15 * time.Second
)

// forgetting is how far it is with the Nodes of removed machines. The zero value knows of none.
type forgetting struct {
	sync.Mutex
	left map[string]int // by ticket: how often its Node is looked for yet

	// why the last look came to nothing
	problem string
	// deletes those that are there; nil for the usual way
	nodes func(ctx context.Context, names []string) (there []string, err error)
}

// due are the names that are looked for, of machines that are gone. Those that it hears of for the
// first time it looks for.
func (f *forgetting) due(gone []trust.RemovedMachine) []string {
	f.Lock()
	defer f.Unlock()
	left := map[string]int{}
	var names []string
	for _, g := range gone {
		n, known := f.left[g.Ticket]
		if !known {
			n = forgetLooks
		}
		if left[g.Ticket] = n; n > 0 && !slices.Contains(names, g.Name) {
			names = append(names, g.Name)
		}
	}
	f.left = left
	return names
}

// looked notes a look for names, of which some were there. What again and afresh have asked for
// meanwhile is not known then, and is looked for anew.
func (f *forgetting) looked(gone []trust.RemovedMachine, names, there []string) {
	f.Lock()
	defer f.Unlock()
	for _, g := range gone {
		if _, known := f.left[g.Ticket]; !known {
			continue
		}
		switch {
		case slices.Contains(there, g.Name):
			f.left[g.Ticket] = forgetLooks
		case slices.Contains(names, g.Name):
			f.left[g.Ticket] = max(0, f.left[g.Ticket]-1)
		}
	}
}

// fresh tells whether some were not looked for yet.
func (f *forgetting) fresh(gone []trust.RemovedMachine) bool {
	f.Lock()
	defer f.Unlock()
	return slices.ContainsFunc(gone, func(g trust.RemovedMachine) bool { _, known := f.left[g.Ticket]; return !known })
}

// again has the machines of some tickets looked for as if it had just been heard that they were
// removed.
func (f *forgetting) again(tickets []string) {
	f.Lock()
	defer f.Unlock()
	for _, t := range tickets {
		delete(f.left, t)
	}
}

// afresh has all that were removed lately looked for as if it had just been heard: data of another
// time may hold their Nodes.
func (f *forgetting) afresh() {
	f.Lock()
	defer f.Unlock()
	f.left = nil
}

// keepForgetting looks for the Nodes of removed machines as long as the machine runs.
func (m *machine) keepForgetting(ctx context.Context) {
	tick := time.NewTicker(forgetSoon)
	defer tick.Stop()
	const most = int(forgetEvery / forgetSoon)
	// ticks without a look, and how many there are after the next one that came to something, or to
	// nothing at all
	left, pause := 0, 1
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if left--; !m.serving() || left > 0 && !m.forgetting.fresh(m.gone()) {
			continue
		}
		if m.lookForGone(ctx) {
			left, pause = most, 1
		} else {
			left, pause = pause, min(2*pause, most)
		}
	}
}

// serving tells whether the API server of this machine answers.
func (m *machine) serving() bool {
	list, _ := m.services.Status().Get()
	return slices.ContainsFunc(list, func(s supervise.Status) bool {
		return s.Name == serviceKubeAPI && slices.ContainsFunc(s.Components, func(c supervise.Component) bool {
			return c.Name == componentAPIServer && c.Ready
		})
	})
}

// componentAPIServer is the API server, as its process announces it.
const componentAPIServer = "kube-apiserver"

// gone are the machines that were taken out, and of which something may be valid yet.
func (m *machine) gone() []trust.RemovedMachine {
	return m.book.known().RemovedSince(time.Now().Add(-memberLife), time.Now())
}

// lookForGone looks once, and tells whether none was there. Where no machine was removed lately it
// does nothing.
func (m *machine) lookForGone(ctx context.Context) bool {
	now, _ := m.config.Get()
	if !controls(now.config) {
		return true
	}
	gone := m.gone()
	names := m.forgetting.due(gone)
	if len(names) == 0 {
		return true
	}
	there, err := m.forget(ctx, now.config, names)
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("the Nodes of machines that were taken out are not looked for: %v; it is tried again within %v", err, forgetEvery)
	} else {
		m.forgetting.looked(gone, names, there)
	}
	for _, name := range there {
		m.events.add("cluster", "op", fmt.Sprintf("the Node of machine %s was there, and is deleted: the machine was taken out", name))
	}
	if problem != "" && problem != m.forgetting.problem {
		m.events.add("cluster", "failure", problem)
	}
	m.forgetting.problem = problem
	return err == nil && len(there) == 0
}

// forget deletes the Nodes of machines that were taken out, but those whose name somebody has
// again, and says which were there.
func (m *machine) forget(ctx context.Context, c *config.Config, names []string) (there []string, err error) {
	asked := time.Now() // before it is looked who has the names
	of := m.electorate(c)
	heard, silent := m.learnRolls(ctx, of.others, of.majority()-of.one())
	if len(heard)+of.one() < of.majority() {
		return nil, fmt.Errorf("%d of %d control-plane machines say whether the names are somebody's again, and %d have to (%s)", len(heard)+of.one(), of.all(), of.majority(), strings.Join(silent, "; "))
	}
	m.book.Lock()
	known, damaged := m.book.openLocked(), m.book.damaged
	m.book.Unlock()
	if damaged != nil { // it does not know who is a member
		return nil, damaged
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return reservedName(c, known, name) || known.NameInUse(name, time.Now())
	})
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := m.within(ctx, forgetTime)
	defer cancel()
	if m.forgetting.nodes != nil {
		return m.forgetting.nodes(ctx, names)
	}
	return ask[[]string](ctx, m, paths.UserControllers, "forget-nodes", nodespec.NodeGCRequest{Names: names, MadeBefore: asked.Add(forgetMade)})
}

// stillGone is what an API server is told of what counts no more: a revocation names its machine
// only while nobody has the name again, because no pod of a machine of that name counts either.
func stillGone(c *config.Config, known trust.Ledger, refused []trust.Revocation, now time.Time) []trust.Revocation {
	for i, r := range refused {
		if r.Machine != "" && (reservedName(c, known, r.Machine) || known.NameInUse(r.Machine, now)) {
			refused[i].Machine = ""
		}
	}
	return refused
}
