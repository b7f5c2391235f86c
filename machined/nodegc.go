package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How the Node of a removed machine is deleted (docs/decisions/0028-joining.md). Other machines
// route to the pods of every Node, so the Node of a stolen machine must neither stay nor come back:
//
//  1. The control-plane machine that removes the machine deletes its Node and its pods at once
//     (server.go).
//  2. Until the API servers have synced the revocation, the machine can create its Node again. So
//     each control-plane machine, after its sync, checks for the Node every nodeGCInterval and
//     deletes it, until the Node was absent in nodeGCChecks consecutive checks. A control-plane
//     machine that was off syncs later and begins then.
//  3. A Node with a name that was reassigned is not deleted. Therefore each check first syncs the
//     memberships of a majority of the control plane. A new machine needs a ticket that a majority
//     has stored, so the sync finds a ticket for the name if there is one.
//
// The progress is not stored: after boot a control-plane machine begins again with all machines
// removed within memberTTL. A machine removed earlier has no valid certificate.

const (
	// nodeGCInterval is the interval between checks while the Nodes of removed machines stay
	// absent. Each check starts a process, on each control-plane machine and again after each boot;
	// under emulation the process takes ten seconds of processor time.
	nodeGCInterval = time.Minute
	// nodeGCMinBackoff is the longest time from the sync of a removal to the first check, and the
	// first delay after a check that failed or found a Node; that delay doubles each time. It is
	// longer than the time in which the other control-plane machines sync a removal (syncInterval)
	// and their API servers read it.
	nodeGCMinBackoff = 15 * time.Second
	// nodeGCChecks is the number of consecutive checks in which a Node must be absent. They take
	// five minutes. A machine that has failed to enforce a revocation retries that several times
	// meanwhile (resyncInterval).
	nodeGCChecks = 5
	// nodeGCTimeout bounds the deletion of Nodes: the start of a process takes seconds on a slow
	// processor, and the API server may be down.
	nodeGCTimeout = time.Minute
	// nodeGCCreatedWithin is the time after the check of the names in which a new Node still counts
	// as that of the removed machine, and is deleted: the removed machine can create it until the
	// API servers have read the revocation. A new machine with the name takes longer to create its
	// Node.
	nodeGCCreatedWithin = 15 * time.Second
)

// nodeGC tracks the deletion of Node objects of removed machines. The zero value is ready for use.
type nodeGC struct {
	sync.Mutex
	// remaining checks, by the serial number of the removed machine's ticket
	remaining map[string]int

	// error of the last check
	problem string
	// replaces the deletion in tests; nil otherwise
	deleteNodes func(ctx context.Context, names []string) (found []string, err error)
}

// due returns the names of the removed machines with remaining checks. It starts to track the
// machines that are new in removed, and stops for machines that are not in removed any more.
func (f *nodeGC) due(removed []trust.RemovedMachine) []string {
	f.Lock()
	defer f.Unlock()
	left := map[string]int{}
	var names []string
	for _, g := range removed {
		n, known := f.remaining[g.Ticket]
		if !known {
			n = nodeGCChecks
		}
		if left[g.Ticket] = n; n > 0 && !slices.Contains(names, g.Name) {
			names = append(names, g.Name)
		}
	}
	f.remaining = left
	return names
}

// record records the result of a check of names, in which the Nodes found existed. A machine that
// the methods restart or restartAll have dropped since due is skipped: all its checks are repeated.
func (f *nodeGC) record(removed []trust.RemovedMachine, names, found []string) {
	f.Lock()
	defer f.Unlock()
	for _, g := range removed {
		if _, known := f.remaining[g.Ticket]; !known {
			continue
		}
		switch {
		case slices.Contains(found, g.Name):
			f.remaining[g.Ticket] = nodeGCChecks
		case slices.Contains(names, g.Name):
			f.remaining[g.Ticket] = max(0, f.remaining[g.Ticket]-1)
		}
	}
}

// hasNew reports whether removed contains a machine for which due was not called yet, or all checks
// are to be repeated.
func (f *nodeGC) hasNew(removed []trust.RemovedMachine) bool {
	f.Lock()
	defer f.Unlock()
	return slices.ContainsFunc(removed, func(g trust.RemovedMachine) bool { _, known := f.remaining[g.Ticket]; return !known })
}

// restart repeats all checks for the machines with these tickets.
func (f *nodeGC) restart(tickets []string) {
	f.Lock()
	defer f.Unlock()
	for _, t := range tickets {
		delete(f.remaining, t)
	}
}

// restartAll repeats all checks: restored etcd data may contain the Nodes.
func (f *nodeGC) restartAll() {
	f.Lock()
	defer f.Unlock()
	f.remaining = nil
}

// runNodeGC checks for the Nodes of removed machines as long as the machine runs.
func (m *machine) runNodeGC(ctx context.Context) {
	tick := time.NewTicker(nodeGCMinBackoff)
	defer tick.Stop()
	const maxSkip = int(nodeGCInterval / nodeGCMinBackoff)
	// skip is the number of ticks until the next check; a machine that was not checked yet does not
	// wait for it. nextSkip is the value of skip after a check that failed or found a Node.
	skip, nextSkip := 0, 1
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if skip--; !m.apiServerReady() || skip > 0 && !m.nodeGC.hasNew(m.removedMachines()) {
			continue
		}
		if m.collectNodes(ctx) {
			skip, nextSkip = maxSkip, 1
		} else {
			skip, nextSkip = nextSkip, min(2*nextSkip, maxSkip)
		}
	}
}

// apiServerReady reports whether the API server of this machine is ready.
func (m *machine) apiServerReady() bool {
	list, _ := m.services.Status().Get()
	return slices.ContainsFunc(list, func(s supervise.Status) bool {
		return s.Name == serviceKubeAPI && slices.ContainsFunc(s.Components, func(c supervise.Component) bool {
			return c.Name == componentAPIServer && c.Ready
		})
	})
}

// componentAPIServer is the component name of the API server.
const componentAPIServer = "kube-apiserver"

// removedMachines returns the removed machines that may hold a valid certificate.
func (m *machine) removedMachines() []trust.RemovedMachine {
	return m.ledger.current().RemovedSince(time.Now().Add(-memberTTL), time.Now())
}

// collectNodes checks once and reports whether no Node was there. It does nothing if no machine was
// removed lately.
func (m *machine) collectNodes(ctx context.Context) bool {
	now, _ := m.config.Get()
	if !isControlPlane(now.config) {
		return true
	}
	removed := m.removedMachines()
	names := m.nodeGC.due(removed)
	if len(names) == 0 {
		return true
	}
	found, err := m.deleteNodes(ctx, now.config, names)
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("cannot check for the Nodes of removed machines: %v; retry within %v", err, nodeGCInterval)
	} else {
		m.nodeGC.record(removed, names, found)
	}
	for _, name := range found {
		m.events.add("cluster", "operation", fmt.Sprintf("deleted the Node of removed machine %s", name))
	}
	if problem != "" && problem != m.nodeGC.problem {
		m.events.add("cluster", "failure", problem)
	}
	m.nodeGC.problem = problem
	return err == nil && len(found) == 0
}

// deleteNodes deletes the Nodes of removed machines, but not of reassigned names, and returns the
// names of the Nodes that existed.
func (m *machine) deleteNodes(ctx context.Context, c *config.Config, names []string) (found []string, err error) {
	started := time.Now() // before the check of the names (nodeGCCreatedWithin)
	vs := m.voters(c)
	synced, unreached := m.syncMemberships(ctx, vs.others, vs.majority()-vs.selfVotes())
	if len(synced)+vs.selfVotes() < vs.majority() {
		return nil, fmt.Errorf("%d of %d control-plane machines answered whether the names are reassigned; quorum: %d (%s)", len(synced)+vs.selfVotes(), vs.all(), vs.majority(), strings.Join(unreached, "; "))
	}
	m.ledger.Lock()
	known, damaged := m.ledger.currentLocked(), m.ledger.damaged
	m.ledger.Unlock()
	if damaged != nil { // the members are unknown
		return nil, damaged
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return nameInUse(c, known, name, time.Now())
	})
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := limits.Within(ctx, m.runCtx, nodeGCTimeout)
	defer cancel()
	if m.nodeGC.deleteNodes != nil {
		return m.nodeGC.deleteNodes(ctx, names)
	}
	return runCommand[[]string](ctx, m, paths.UserControllers, "delete-removed-nodes", nodespec.NodeGCRequest{Names: names, MadeBefore: started.Add(nodeGCCreatedWithin)})
}

// nameInUse reports whether another machine or part of the cluster has the name of a removed
// machine.
func nameInUse(c *config.Config, known trust.Ledger, name string, now time.Time) bool {
	return reservedName(c, known, name) || known.NameInUse(name, now)
}

// withoutReassigned prepares revocations for an API server, which rejects the tokens of all pods of
// a machine that a revocation names. It removes the machine's name from a revocation if a new
// machine has the name: otherwise the API server would reject the pods of the new machine.
func withoutReassigned(c *config.Config, known trust.Ledger, refused []trust.Revocation, now time.Time) []trust.Revocation {
	for i, r := range refused {
		if r.Machine != "" && nameInUse(c, known, r.Machine, now) {
			refused[i].Machine = ""
		}
	}
	return refused
}
