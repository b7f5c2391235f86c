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
	// meanwhile (ResyncInterval).
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

// NodeGC deletes the Node objects of removed machines. Its zero value tracks the progress only.
type NodeGC struct {
	deps   *Deps
	ledger *Ledger
	quorum quorum

	mu        sync.Mutex
	remaining map[string]int // remaining checks, by the serial number of the ticket
	problem   string         // error of the last check
}

// Due returns the names of the removed machines with remaining checks. It starts to track the
// machines that are new in removed, and stops for machines that are not in removed any more.
func (f *NodeGC) Due(removed []trust.RemovedMachine) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
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
// the methods restart or RestartAll have dropped since Due is skipped: all its checks are repeated.
func (f *NodeGC) record(removed []trust.RemovedMachine, names, found []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
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

// HasNew reports whether removed contains a machine for which Due was not called yet, or all checks
// are to be repeated.
func (f *NodeGC) HasNew(removed []trust.RemovedMachine) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(removed, func(g trust.RemovedMachine) bool { _, known := f.remaining[g.Ticket]; return !known })
}

// restart repeats all checks for the machines with these tickets.
func (f *NodeGC) restart(tickets []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range tickets {
		delete(f.remaining, t)
	}
}

// RestartAll repeats all checks: restored etcd data may contain the Nodes.
func (f *NodeGC) RestartAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remaining = nil
}

// Run checks for the Nodes of removed machines as long as the machine runs.
func (f *NodeGC) Run(ctx context.Context) {
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
		skip--
		if due := skip <= 0 || f.HasNew(f.removedMachines()); !due || !f.deps.APIServerReady() {
			continue
		}
		if f.Collect(ctx) {
			skip, nextSkip = maxSkip, 1
		} else {
			skip, nextSkip = nextSkip, min(2*nextSkip, maxSkip)
		}
	}
}

// removedMachines returns the removed machines that may hold a valid certificate.
func (f *NodeGC) removedMachines() []trust.RemovedMachine {
	return f.ledger.Current().RemovedSince(f.deps.Now().Add(-memberTTL), f.deps.Now())
}

// Collect checks once and reports whether no Node was there. It does nothing if no machine was
// removed lately.
func (f *NodeGC) Collect(ctx context.Context) bool {
	c := f.deps.config()
	if !c.IsControlPlane() {
		return true
	}
	removed := f.removedMachines()
	names := f.Due(removed)
	if len(names) == 0 {
		return true
	}
	found, err := f.Delete(ctx, c, names)
	problem := ""
	if err != nil {
		problem = fmt.Sprintf("cannot check for the Nodes of removed machines: %v; retry within %v", err, nodeGCInterval)
	} else {
		f.record(removed, names, found)
	}
	for _, name := range found {
		f.deps.Event("cluster", "operation", fmt.Sprintf("deleted the Node of removed machine %s", name))
	}
	if problem != "" && problem != f.problem {
		f.deps.Event("cluster", "failure", problem)
	}
	f.problem = problem
	return err == nil && len(found) == 0
}

// Delete deletes the Nodes of removed machines, but not of reassigned names, and returns the
// names of the Nodes that existed.
func (f *NodeGC) Delete(ctx context.Context, c *config.Config, names []string) (found []string, err error) {
	started := f.deps.Now() // before the check of the names
	vs := f.quorum.voters(c)
	synced, unreached := f.quorum.sync(ctx, vs.others, vs.majority()-vs.selfVotes())
	if len(synced)+vs.selfVotes() < vs.majority() {
		return nil, fmt.Errorf("%d of %d control-plane machines answered whether the names are reassigned; quorum: %d (%s)", len(synced)+vs.selfVotes(), vs.all(), vs.majority(), strings.Join(unreached, "; "))
	}
	known, damaged := f.ledger.readable()
	if damaged != nil { // the members are unknown
		return nil, damaged
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return reservedName(c, known, name) || known.NameInUse(name, f.deps.Now())
	})
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := limits.Within(ctx, f.deps.Running, nodeGCTimeout)
	defer cancel()
	return f.deps.DeleteNodes(ctx, nodespec.NodeGCRequest{Names: names, MadeBefore: started.Add(nodeGCCreatedWithin)})
}

// Reassigned reports whether a name belongs to the control plane, to a member or to an open ticket.
func (f *NodeGC) Reassigned(c *config.Config, name string) bool {
	known := f.ledger.Current()
	return reservedName(c, known, name) || known.NameInUse(name, f.deps.Now())
}
