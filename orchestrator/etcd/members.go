package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/orlop-os/orlop/pkg/bootlog"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// What an operator does about the members (docs/decisions/0029-members.md): removes one, goes on
// with one alone when a quorum is lost for good, and has one come back whose data are of no use any
// more. None of it needs Kubernetes.

// waits is the problem of a member that runs and has not heard of a quorum since it started.
const waits = "it runs, and waits for a quorum"

// members are what etcd knows of them, and whether each answers. It needs no quorum, if there was
// one since it started.
func (k keeper) members(ctx context.Context, c *clientv3.Client) ([]nodespec.EtcdMember, error) {
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	list, err := c.MemberList(asking, clientv3.WithSerializable())
	if err != nil {
		return nil, fmt.Errorf("etcd: does not tell its members: %w", err)
	}
	all := make([]nodespec.EtcdMember, len(list.Members))
	for i, m := range list.Members {
		all[i] = nodespec.EtcdMember{ID: id(m.ID), Name: m.Name, PeerURLs: m.PeerURLs, Learner: m.IsLearner}
	}
	return askEach(all, func(i int) error { return k.answers(ctx, c, list.Members[i]) }), nil
}

// waiting are the members as an etcd knows them that waits for a quorum, and whether each of them
// does.
func (k keeper) waiting(ctx context.Context) ([]nodespec.EtcdMember, error) {
	list, err := toldToPeers(ctx, k.dirs, peerURL(k.spec))
	if err != nil {
		return nil, fmt.Errorf("etcd: does not tell its members: %w", err)
	}
	var all []nodespec.EtcdMember
	for _, m := range list {
		all = append(all, memberOf(m))
	}
	return askEach(all, func(i int) error { return k.runs(ctx, list[i].PeerURLs) }), nil
}

// memberOf is a member as etcd itself keeps it.
func memberOf(m membership.Member) nodespec.EtcdMember {
	return nodespec.EtcdMember{ID: id(uint64(m.ID)), Name: m.Name, PeerURLs: m.PeerURLs, Learner: m.IsLearner}
}

// runs is why a member at some addresses does not answer: at best, because it waits.
func (k keeper) runs(ctx context.Context, urls []string) error {
	problem := errors.New("has no address")
	for _, url := range urls {
		if _, problem = toldToPeers(ctx, k.dirs, url); problem == nil {
			return errors.New(waits)
		}
	}
	return problem
}

// askEach has all members asked at once, notes why one does not answer, and sorts them.
func askEach(all []nodespec.EtcdMember, ask func(i int) error) []nodespec.EtcdMember {
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() {
			if err := ask(i); err != nil {
				all[i].Problem = short(err)
			}
		})
	}
	asking.Wait()
	slices.SortFunc(all, func(a, b nodespec.EtcdMember) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// answers asks one member, this machine's own over its socket.
func (k keeper) answers(ctx context.Context, local *clientv3.Client, m *etcdserverpb.Member) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if m.Name == k.spec.NodeName {
		_, err := local.Status(ctx, endpoint(k.dirs))
		return err
	}
	if len(m.ClientURLs) == 0 {
		return errors.New("has not started yet")
	}
	c, err := connectTo(k.dirs, m.ClientURLs...)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Status(ctx, m.ClientURLs[0])
	return err
}

// votes counts the voting members, those of them that answer, and those that wait for a quorum.
func votes(all []nodespec.EtcdMember) (voters, answering, waiting int) {
	for _, m := range all {
		if !m.Learner && m.Problem == waits {
			waiting++
		}
	}
	voters, answering = nodespec.CountVoters(all)
	return voters, answering, waiting
}

// removeMember has etcd forget a member, unless the others would lose their quorum by it.
func (k keeper) removeMember(ctx context.Context, name string) (nodespec.EtcdMember, error) {
	fail := func(err error) (nodespec.EtcdMember, error) { return nodespec.EtcdMember{}, err }
	c, err := connect(ctx, k.dirs)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	all, err := k.known(ctx)
	if err != nil {
		return fail(err)
	}
	i := slices.IndexFunc(all, func(m nodespec.EtcdMember) bool { return m.Name == name || m.ID == name })
	if i < 0 {
		return fail(fmt.Errorf("etcd: there is no member %q; `orlopctl etcd members` lists them", name))
	}
	if !all[i].Learner {
		voters, answering := nodespec.CountVoters(all)
		if err := etcdjoin.MayRemove(voters, answering, all[i].Problem == ""); err != nil {
			return fail(fmt.Errorf("etcd: %s is not removed, nothing was changed: %w", name, err))
		}
	}
	number, err := strconv.ParseUint(all[i].ID, 16, 64)
	if err != nil {
		return fail(fmt.Errorf("etcd: the member's number: %w", err))
	}
	via := c
	if all[i].Name == k.spec.NodeName {
		// A member that removes itself stops, perhaps before it has answered.
		another, ok := k.asker().serving(ctx)
		if !ok {
			return fail(fmt.Errorf("etcd: %s is not removed, nothing was changed: no other machine of Cluster.spec.controlPlanes serves the cluster's data", name))
		}
		if via, err = connectTo(k.dirs, clientURL(another)); err != nil {
			return fail(err)
		}
		defer via.Close()
	}
	if err := remove(ctx, via, number); err != nil {
		return fail(fmt.Errorf("etcd: %s is not removed: %w", name, err))
	}
	return all[i], nil
}

// remove removes a member. A member that was not connected with the others for five seconds does
// not do it yet.
func remove(ctx context.Context, c *clientv3.Client, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	ticker := time.NewTicker(askEvery)
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

// leave removes this machine's own member before its data go. Where there is no other member, or
// nobody who has a quorum that could be told, there is nothing to leave; it is an error if the
// others would have no quorum afterwards, or if that cannot be told: the machine's own etcd runs,
// and neither it nor another one answers.
func (k keeper) leave(ctx context.Context) (left nodespec.EtcdMember, err error) {
	var s nodespec.EtcdStatus
	mute := k.ask(ctx, &s)
	if mute == nil && s.Leader != "" {
		if len(s.Members) < 2 {
			return left, nil
		}
		return k.removeMember(ctx, s.ID)
	}
	if !k.hasData() {
		return left, nil
	}
	answers := k.asker().askAll(ctx)
	served, err := k.throughAnother(ctx, answers, func(c *clientv3.Client, m nodespec.EtcdMember) error {
		number, err := strconv.ParseUint(m.ID, 16, 64)
		if err == nil {
			err = remove(ctx, c, number)
		}
		if err != nil {
			return fmt.Errorf("%w; try again", err)
		}
		left = m
		return nil
	})
	switch {
	case err != nil:
		return left, fmt.Errorf("etcd: this machine's member is not removed: %w", err)
	case !served && errors.Is(mute, errMute) && len(answers) > 0:
		return left, fmt.Errorf("etcd: this machine's member is not removed, nothing was changed: whether the others count on it is not known: %w; try again", mute)
	}
	return left, nil
}

// own is this machine's member among those that etcd knows; less than 0: it is none. One that has
// just been added has no name yet.
func (k keeper) own(all []nodespec.EtcdMember) int {
	number, _, err := k.whose()
	return slices.IndexFunc(all, func(m nodespec.EtcdMember) bool {
		if err != nil {
			return slices.Contains(m.PeerURLs, peerURL(k.spec))
		}
		return m.ID == id(number)
	})
}

// throughAnother does something with this machine's member at another one that serves the data
// which are on this one, too; served tells whether there is one. It is an error if the others would
// lose their quorum without this machine, and nothing is done. This is for a machine whose etcd
// does not answer: it may run all the same, and be one of those whose votes count.
func (k keeper) throughAnother(ctx context.Context, answers []etcdjoin.PeerAnswer, do func(c *clientv3.Client, own nodespec.EtcdMember) error) (served bool, err error) {
	_, cluster, unread := k.whose()
	i := slices.IndexFunc(answers, func(a etcdjoin.PeerAnswer) bool {
		return a.State == etcdjoin.Serving && (unread != nil || a.Cluster == cluster)
	})
	if i < 0 {
		return false, nil
	}
	c, err := connectTo(k.dirs, clientURL(answers[i].From))
	if err != nil {
		return true, fmt.Errorf("nothing was changed: %w", err)
	}
	defer c.Close()
	all, err := k.members(ctx, c)
	if err != nil {
		return true, fmt.Errorf("nothing was changed: whether the others count on this machine is not known: %w; try again", err)
	}
	own := k.own(all)
	if own < 0 {
		return true, nil
	}
	if !all[own].Learner {
		all[own].Problem = ""
		voters, answering := nodespec.CountVoters(all)
		if err := etcdjoin.MayRemove(voters, answering, true); err != nil {
			return true, fmt.Errorf("nothing was changed: %w", err)
		}
	}
	return true, do(c, all[own])
}

// recover has etcd start as the only member, with this machine's data. It is for a cluster that has
// lost its quorum for good, so one that has a quorum is not touched.
func (k keeper) recover(ctx context.Context) (r nodespec.EtcdRecovered, err error) {
	if !k.hasData() {
		return r, errors.New("etcd: there are no data on this machine; ask one that has them")
	}
	if a, ok := k.asker().serving(ctx); ok {
		return r, fmt.Errorf("etcd: nothing was changed: %v is a member, and a quorum answers it; if this machine is none, `orlopctl etcd rejoin`", a)
	}
	all, err := k.known(ctx)
	if err != nil {
		return r, err
	}
	voters, answering, waiting := votes(all)
	if answering >= etcdjoin.QuorumSize(voters) {
		return r, fmt.Errorf("etcd: nothing was changed: %d of %d members answer, which is a quorum; `orlopctl etcd remove` removes one that is lost", answering, voters)
	}
	if waiting >= etcdjoin.QuorumSize(voters) {
		return r, fmt.Errorf("etcd: nothing was changed: %d of %d members run, and will be a quorum when they have found each other; if one of them never does, switch it off first", waiting, voters)
	}
	own := k.own(all)
	if own < 0 || all[own].Learner {
		return r, fmt.Errorf("etcd: nothing was changed: %w", errNoVote)
	}
	for _, m := range slices.Delete(all, own, own+1) {
		r.Dropped, r.IDs = append(r.Dropped, cmp.Or(m.Name, m.ID)), append(r.IDs, m.ID)
	}
	if err := k.order(nodespec.ForceNewClusterFile); err != nil {
		return r, fmt.Errorf("etcd: cannot write down that it goes on alone: %w", err)
	}
	return r, nil
}

// order writes down what etcd is to do when it starts next. It holds until the machine itself
// starts anew: what somebody wanted then was for the machines that were on then, and if the power
// went first, nobody may remember it when all of them are back.
func (k keeper) order(name string) error {
	return durable.WriteFile(k.at(name), []byte(bootlog.ID()), 0o600)
}

// stale tells whether an order is from before the machine's start.
func (k keeper) stale(name string) bool {
	of, err := os.ReadFile(k.at(name))
	return err == nil && string(of) != bootlog.ID()
}

// errNoVote is why the data of a machine are not those to go on with.
var errNoVote = errors.New("this machine had no vote yet, and may not have all of the data; ask another one that has them")

// known are the members as etcd tells them, to clients or to members, or where it does not run as
// its database has them; then nobody is asked whether he answers.
func (k keeper) known(ctx context.Context) ([]nodespec.EtcdMember, error) {
	c, err := connect(ctx, k.dirs)
	if err == nil {
		defer c.Close()
		if all, err := k.members(ctx, c); err == nil {
			return all, nil
		}
		if all, err := k.waiting(ctx); err == nil {
			return all, nil
		}
	}
	all, err := k.stored()
	if err != nil {
		return nil, fmt.Errorf("etcd: does not answer, and its database does not tell the members: %w", err)
	}
	for i := range all {
		all[i].Problem = "etcd does not run on this machine"
	}
	return all, nil
}

// stored are the members as the database has them, which nobody has open.
func (k keeper) stored() (all []nodespec.EtcdMember, err error) {
	err = viewDatabase(k.database(), func(tx *bolt.Tx) error {
		members := tx.Bucket(schema.Members.Name())
		if members == nil {
			return nil
		}
		return members.ForEach(func(_, value []byte) error {
			var m membership.Member
			if err := json.Unmarshal(value, &m); err != nil {
				return err
			}
			all = append(all, memberOf(m))
			return nil
		})
	})
	return all, err
}

// asker asks the other control-plane machines that the configuration names.
func (k keeper) asker() newcomer { return newcomer{k.spec, k.dirs, func(string) {}} }

// goesAlone tells whether etcd starts as the only member, because somebody has asked for it. If the
// others have a quorum by now, or will have one with this machine, that was long ago: they would
// stop, and what they have acknowledged would be lost. Nor does it with data that give this machine
// no vote, which the database alone tells: a new member's etcd that has not heard from the others
// yet says that it has one.
func (k keeper) goesAlone(ctx context.Context) (bool, error) {
	if !exists(k.at(nodespec.ForceNewClusterFile)) {
		return false, nil
	}
	a, serves := k.asker().serving(ctx)
	all, err := k.stored()
	own := k.own(all)
	switch {
	case k.stale(nodespec.ForceNewClusterFile):
		err = errors.New("this machine was to go on alone, and was started anew before it did; `orlopctl etcd recover` again if it still is to")
	case serves:
		err = fmt.Errorf("this machine was to go on alone, but %v is a member by now, and a quorum answers it", a)
	case err != nil:
		return false, fmt.Errorf("etcd: cannot go on alone: the database does not tell the members: %w; if it stays so, `orlopctl etcd restore` a snapshot", err)
	case own < 0 || all[own].Learner:
		err = fmt.Errorf("this machine was to go on alone, and does not: %w", errNoVote)
	default:
		if err = k.willMeet(ctx, all, own); err == nil {
			return true, nil
		}
	}
	return false, errors.Join(err, k.goneAlone())
}

// willMeet is an error if enough of the other members run to be a quorum with this one, whose etcd
// does not run yet.
func (k keeper) willMeet(ctx context.Context, all []nodespec.EtcdMember, own int) error {
	asked := askEach(slices.Clone(all), func(i int) error {
		if i == own {
			return errors.New(waits)
		}
		return k.runs(ctx, all[i].PeerURLs)
	})
	if voters, _, waiting := votes(asked); len(all) > 1 && waiting >= etcdjoin.QuorumSize(voters) {
		return fmt.Errorf("this machine was to go on alone, but %d of %d members run by now, this one among them, and will be a quorum; if one of them never does, switch it off, and `orlopctl etcd recover` again", waiting, voters)
	}
	return nil
}

// leftBehind is an error if another machine serves data of another cluster, and nobody those of
// this one's: a member that was left out, and whose place other data have taken by a restore, would
// be part of a second cluster with others that were. It asks once: who is silent, or waits, may be
// of this machine's cluster, and wait for it.
func (k keeper) leftBehind(ctx context.Context) error {
	_, own, err := k.whose()
	if err != nil {
		return nil // etcd says itself what is wrong with its log
	}
	n := k.asker()
	clusters := askOthers(n, func(a netip.Addr) uint64 { return n.clusterAt(ctx, a) })
	if !slices.ContainsFunc(clusters, func(c uint64) bool { return c != 0 && c != own }) {
		return nil
	}
	for _, a := range n.askAll(ctx) {
		switch {
		case a.State != etcdjoin.Serving:
		case a.Cluster == own:
			return nil
		default:
			err = fmt.Errorf("%v serves the data of another cluster (%x) than this machine's (%x); `orlopctl etcd rejoin` drops the data of this machine and joins that one; if they are the ones to keep, reset those that serve the others (`orlopctl reset --wipe data`)", a.From, a.Cluster, own)
		}
	}
	return err
}

// goneAlone is called when etcd serves: what it was told to do about its members is done.
func (k keeper) goneAlone() error { return k.unmark(nodespec.ForceNewClusterFile) }

// unmark removes something that was written down, for good.
func (k keeper) unmark(name string) error {
	if !exists(k.at(name)) {
		return nil
	}
	if err := k.tidy(name); err != nil {
		return err
	}
	return durable.SyncDir(k.dirs.EtcdSnapshots)
}

// rejoin has the data of this machine dropped when etcd starts next, so that it joins the others
// anew. The last database stays, as what `restore --undo` puts back. A member that the others count
// on is not touched.
func (k keeper) rejoin(ctx context.Context) (struct{}, error) {
	none := struct{}{}
	if len(k.spec.OtherControlPlanes()) == 0 {
		return none, errors.New("etcd: nothing was changed: Cluster.spec.controlPlanes names no other machine that could be joined")
	}
	var s nodespec.EtcdStatus
	if k.ask(ctx, &s) == nil && s.Leader != "" {
		return none, errors.New("etcd: nothing was changed: this machine is a member, and a quorum answers it")
	}
	answers := k.asker().askAll(ctx)
	if !slices.ContainsFunc(answers, func(a etcdjoin.PeerAnswer) bool { return a.State == etcdjoin.Serving }) {
		return none, errors.New("etcd: nothing was changed: no other machine of Cluster.spec.controlPlanes serves the cluster's data, so there is nobody to join; switch them on, or `orlopctl etcd recover` the one whose data are to be kept")
	}
	if _, err := k.throughAnother(ctx, answers, func(*clientv3.Client, nodespec.EtcdMember) error { return nil }); err != nil {
		return none, fmt.Errorf("etcd: %w", err)
	}
	if err := k.order(nodespec.RejoinFile); err != nil {
		return none, fmt.Errorf("etcd: cannot write down that the data are dropped: %w", err)
	}
	return none, nil
}

// drop does what rejoin has written down. A cut at any moment is finished by the next call.
func (k keeper) drop() error {
	if !exists(k.at(nodespec.RejoinFile)) {
		return nil
	}
	// nothing was dropped yet: the database is what goes first
	if k.stale(nodespec.RejoinFile) && exists(k.database()) {
		return k.unmark(nodespec.RejoinFile)
	}
	// What is begun anew does not go on alone.
	if err := k.goneAlone(); err != nil {
		return err
	}
	// Data that were of no member, because joining was cut short, are no reason to lose those that
	// were.
	if k.hasData() && exists(k.database()) {
		if err := k.tidy(undo); err != nil {
			return err
		}
		if err := move(k.database(), k.at(undo)); err != nil {
			return err
		}
	}
	if err := k.dropData(); err != nil {
		return err
	}
	// What was saved is of the data that are gone, as is who has written them: none of it is to
	// come in the place of those that it joins with.
	saved, err := filepath.Glob(k.at("*" + savedSuffix))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, name := range append(saved, k.at(formatFile)) {
		if err := k.tidy(filepath.Base(name)); err != nil {
			return err
		}
	}
	// if it came back, it would drop what this machine has joined with by then
	return k.unmark(nodespec.RejoinFile)
}

// alone is an error in a cluster of several members: what is done to the data of one of them would
// not be done to the others'.
func (k keeper) alone(ctx context.Context, what string) error {
	if a, ok := k.asker().serving(ctx); ok {
		return fmt.Errorf("etcd: %s, nothing was changed: %v serves the cluster's data, and would keep them; remove the other members first (`orlopctl etcd remove`), and have them join again afterwards (`orlopctl etcd rejoin`)", what, a)
	}
	if !k.hasData() {
		return nil
	}
	all, err := k.known(ctx)
	if err != nil && len(k.spec.OtherControlPlanes()) == 0 {
		return nil // the data are what is wrong, and were a single machine's
	}
	if err != nil {
		return fmt.Errorf("etcd: %s, nothing was changed: whether there are other members is not known: %w; if they are lost, `orlopctl etcd recover` first, or take them out of Cluster.spec.controlPlanes", what, err)
	}
	if len(all) > 1 {
		return fmt.Errorf("etcd: %s, nothing was changed: the cluster has %d members, and the others would keep their data; remove them first (`orlopctl etcd remove`), and have them join again afterwards (`orlopctl etcd rejoin`)",
			what, len(all))
	}
	return nil
}
