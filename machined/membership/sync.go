package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a revocation reaches every machine of a cluster (docs/decisions/0068-revocation-sync.md):
//
//  1. Each machine polls its peers every few seconds, and after boot, for revocations and restored
//     names. The peers are the machines of Cluster.spec.controlPlanes; for a worker also the
//     control-plane machines that admitted it. The machine dials with its machine certificate and
//     verifies the certificate of the peer against the machine CA.
//  2. The machine merges the new revocations into its ledger (trust.Ledger.MergeRevocations) and
//     enforces them.
//  3. Control-plane machines poll each other for the membership in the same way (quorum.go).
//
// So a machine that was off receives a revocation later, from any peer that has it, and no machine
// has to record which peer knows which revocation.

const (
	// syncInterval is the interval between polls. A revocation on one control-plane machine is
	// effective here after at most twice that time.
	syncInterval = 4 * time.Second
	// syncTimeout bounds one poll, including the connection.
	syncTimeout = 4 * time.Second
)

// Run polls the peers as long as the machine runs.
func (l *Sync) Run(ctx context.Context) {
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for configs := l.deps.Config.Watch(); ; {
		now := configs.Current()
		l.pollPeers(ctx, now)
		select {
		case <-tick.C:
		case <-configs.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// Sync polls peers and merges their revocations.
type Sync struct {
	deps   *Deps
	ledger *Ledger
	peers  *Peers
	worker *Worker

	// error of the last poll, per peer
	problems map[netip.Addr]string
	// members with the name of a control-plane machine at the last poll
	nameConflicts []string
}

// pollPeers polls all peers once, in parallel.
func (l *Sync) pollPeers(ctx context.Context, c *config.Config) {
	peers := l.peers.Others(c)
	l.peers.closeExcept(peers)
	maps.DeleteFunc(l.problems, func(addr netip.Addr, _ string) bool { return !slices.Contains(peers, addr) })
	problems := make([]string, len(peers))
	var polls sync.WaitGroup
	for i, addr := range peers {
		polls.Go(func() {
			err := panics.Do("learning from "+addr.String(), func() error {
				err := l.syncWith(ctx, addr, c)
				if c.IsWorker() {
					l.worker.recordRemoved(err)
				}
				return err
			})
			if err != nil {
				problems[i] = err.Error()
			}
		})
	}
	polls.Wait()
	if c.IsWorker() && len(peers) > 0 && !slices.ContainsFunc(problems, func(p string) bool { return p != "" }) {
		l.worker.clearRemoved()
	}
	for i, addr := range peers {
		if problems[i] != "" && problems[i] != l.problems[addr] {
			l.deps.Event("trust", "failure", fmt.Sprintf("cannot sync revocations from %s: %s", addr, problems[i]))
		}
		if problems[i] == "" && l.problems[addr] != "" {
			l.deps.Event("trust", "state", fmt.Sprintf("revocations are synced from %s again", addr))
		}
		l.problems[addr] = problems[i]
	}
	if c.IsControlPlane() {
		l.reportNameConflicts(c)
	}
}

// reportNameConflicts reports members that have the name of a control-plane machine. Their
// certificates are valid for the Node of that machine. They were admitted by machines that did not
// know that control-plane machine yet.
func (l *Sync) reportNameConflicts(c *config.Config) {
	known := l.ledger.Current()
	var conflicts []string
	for _, member := range known.Members {
		if !reservedName(c, known, member.Name) {
			continue
		}
		if conflicts = append(conflicts, member.Name); !slices.Contains(l.nameConflicts, member.Name) {
			l.deps.Event("trust", "failure", fmt.Sprintf("machine %s at %s: it joined with a name of the control plane; remove it (`orlopctl nodes remove %s`), and create a ticket with another name", member.Name, member.Address, member.Name))
		}
	}
	l.nameConflicts = conflicts
}

// syncWith polls a machine that configuration c names; a control-plane machine also polls the
// membership.
func (l *Sync) syncWith(ctx context.Context, addr netip.Addr, c *config.Config) error {
	callCtx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	p := poll{ctx: callCtx}
	var added []trust.Revocation
	err := l.peers.Call(callCtx, addr, func(other *client.Client) (err error) {
		p.other = other
		if added, err = l.ledger.syncRevocations(p.revocations); err != nil || !c.IsControlPlane() {
			return err
		}
		if _, err = l.ledger.syncMembership(p.membership); err != nil {
			return err
		}
		return l.ledger.recordControlPlane(addr, p.name, c.Cluster.Spec.ControlPlanes)
	})
	for _, r := range added {
		what := "is revoked"
		if r.Restored {
			what = "is restored"
		}
		l.deps.Event("trust", "config", fmt.Sprintf("%s %s: synced from %s, done by %s", r, what, addr, r.By))
	}
	if len(added) == 0 {
		return err
	}
	return errors.Join(err, l.deps.Enforce(ctx))
}

// poll is the poll of a machine.
type poll struct {
	ctx   context.Context
	other *client.Client
	name  string // name of a control-plane machine, from its answer
}

func (p *poll) revocations(r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
	answer, err := p.other.Trust.GetRevocations(p.ctx, r)
	if err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	return answer, nil
}

func (p *poll) membership(r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
	answer, err := p.other.Cluster.GetMembership(p.ctx, r)
	if err != nil {
		return nil, fmt.Errorf("members: %s", status.Convert(err).Message())
	}
	p.name = answer.Machine
	return answer, nil
}
