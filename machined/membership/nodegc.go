package membership

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
	"github.com/orlop-os/orlop/pkg/trust"
)

// How the Node of a removed machine is deleted (docs/decisions/0062-removal.md). Other machines
// route to the pods of every Node, so the Node of a stolen machine must neither stay nor come back:
//
//  1. The control-plane machine that performs the removal deletes the Node and the pods of the
//     removed machine at once (server.go).
//  2. Until the API servers have read the revocation, the removed machine can create its Node
//     again. So each control-plane machine that has synced the revocation checks for the Node every
//     nodeGCInterval, and deletes it. It stops when the Node was absent in nodeGCChecks consecutive
//     checks. A control-plane machine that was off syncs and begins later.
//  3. A Node with a name that was reassigned is not deleted. Therefore each check first syncs the
//     memberships of a majority of the control plane. A new machine needs a ticket that a majority
//     has stored, so the sync finds a ticket for the name if there is one.
//
// The progress is not stored: after boot a control-plane machine begins again with all machines
// removed within memberTTL. A machine removed earlier has no valid certificate.

const (
	// nodeGCInterval is the interval between checks while the Nodes of removed machines stay
	// absent. Each control-plane machine performs the checks, and repeats them after each boot. A
	// check starts a process, which takes ten seconds of processor time under emulation.
	nodeGCInterval = time.Minute
	// nodeGCMinBackoff is the tick of Run: the first check after the sync of a removal waits for
	// the next tick. It is also the first delay after a check that failed or found a Node; each
	// further delay is twice as long. nodeGCMinBackoff is longer than the time in which the other
	// control-plane machines sync a removal (syncInterval) and their API servers read it.
	nodeGCMinBackoff = 15 * time.Second
	// nodeGCChecks is the number of consecutive checks in which a Node must be absent. The checks
	// take five minutes. Meanwhile a control-plane machine that could not make the revocation
	// effective retries several times (ResyncInterval).
	nodeGCChecks = 5
	// nodeGCTimeout bounds the deletion of Nodes: the start of the process takes seconds on a slow
	// processor, and the API server may be down.
	nodeGCTimeout = time.Minute
	// nodeGCCreatedWithin separates the Node of a removed machine from the Node of a new machine
	// with its name. Delete deletes a Node that was created before it began, or within this time
	// after it began: until the API servers have read the revocation, the removed machine can
	// create its Node again. It spares a Node that was created later, because a new machine takes
	// longer to join and to create its Node.
	nodeGCCreatedWithin = 15 * time.Second
)

// NodeGC deletes the Node objects of removed machines. Only the methods Due, record, hasNew,
// restart and RestartAll work on the zero value, which tests use.
type NodeGC struct {
	deps   *Deps
	ledger *Ledger
	quorum quorum

	mu        sync.Mutex
	remaining map[string]int // remaining checks, by the serial number of the ticket
	problem   string         // error of the last check
}

// Due returns the names of the removed machines with remaining checks. It starts to track the
// machines that are new in the list removed, and forgets the machines that the list does not
// contain any more.
func (gc *NodeGC) Due(removed []trust.RemovedMachine) []string {
	gc.mu.Lock()
	defer gc.mu.Unlock()
	left := map[string]int{}
	var names []string
	for _, m := range removed {
		n, known := gc.remaining[m.Ticket]
		if !known {
			n = nodeGCChecks
		}
		if left[m.Ticket] = n; n > 0 && !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	gc.remaining = left
	return names
}

// record records the result of a check. names are the checked names, and found are the names of the
// Nodes that existed. It skips a machine that the method restart or RestartAll has dropped since
// the call of Due: all checks of that machine are repeated.
func (gc *NodeGC) record(removed []trust.RemovedMachine, names, found []string) {
	gc.mu.Lock()
	defer gc.mu.Unlock()
	for _, m := range removed {
		if _, known := gc.remaining[m.Ticket]; !known {
			continue
		}
		switch {
		case slices.Contains(found, m.Name):
			gc.remaining[m.Ticket] = nodeGCChecks
		case slices.Contains(names, m.Name):
			gc.remaining[m.Ticket] = max(0, gc.remaining[m.Ticket]-1)
		}
	}
}

// hasNew reports whether the list removed contains a machine for which Due was not called yet, or
// was not called since restart or RestartAll.
func (gc *NodeGC) hasNew(removed []trust.RemovedMachine) bool {
	gc.mu.Lock()
	defer gc.mu.Unlock()
	return slices.ContainsFunc(removed, func(m trust.RemovedMachine) bool { _, known := gc.remaining[m.Ticket]; return !known })
}

// restart repeats all checks for the machines with these tickets.
func (gc *NodeGC) restart(tickets []string) {
	gc.mu.Lock()
	defer gc.mu.Unlock()
	for _, t := range tickets {
		delete(gc.remaining, t)
	}
}

// RestartAll repeats all checks for all removed machines. The caller has restored etcd data, which
// may contain their Nodes.
func (gc *NodeGC) RestartAll() {
	gc.mu.Lock()
	defer gc.mu.Unlock()
	gc.remaining = nil
}

// Run checks for the Nodes of removed machines as long as the machine runs.
func (gc *NodeGC) Run(ctx context.Context) {
	tick := time.NewTicker(nodeGCMinBackoff)
	defer tick.Stop()
	const maxSkip = int(nodeGCInterval / nodeGCMinBackoff)
	// skip is the number of ticks until the next check. If hasNew reports true, the check is due at
	// the next tick, regardless of skip. nextSkip is the value of skip after a check that failed or
	// found a Node.
	skip, nextSkip := 0, 1
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		skip--
		if due := skip <= 0 || gc.hasNew(gc.removedMachines()); !due || !gc.deps.APIServerReady() {
			continue
		}
		if gc.Collect(ctx) {
			skip, nextSkip = maxSkip, 1
		} else {
			skip, nextSkip = nextSkip, min(2*nextSkip, maxSkip)
		}
	}
}

// removedMachines returns the removed machines that may hold a valid certificate.
func (gc *NodeGC) removedMachines() []trust.RemovedMachine {
	return gc.ledger.Current().RemovedSince(gc.deps.Now().Add(-memberTTL), gc.deps.Now())
}

// Collect performs a single check. It returns true if the check succeeded and found no Node. It
// also returns true, without a check, if no check is due, and on a worker.
func (gc *NodeGC) Collect(ctx context.Context) bool {
	c := gc.deps.config()
	if !c.IsControlPlane() {
		return true
	}
	removed := gc.removedMachines()
	names := gc.Due(removed)
	if len(names) == 0 {
		return true
	}
	found, err := gc.Delete(ctx, c, names)
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("cannot check for the Nodes of removed machines: %v; retry within %v", err, nodeGCInterval)
	} else {
		gc.record(removed, names, found)
	}
	for _, name := range found {
		gc.deps.Event("cluster", "operation", fmt.Sprintf("deleted the Node of removed machine %s", name))
	}
	if problem != "" && problem != gc.problem {
		gc.deps.Event("cluster", "failure", problem)
	}
	gc.problem = problem
	return err == nil && len(found) == 0
}

// Delete deletes the Nodes with these names, except names that meanwhile belong to another machine
// or ticket. It returns the names of the Nodes that existed.
func (gc *NodeGC) Delete(ctx context.Context, c *config.Config, names []string) (found []string, err error) {
	started := gc.deps.Now() // before the check of the names
	vs := gc.quorum.voters(c)
	synced, failed := gc.quorum.sync(ctx, vs.others, vs.needed())
	if len(synced) < vs.needed() {
		return nil, fmt.Errorf("%d of %d control-plane machines answered whether the names are reassigned; quorum: %d (%s)", len(synced)+vs.selfVotes(), vs.all(), vs.majority(), strings.Join(failed, "; "))
	}
	known, damaged := gc.ledger.readable()
	if damaged != nil { // the members are unknown
		return nil, damaged
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return reassigned(c, known, name, gc.deps.Now()) })
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := limits.Within(ctx, gc.deps.Running, nodeGCTimeout)
	defer cancel()
	return gc.deps.DeleteNodes(ctx, nodespec.NodeGCRequest{Names: names, MadeBefore: started.Add(nodeGCCreatedWithin)})
}

// Reassigned reports whether a name belongs to the control plane, to a member or to an open ticket.
func (gc *NodeGC) Reassigned(c *config.Config, name string) bool {
	return reassigned(c, gc.ledger.Current(), name, gc.deps.Now())
}
