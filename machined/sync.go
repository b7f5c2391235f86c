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

// How a revocation reaches every machine of a cluster (docs/decisions/0021-client-certificates.md):
//
//  1. Each machine polls its peers every few seconds, and after boot, for revocations and restored
//     names. The peers are the machines of Cluster.spec.controlPlanes; for a worker also the
//     control-plane machines that admitted it. It dials with its machine certificate and verifies
//     the certificate of the peer against the machine CA.
//  2. It merges the new revocations into its ledger (trust.Ledger.MergeRevocations) and enforces
//     them.
//  3. Control-plane machines poll each other for the membership in the same way (quorum.go).
//
// So a machine that was off receives a revocation from any peer that was not, and no machine has to
// record which peer knows which revocation.

const (
	// syncInterval is the interval between polls. A revocation on one control-plane machine is
	// effective here after at most twice that time.
	syncInterval = 4 * time.Second
	// syncTimeout bounds one poll, including the connection.
	syncTimeout = 4 * time.Second
)

// runRevocationSync polls the peers as long as the machine runs.
func (m *machine) runRevocationSync(ctx context.Context) {
	l := revocationSync{m: m, problems: map[netip.Addr]string{}}
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for configs := m.config.Watch(); ; {
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

// revocationSync polls peers and merges their revocations.
type revocationSync struct {
	m *machine
	// error of the last poll, per peer
	problems map[netip.Addr]string
	// members with the name of a control-plane machine at the last poll
	nameConflicts []string
}

// pollPeers polls all peers once, in parallel.
func (l *revocationSync) pollPeers(ctx context.Context, now applied) {
	peers := l.m.syncPeers(now.config)
	l.m.peerConns.closeExcept(peers)
	maps.DeleteFunc(l.problems, func(addr netip.Addr, _ string) bool { return !slices.Contains(peers, addr) })
	problems := make([]string, len(peers))
	var polls sync.WaitGroup
	for i, addr := range peers {
		polls.Go(func() {
			err := panics.Do("learning from "+addr.String(), func() error { return l.m.syncWith(ctx, addr, now.config) })
			if isWorker(now.config) {
				l.m.recordRemoved(err)
			}
			if err != nil {
				problems[i] = err.Error()
			}
		})
	}
	polls.Wait()
	if isWorker(now.config) && len(peers) > 0 && !slices.ContainsFunc(problems, func(p string) bool { return p != "" }) {
		l.m.clearRemoved()
	}
	for i, addr := range peers {
		if problems[i] != "" && problems[i] != l.problems[addr] {
			l.m.events.add("trust", "failure", fmt.Sprintf("cannot sync revocations from %s: %s", addr, problems[i]))
		}
		if problems[i] == "" && l.problems[addr] != "" {
			l.m.events.add("trust", "state", fmt.Sprintf("revocations are synced from %s again", addr))
		}
		l.problems[addr] = problems[i]
	}
	if isControlPlane(now.config) {
		l.reportNameConflicts(now.config)
	}
}

// reportNameConflicts reports members that have the name of a control-plane machine, so that their
// certificates are valid for its Node. They were admitted by machines that did not know that
// control-plane machine yet.
func (l *revocationSync) reportNameConflicts(c *config.Config) {
	known := l.m.ledger.current()
	var conflicts []string
	for _, member := range known.Members {
		if !reservedName(c, known, member.Name) {
			continue
		}
		if conflicts = append(conflicts, member.Name); !slices.Contains(l.nameConflicts, member.Name) {
			l.m.events.add("trust", "failure", fmt.Sprintf("machine %s at %s: it joined with a name of the control plane; remove it (`orlopctl nodes remove %s`), and create a ticket with another name", member.Name, member.Address, member.Name))
		}
	}
	l.nameConflicts = conflicts
}

// syncPeers returns the machines to poll: the control plane in the configuration without this
// machine.
func (m *machine) syncPeers(c *config.Config) []netip.Addr {
	if c == nil || c.Cluster == nil {
		return nil
	}
	state, _ := m.networkState.Get()
	own := ownAddresses(state)
	named := slices.Clone(c.Cluster.Spec.ControlPlanes)
	if isWorker(c) {
		if member, _ := m.membership.Get(); !member.Joined {
			return nil // no peer knows this machine yet
		}
		for _, from := range controlPlanes(c) {
			if a, err := netip.ParseAddr(from); err == nil && !slices.Contains(named, a) {
				named = append(named, a)
			}
		}
	}
	return slices.DeleteFunc(named, func(a netip.Addr) bool { return slices.Contains(own, a) })
}

// syncWith polls a machine that configuration c names; a control-plane machine also polls the
// membership.
func (m *machine) syncWith(ctx context.Context, addr netip.Addr, c *config.Config) error {
	callCtx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	var added []trust.Revocation
	_, err := call(callCtx, m, addr, func(other *client.Client) (_ struct{}, err error) {
		added, err = m.ledger.syncRevocations(func(r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
			answer, err := other.Trust.GetRevocations(callCtx, r)
			if err != nil {
				return nil, errors.New(status.Convert(err).Message())
			}
			return answer, nil
		})
		if err == nil && isControlPlane(c) {
			name := ""
			_, err = m.ledger.syncMembership(func(r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
				answer, err := other.Cluster.GetMembership(callCtx, r)
				if err != nil {
					return nil, fmt.Errorf("members: %s", status.Convert(err).Message())
				}
				name = answer.Machine
				return answer, nil
			})
			if err == nil {
				err = m.ledger.recordControlPlane(addr, name, c.Cluster.Spec.ControlPlanes)
			}
		}
		return struct{}{}, err
	})
	for _, r := range added {
		what := "is revoked"
		if r.Restored {
			what = "is restored"
		}
		m.events.add("trust", "config", fmt.Sprintf("%s %s: synced from %s, done by %s", r, what, addr, r.By))
	}
	if len(added) == 0 {
		return err
	}
	return errors.Join(err, m.enforceRevocations(ctx))
}

// syncRevocations polls a peer, and merges and stores its new revocations.
func (b *ledger) syncRevocations(ask func(*api.GetRevocationsRequest) (*api.GetRevocationsResponse, error)) ([]trust.Revocation, error) {
	b.Lock()
	known, damaged := b.currentLocked(), b.damaged
	b.Unlock()
	if damaged != nil {
		return nil, damaged
	}
	answer, err := ask(&api.GetRevocationsRequest{Digest: known.Digest()})
	if err != nil {
		return nil, err
	}
	var received []trust.Revocation
	for _, r := range answer.Revocations {
		received = append(received, fromAPIRevocation(r))
	}
	b.Lock()
	defer b.Unlock()
	if known = b.currentLocked(); b.damaged != nil { // another call may have written meanwhile
		return nil, b.damaged
	}
	next, added, err := known.MergeRevocations(received, time.Now())
	if len(added) == 0 {
		return nil, err
	}
	if storeErr := b.storeLocked(next); storeErr != nil {
		return nil, storeErr
	}
	return added, err
}

func (a trustAPI) GetRevocations(_ context.Context, r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
	a.m.ledger.Lock()
	known, damaged := a.m.ledger.currentLocked(), a.m.ledger.damaged
	a.m.ledger.Unlock()
	if damaged != nil {
		return nil, status.Error(codes.FailedPrecondition, damaged.Error())
	}
	out := &api.GetRevocationsResponse{}
	if slices.Equal(known.Digest(), r.Digest) {
		return out, nil
	}
	for _, v := range known.Revoked {
		out.Revocations = append(out.Revocations, toAPIRevocation(v))
	}
	return out, nil
}

// toAPIRevocation converts a revocation to the API's form.
func toAPIRevocation(r trust.Revocation) *api.Revocation {
	return &api.Revocation{Lineage: r.Lineage, Name: r.Name, Machine: r.Machine, At: timestamppb.New(r.At), By: r.By, Generation: r.Generation, Restored: r.Restored}
}

// fromAPIRevocation converts a revocation from the API's form.
func fromAPIRevocation(r *api.Revocation) trust.Revocation {
	return trust.Revocation{Lineage: r.Lineage, Name: r.Name, Machine: r.Machine, At: r.At.AsTime(), By: r.By, Generation: r.Generation, Restored: r.Restored}
}
