package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The turn to be away (docs/decisions/0087-disruptions.md) is a key of etcd with a lease of etcd:
// it needs no API server, and it ends by itself if its machine does not come back.

// turnKey holds the present turn. No API server reads it.
const turnKey = "/orlop/turn"

// turns are the operations on the turn.
type turns struct{ members }

// take takes the turn for this machine. It does not take it if another machine has it, or if the
// absence of this machine does not matter. After it has taken the turn, it observes the control
// plane again, because a machine that had the turn before may be away or back by then. It returns
// the result of the last observation.
func (l turns) take(ctx context.Context, order disruption.TurnRequest) disruption.ControlPlane {
	seen := l.observe(ctx)
	if !seen.Counts() {
		return seen
	}
	held, err := l.acquire(ctx, order)
	if err == nil {
		seen = l.observe(ctx)
	}
	if err != nil && seen.Problem == "" {
		seen.Problem = "the turn cannot be taken: " + shortReason(err)
	}
	seen.Turn = held
	return seen
}

// observe returns the members of etcd, and whether they and their API servers answer.
func (l turns) observe(ctx context.Context) disruption.ControlPlane {
	socket, err := (&net.Dialer{}).DialContext(ctx, "unix", l.dirs.EtcdSocket())
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return disruption.ControlPlane{Problem: "etcd does not run on this machine", Stopped: true}
	case err != nil: // an etcd that hangs may still have a vote
		return disruption.ControlPlane{Problem: "etcd does not answer: " + err.Error()}
	}
	socket.Close()
	s := &api.EtcdStatusResponse{}
	if err := l.queryStatus(ctx, s); err != nil && len(s.Members) == 0 {
		return disruption.ControlPlane{Problem: err.Error()}
	}
	seen := disruption.ControlPlane{Leader: s.Leader != ""}
	own := l.ownIndex(s.Members)
	for i, m := range s.Members {
		member := disruption.Member{Name: m.Name, Address: addressOf(m.PeerUrls), Own: i == own, Learner: m.Learner, Problem: m.Problem}
		if member.Name == "" {
			member.Name = m.Id
		}
		if m.Problem == waitsForQuorum {
			member.Problem = "" // the member votes as soon as there is a quorum
		}
		seen.Members = append(seen.Members, member)
	}
	probeAPIServers(ctx, l.dirs, seen.Members)
	return seen
}

// addressOf returns the address in the first valid URL of a member, or "" if there is none.
func addressOf(urls []string) string {
	for _, text := range urls {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
			return u.Hostname()
		}
	}
	return ""
}

// probeAPIServers probes the API servers of the machines on which etcd answers.
func probeAPIServers(ctx context.Context, dirs dirs.Dirs, all []disruption.Member) {
	// each server has a certificate for this name (package kubeconfig)
	prober := &health.Prober{CAFile: filepath.Join(dirs.API, nodespec.CA), Name: "localhost", Path: "/readyz", Timeout: requestTimeout}
	var probing sync.WaitGroup
	for i, m := range all {
		address, err := netip.ParseAddr(m.Address)
		if m.Problem != "" || err != nil {
			continue
		}
		probing.Go(func() {
			all[i].APIServer = prober.Probe(ctx, netip.AddrPortFrom(address, paths.PortKubernetes).String()).Problem
		})
	}
	probing.Wait()
}

// acquire stores the turn of this machine, and returns it. If another machine has the turn, acquire
// returns that turn. It replaces that turn only if the request forces this (order.Force).
func (l turns) acquire(ctx context.Context, order disruption.TurnRequest) (held disruption.Turn, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return disruption.Turn{}, err
	}
	defer c.Close()
	lease, err := c.Grant(ctx, int64(max(order.Life, time.Second).Seconds()))
	if err != nil {
		return disruption.Turn{}, err
	}
	held, renewed, err := store(ctx, c, order, lease.ID)
	// After an error the turn may be stored all the same, although the machine gets no turn. So the
	// lease is revoked, and the turn ends with it. A machine that had the turn before retains the
	// turn.
	if err != nil && !renewed || err == nil && held.OfAnother(order.Turn.Machine) {
		revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		_, _ = c.Revoke(revoking, lease.ID) // a lease that is not revoked ends by itself
	}
	return held, err
}

// store stores a turn with a lease, or returns the turn of another machine. renewed is true if the
// machine had the turn before.
func store(ctx context.Context, c *clientv3.Client, order disruption.TurnRequest, lease clientv3.LeaseID) (held disruption.Turn, renewed bool, err error) {
	text, err := json.Marshal(order.Turn)
	if err != nil {
		return disruption.Turn{}, false, err
	}
	for {
		have, err := readTurn(ctx, c)
		if err != nil {
			return disruption.Turn{}, renewed, err
		}
		renewed = have.turn.Machine == order.Turn.Machine
		if !order.Force && have.turn.OfAnother(order.Turn.Machine) {
			if held, err := have.present(ctx, c); err != nil || held.Machine != "" {
				return have.turn, false, err
			}
		}
		done, err := c.Txn(ctx).If(have.unchanged()).Then(clientv3.OpPut(turnKey, string(text), clientv3.WithLease(lease))).Commit()
		if err != nil {
			return disruption.Turn{}, renewed, err
		}
		if done.Succeeded {
			have.revoke(ctx, c)
			return order.Turn, renewed, nil
		}
		// another machine was faster
	}
}

// giveBack deletes the turn of a machine. It does nothing if the machine has no turn.
func (l turns) giveBack(ctx context.Context, machine string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return err
	}
	defer c.Close()
	return remove(ctx, c, machine)
}

// giveBackElsewhere is giveBack for a machine that is no member any more. It uses the etcd of
// another machine. If none answers, the turn ends by itself.
func (l turns) giveBackElsewhere(ctx context.Context, machine string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	another, ok := l.prober().findServing(ctx)
	if !ok {
		return
	}
	if c, err := connectTo(l.dirs, clientURL(another)); err == nil {
		defer c.Close()
		_ = remove(ctx, c, machine)
	}
}

// remove deletes the turn of a machine.
func remove(ctx context.Context, c *clientv3.Client, machine string) error {
	have, err := readTurn(ctx, c)
	if err != nil || have.turn.Machine != machine {
		return err
	}
	if _, err = c.Txn(ctx).If(have.unchanged()).Then(clientv3.OpDelete(turnKey)).Commit(); err != nil {
		return err
	}
	have.revoke(ctx, c)
	return nil
}

// storedTurn is the turn in etcd.
type storedTurn struct {
	turn     disruption.Turn
	revision int64 // of its last change; 0 if there is no turn
	lease    clientv3.LeaseID
}

// readTurn reads the turn. A turn in an unknown form counts as the turn of a machine "unknown",
// until its lease ends.
func readTurn(ctx context.Context, c *clientv3.Client) (storedTurn, error) {
	answer, err := c.Get(ctx, turnKey)
	if err != nil {
		return storedTurn{}, err
	}
	return decodeTurn(answer.Kvs), nil
}

// decodeTurn returns the turn in the answer to a read of turnKey.
func decodeTurn(kvs []*mvccpb.KeyValue) storedTurn {
	if len(kvs) == 0 {
		return storedTurn{}
	}
	kv := kvs[0]
	out := storedTurn{revision: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	if json.Unmarshal(kv.Value, &out.turn) != nil || out.turn.Machine == "" {
		now := time.Now()
		out.turn = disruption.Turn{Machine: "unknown", By: "unknown", At: now, Ends: now.Add(disruption.TurnLife)}
	}
	return out
}

// ended reports whether the lease of the turn has ended. A turn without a lease has ended, too: it
// is in restored data, because a restore restores no leases. The times in the turn are not
// compared, because the clocks of machines differ.
func (s storedTurn) ended(ctx context.Context, c *clientv3.Client) (bool, error) {
	if s.lease == clientv3.NoLease {
		return true, nil
	}
	left, err := c.TimeToLive(ctx, s.lease)
	if err != nil {
		return false, err
	}
	return left.TTL < 0, nil
}

// present returns the turn, or the zero Turn if the turn has ended.
func (s storedTurn) present(ctx context.Context, c *clientv3.Client) (disruption.Turn, error) {
	if s.turn.Machine == "" {
		return disruption.Turn{}, nil
	}
	if ended, err := s.ended(ctx, c); err != nil || ended {
		return disruption.Turn{}, err
	}
	return s.turn, nil
}

// unchanged is the condition that the turn is still the same.
func (s storedTurn) unchanged() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(turnKey), "=", s.revision)
}

// revoke revokes the lease of a turn that was replaced or deleted: no key uses the lease any more,
// so after an error the lease only ends later.
func (s storedTurn) revoke(ctx context.Context, c *clientv3.Client) {
	if s.lease != clientv3.NoLease {
		_, _ = c.Revoke(ctx, s.lease)
	}
}
