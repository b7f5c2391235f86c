package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Operations of an operator on the members (docs/decisions/0069-etcd-operations.md): remove a
// member, recover with a single member after a permanent loss of quorum, and rejoin with data that
// no longer belong to the cluster. None of them needs Kubernetes.

// members are the members of the cluster, as this machine knows them.
type members struct{ localMember }

// waitsForQuorum is the problem of a member that runs and has had no quorum since it started.
const waitsForQuorum = "it runs, and waits for a quorum"

// list returns the members from etcd and checks whether each answers. It needs no quorum if
// there was a quorum once since etcd started.
func (l members) list(ctx context.Context, c *clientv3.Client) ([]*api.EtcdMember, error) {
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.MemberList(asking, clientv3.WithSerializable())
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot list the members: %w", err)
	}
	all := make([]*api.EtcdMember, len(list.Members))
	for i, m := range list.Members {
		all[i] = &api.EtcdMember{Id: id(m.ID), Name: m.Name, PeerUrls: m.PeerURLs, Learner: m.IsLearner}
	}
	return checkEach(all, func(i int) error { return l.check(ctx, c, list.Members[i]) }), nil
}

// listWaiting returns the members from an etcd that waits for a quorum, and checks whether each
// of them waits, too.
func (l members) listWaiting(ctx context.Context) ([]*api.EtcdMember, error) {
	list, err := peerMembers(ctx, l.dirs, peerURL(l.spec))
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot list the members: %w", err)
	}
	var all []*api.EtcdMember
	for _, m := range list {
		all = append(all, memberOf(m))
	}
	return checkEach(all, func(i int) error { return l.checkWaiting(ctx, list[i].PeerURLs) }), nil
}

// memberOf converts a member from etcd's stored form.
func memberOf(m membership.Member) *api.EtcdMember {
	return &api.EtcdMember{Id: id(uint64(m.ID)), Name: m.Name, PeerUrls: m.PeerURLs, Learner: m.IsLearner}
}

// checkWaiting returns the reason why a member at these addresses does not answer. If the member
// answers at its peer port, the reason is that it waits for a quorum.
func (l members) checkWaiting(ctx context.Context, urls []string) error {
	problem := errors.New("has no address")
	for _, url := range urls {
		if _, problem = peerMembers(ctx, l.dirs, url); problem == nil {
			return errors.New(waitsForQuorum)
		}
	}
	return problem
}

// checkEach runs check for all members at once, records the errors as problems, and sorts the
// members.
func checkEach(all []*api.EtcdMember, check func(i int) error) []*api.EtcdMember {
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() {
			if err := check(i); err != nil {
				all[i].Problem = shortReason(err)
			}
		})
	}
	asking.Wait()
	slices.SortFunc(all, func(a, b *api.EtcdMember) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Id, b.Id))
	})
	return all
}

// check calls one member and returns the reason why the member does not answer. The call to the
// member of this machine uses the local socket.
func (l members) check(ctx context.Context, local *clientv3.Client, m *etcdserverpb.Member) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if m.Name == l.spec.Node.Name {
		_, err := local.Status(ctx, endpoint(l.dirs))
		return err
	}
	if len(m.ClientURLs) == 0 {
		return errors.New("has not started yet")
	}
	c, err := connectTo(l.dirs, m.ClientURLs...)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Status(ctx, m.ClientURLs[0])
	return err
}

// countVotes returns the number of voting members, and how many of them answer and how many wait
// for a quorum.
func countVotes(all []*api.EtcdMember) (voters, answering, waiting int) {
	for _, m := range all {
		if !m.Learner && m.Problem == waitsForQuorum {
			waiting++
		}
	}
	voters, answering = api.CountVoters(all)
	return voters, answering, waiting
}

// remove removes a member from etcd. It returns an error if the others would lose their quorum.
func (l members) remove(ctx context.Context, name string) (*api.EtcdMember, error) {
	fail := func(err error) (*api.EtcdMember, error) { return nil, err }
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	all, err := l.listKnown(ctx)
	if err != nil {
		return fail(err)
	}
	i := slices.IndexFunc(all, func(m *api.EtcdMember) bool { return m.Name == name || m.Id == name })
	if i < 0 {
		return fail(fmt.Errorf("etcd: no member %q; `orlopctl etcd members` lists them", name))
	}
	if !all[i].Learner {
		voters, answering := api.CountVoters(all)
		if err := etcdjoin.MayRemove(voters, answering, all[i].Problem == ""); err != nil {
			return fail(fmt.Errorf("etcd: cannot remove %s, nothing was changed: %w", name, err))
		}
	}
	number, err := strconv.ParseUint(all[i].Id, 16, 64)
	if err != nil {
		return fail(fmt.Errorf("etcd: cannot parse the member's ID: %w", err))
	}
	via := c
	if all[i].Name == l.spec.Node.Name {
		// A member that removes itself stops, perhaps before it has answered.
		another, ok := l.prober().findServing(ctx)
		if !ok {
			return fail(fmt.Errorf("etcd: cannot remove %s, nothing was changed: no other machine of Cluster.spec.controlPlanes serves the cluster's data", name))
		}
		if via, err = connectTo(l.dirs, clientURL(another)); err != nil {
			return fail(err)
		}
		defer via.Close()
	}
	if err := removeByID(ctx, via, number); err != nil {
		return fail(fmt.Errorf("etcd: cannot remove %s: %w", name, err))
	}
	return all[i], nil
}

// removeByID removes a member. etcd rejects a removal while the member that performs it has been
// connected with the others for less than five seconds, so removeByID retries.
func removeByID(ctx context.Context, c *clientv3.Client, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for {
		_, err := c.MemberRemove(ctx, id)
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}

// leave removes the member of this machine from etcd before the data of the machine are deleted,
// and returns the removed member. It does nothing if there is no other member, or no reachable
// member with a quorum. It returns an error if the others would lose their quorum. It also returns
// an error if it cannot check their quorum, because the etcd of this machine runs but does not
// answer, and no other member serves.
func (l members) leave(ctx context.Context) (left *api.EtcdMember, err error) {
	s := &api.EtcdStatusResponse{}
	mute := l.queryStatus(ctx, s)
	if mute == nil && s.Leader != "" {
		if len(s.Members) < 2 {
			return left, nil
		}
		return l.remove(ctx, s.Id)
	}
	if !l.hasData() {
		return left, nil
	}
	answers := l.prober().probeAll(ctx)
	served, err := l.atServingPeer(ctx, answers, func(c *clientv3.Client, m *api.EtcdMember) error {
		number, err := strconv.ParseUint(m.Id, 16, 64)
		if err == nil {
			err = removeByID(ctx, c, number)
		}
		if err != nil {
			return fmt.Errorf("%w; try again", err)
		}
		left = m
		return nil
	})
	switch {
	case err != nil:
		return left, fmt.Errorf("etcd: cannot remove this machine's member: %w", err)
	case !served && errors.Is(mute, errNoAnswer) && len(answers) > 0:
		return left, fmt.Errorf("etcd: cannot remove this machine's member, nothing was changed: not known whether the others need its vote: %w; try again", mute)
	}
	return left, nil
}

// ownIndex returns the index of this machine's member in all, or a negative number. It does not
// compare names, because a member that has just been added has no name yet.
func (l members) ownIndex(all []*api.EtcdMember) int {
	number, _, err := l.memberID()
	return slices.IndexFunc(all, func(m *api.EtcdMember) bool {
		if err != nil {
			return slices.Contains(m.PeerUrls, peerURL(l.spec))
		}
		return m.Id == id(number)
	})
}

// atServingPeer is for a machine whose own etcd does not answer, but may still run and have a vote.
// It calls the function do with this machine's member and a client of another member that serves
// the same cluster. The result served is true if such another member exists. If the others would
// lose their quorum without this machine, atServingPeer returns an error and does not call do.
func (l members) atServingPeer(ctx context.Context, answers []etcdjoin.PeerAnswer, do func(c *clientv3.Client, own *api.EtcdMember) error) (served bool, err error) {
	_, cluster, unread := l.memberID()
	i := slices.IndexFunc(answers, func(a etcdjoin.PeerAnswer) bool {
		return a.State == etcdjoin.Serving && (unread != nil || a.Cluster == cluster)
	})
	if i < 0 {
		return false, nil
	}
	c, err := connectTo(l.dirs, clientURL(answers[i].From))
	if err != nil {
		return true, fmt.Errorf("nothing was changed: %w", err)
	}
	defer c.Close()
	all, err := l.list(ctx, c)
	if err != nil {
		return true, fmt.Errorf("nothing was changed: not known whether the others need this machine's vote: %w; try again", err)
	}
	own := l.ownIndex(all)
	if own < 0 {
		return true, nil
	}
	if !all[own].Learner {
		all[own].Problem = ""
		voters, answering := api.CountVoters(all)
		if err := etcdjoin.MayRemove(voters, answering, true); err != nil {
			return true, fmt.Errorf("nothing was changed: %w", err)
		}
	}
	return true, do(c, all[own])
}

// recover marks etcd to start as the only member, with the data of this machine. It is for a
// permanent loss of quorum, so it changes nothing in a cluster with a quorum.
func (l members) recover(ctx context.Context) (r nodespec.EtcdRecovered, err error) {
	if !l.hasData() {
		return r, errors.New("etcd: no data on this machine; use a machine that has them")
	}
	if a, ok := l.prober().findServing(ctx); ok {
		return r, fmt.Errorf("etcd: nothing was changed: the member %v has a quorum; if this machine is not a member, use `orlopctl etcd rejoin`", a)
	}
	all, err := l.listKnown(ctx)
	if err != nil {
		return r, err
	}
	voters, answering, waiting := countVotes(all)
	if answering >= etcdjoin.QuorumSize(voters) {
		return r, fmt.Errorf("etcd: nothing was changed: %d of %d members answer, which is a quorum; `orlopctl etcd remove` removes a lost member", answering, voters)
	}
	if waiting >= etcdjoin.QuorumSize(voters) {
		return r, fmt.Errorf("etcd: nothing was changed: %d of %d members run, and will form a quorum when they reach each other; if one of them cannot, switch it off first", waiting, voters)
	}
	own := l.ownIndex(all)
	if own < 0 || all[own].Learner {
		return r, fmt.Errorf("etcd: nothing was changed: %w", errNoVote)
	}
	for _, m := range slices.Delete(all, own, own+1) {
		r.RemovedMembers, r.IDs = append(r.RemovedMembers, cmp.Or(m.Name, m.Id)), append(r.IDs, m.Id)
	}
	if err := l.writeOrder(nodespec.ForceNewClusterFile); err != nil {
		return r, fmt.Errorf("etcd: cannot record the request to recover: %w", err)
	}
	return r, nil
}

// errNoVote is returned when the data of a machine are not suitable for a recovery.
var errNoVote = errors.New("this machine has no vote yet, and may not have all of the data; use another machine that has them")

// listKnown returns the members from etcd's client port or peer port. If etcd does not run, it
// returns the members of the database, without checking them.
func (l members) listKnown(ctx context.Context) ([]*api.EtcdMember, error) {
	c, err := connect(ctx, l.dirs)
	if err == nil {
		defer c.Close()
		if all, err := l.list(ctx, c); err == nil {
			return all, nil
		}
		if all, err := l.listWaiting(ctx); err == nil {
			return all, nil
		}
	}
	all, err := l.storedMembers()
	if err != nil {
		return nil, fmt.Errorf("etcd does not answer, and its database does not list the members: %w", err)
	}
	for i := range all {
		all[i].Problem = "etcd does not run on this machine"
	}
	return all, nil
}

// prober probes the other control-plane machines of the configuration.
func (l members) prober() joiner { return joiner{l.spec, l.dirs, func(string) {}} }

// forcesNewCluster reports whether etcd starts as the only member, because the operator requested a
// recovery. It drops the request if
//
//  1. the others have a quorum, or will have a quorum with this machine: a recovery would stop them
//     and lose acknowledged writes;
//  2. the machine has rebooted since the request: the request is out of date; or
//  3. the data give this machine no vote: the data may be incomplete. Only the database shows
//     whether this machine has a vote: the etcd of a new member reports a vote until it hears from
//     the others.
func (l members) forcesNewCluster(ctx context.Context) (bool, error) {
	if !exists(l.at(nodespec.ForceNewClusterFile)) {
		return false, nil
	}
	a, serves := l.prober().findServing(ctx)
	all, err := l.storedMembers()
	own := l.ownIndex(all)
	switch {
	case l.isStale(nodespec.ForceNewClusterFile):
		err = errors.New("recovery with one member canceled: this machine rebooted first; repeat `orlopctl etcd recover` if it is still necessary")
	case serves:
		err = fmt.Errorf("recovery with one member canceled: the member %v has a quorum", a)
	case err != nil:
		return false, fmt.Errorf("etcd: cannot recover with one member: the database does not list the members: %w; if it persists, restore a snapshot with `orlopctl etcd restore`", err)
	case own < 0 || all[own].Learner:
		err = fmt.Errorf("recovery with one member canceled: %w", errNoVote)
	default:
		if err = l.checkNoQuorumAhead(ctx, all, own); err == nil {
			return true, nil
		}
	}
	return false, errors.Join(err, l.recovered())
}

// checkNoQuorumAhead returns an error if enough other members run to form a quorum with this
// machine. The etcd of this machine does not run yet.
func (l members) checkNoQuorumAhead(ctx context.Context, all []*api.EtcdMember, own int) error {
	asked := checkEach(slices.Clone(all), func(i int) error {
		if i == own {
			return errors.New(waitsForQuorum)
		}
		return l.checkWaiting(ctx, all[i].PeerUrls)
	})
	if voters, _, waiting := countVotes(asked); len(all) > 1 && waiting >= etcdjoin.QuorumSize(voters) {
		return fmt.Errorf("recovery with one member canceled: %d of %d members run, including this machine, and will form a quorum; if one of them cannot, switch it off, and repeat `orlopctl etcd recover`", waiting, voters)
	}
	return nil
}

// checkCluster returns an error if another machine serves data of another cluster, and none serves
// data of this machine's cluster. Without this check, a former member whose data were superseded by
// a restore elsewhere would form a second cluster with other former members. checkCluster probes
// only once and does not wait for an answer: a machine that is silent or waits may belong to this
// machine's cluster and wait for this machine.
func (l members) checkCluster(ctx context.Context) error {
	_, own, err := l.memberID()
	if err != nil {
		return nil // etcd itself reports the damage of its log
	}
	n := l.prober()
	clusters := forOthers(n, func(a netip.Addr) uint64 { return n.clusterID(ctx, a) })
	if !slices.ContainsFunc(clusters, func(c uint64) bool { return c != 0 && c != own }) {
		return nil
	}
	for _, a := range n.probeAll(ctx) {
		switch {
		case a.State != etcdjoin.Serving:
		case a.Cluster == own:
			return nil
		default:
			err = fmt.Errorf("%v serves the data of another cluster (%x) than this machine's (%x); `orlopctl etcd rejoin` drops the data of this machine and joins that cluster; to retain the data of this machine, reset the machines that serve the other data (`orlopctl reset --wipe data`)", a.From, a.Cluster, own)
		}
	}
	return err
}

// recovered removes the request to recover: it was performed, or is canceled.
func (l members) recovered() error { return l.removeMarker(nodespec.ForceNewClusterFile) }

// rejoin marks the data of this machine to be dropped at the next start of etcd, so that the
// machine joins the others as a new member. The last database stays for `restore --undo`. It
// rejects the request if the others need the vote of this member.
func (l members) rejoin(ctx context.Context) (struct{}, error) {
	none := struct{}{}
	if len(l.spec.OtherControlPlanes()) == 0 {
		return none, errors.New("etcd: nothing was changed: Cluster.spec.controlPlanes names no other machine to join")
	}
	s := &api.EtcdStatusResponse{}
	if l.queryStatus(ctx, s) == nil && s.Leader != "" {
		return none, errors.New("etcd: nothing was changed: this machine is a member with a quorum")
	}
	answers := l.prober().probeAll(ctx)
	if !slices.ContainsFunc(answers, func(a etcdjoin.PeerAnswer) bool { return a.State == etcdjoin.Serving }) {
		return none, errors.New("etcd: nothing was changed: no other machine of Cluster.spec.controlPlanes serves the cluster's data, so there is no member to join; switch them on, or run `orlopctl etcd recover` on the machine that has the right data")
	}
	if _, err := l.atServingPeer(ctx, answers, func(*clientv3.Client, *api.EtcdMember) error { return nil }); err != nil {
		return none, fmt.Errorf("etcd: %w", err)
	}
	if err := l.writeOrder(nodespec.RejoinFile); err != nil {
		return none, fmt.Errorf("etcd: cannot record the request to rejoin: %w", err)
	}
	return none, nil
}

// dropForRejoin drops the data if rejoin has recorded a request. The next call completes the work
// after a power cut at any moment.
func (l members) dropForRejoin() error {
	if !exists(l.at(nodespec.RejoinFile)) {
		return nil
	}
	// A request from before the last boot is canceled if nothing was dropped yet. The database is
	// dropped first, so while it exists, nothing was dropped.
	if l.isStale(nodespec.RejoinFile) && exists(l.database()) {
		return l.removeMarker(nodespec.RejoinFile)
	}
	// A request to rejoin cancels a request to recover.
	if err := l.recovered(); err != nil {
		return err
	}
	// An interrupted join leaves files but no database. Then there is nothing to save, and the undo
	// file of earlier data must stay.
	if l.hasData() && exists(l.database()) {
		if err := l.removeAll(undoFile); err != nil {
			return err
		}
		if err := move(l.database(), l.at(undoFile)); err != nil {
			return err
		}
	}
	if err := l.dropData(); err != nil {
		return err
	}
	// The savepoints and the recorded format belong to the dropped data. None of them may replace
	// the data of the cluster that this machine joins.
	saved, err := filepath.Glob(l.at("*" + savepointSuffix))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, name := range append(saved, l.at(formatFile)) {
		if err := l.removeAll(filepath.Base(name)); err != nil {
			return err
		}
	}
	// The removal of the request is durable: if the request reappeared after a power cut, it would
	// drop the data that this machine has got by then.
	return l.removeMarker(nodespec.RejoinFile)
}

// checkSole returns an error in a cluster of several members: an operation on the data of a
// single member does not change the data of the others.
func (l members) checkSole(ctx context.Context, what string) error {
	if a, ok := l.prober().findServing(ctx); ok {
		return fmt.Errorf("etcd: %s, nothing was changed: %v serves the cluster's data, and would retain them; remove the other members first (`orlopctl etcd remove`), and have them join again afterwards (`orlopctl etcd rejoin`)", what, a)
	}
	if !l.hasData() {
		return nil
	}
	all, err := l.listKnown(ctx)
	if err != nil && len(l.spec.OtherControlPlanes()) == 0 {
		return nil // the data are damaged, and were a single machine's
	}
	if err != nil {
		return fmt.Errorf("etcd: %s, nothing was changed: not known whether there are other members: %w; if they are lost, run `orlopctl etcd recover` first, or remove them from Cluster.spec.controlPlanes", what, err)
	}
	if len(all) > 1 {
		return fmt.Errorf("etcd: %s, nothing was changed: the cluster has %d members, and the others would retain their data; remove them first (`orlopctl etcd remove`), and have them join again afterwards (`orlopctl etcd rejoin`)",
			what, len(all))
	}
	return nil
}
