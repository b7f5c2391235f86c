package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/quorum"
)

// What an operator does about the members (docs/decisions/0029-members.md): removes one, goes on with one alone when a quorum is lost for
// good, and has one come back whose data are of no use any more. None of it needs Kubernetes.

// waits is the problem of a member that runs and has not heard of a quorum since it started.
const waits = "it runs, and waits for a quorum"

// members are what etcd knows of them, and whether each answers. It needs no quorum, if there was one since it started.
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

// waiting are the members as an etcd knows them that waits for a quorum, and whether each of them does.
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
		if m.Learner {
			continue
		}
		voters++
		switch m.Problem {
		case "":
			answering++
		case waits:
			waiting++
		}
	}
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
		voters, answering, _ := votes(all)
		if err := quorum.MayRemove(voters, answering, all[i].Problem == ""); err != nil {
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

// remove removes a member. A member that was not connected with the others for five seconds does not do it yet.
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

// leave removes this machine's own member before its data go. Where there is no other member, or no quorum that could be told, there is
// nothing to leave; it is an error only if the others would have no quorum afterwards.
func (k keeper) leave(ctx context.Context) (nodespec.EtcdMember, error) {
	var s nodespec.EtcdStatus
	if k.ask(ctx, &s) != nil || s.Leader == "" || len(s.Members) < 2 {
		return nodespec.EtcdMember{}, nil
	}
	return k.removeMember(ctx, s.ID)
}

// recover has etcd start as the only member, with this machine's data. It is for a cluster that has lost its quorum for good, so one that
// has a quorum is not touched.
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
	if answering >= quorum.Needed(voters) {
		return r, fmt.Errorf("etcd: nothing was changed: %d of %d members answer, which is a quorum; `orlopctl etcd remove` removes one that is lost", answering, voters)
	}
	if waiting >= quorum.Needed(voters) {
		return r, fmt.Errorf("etcd: nothing was changed: %d of %d members run, and will be a quorum when they have found each other; if one of them never does, switch it off first", waiting, voters)
	}
	for _, m := range all {
		switch {
		case m.Name == k.spec.NodeName && m.Learner:
			return r, errors.New("etcd: nothing was changed: this machine had no vote yet, and may not have all of the data; ask another one that has them")
		case m.Name != k.spec.NodeName:
			r.Dropped, r.IDs = append(r.Dropped, m.Name), append(r.IDs, m.ID)
		}
	}
	if err := durable.WriteFile(k.at(nodespec.AloneFile), nil, 0o600); err != nil {
		return r, fmt.Errorf("etcd: cannot write down that it goes on alone: %w", err)
	}
	return r, nil
}

// known are the members as etcd tells them, to clients or to members, or where it does not run as its database has them; then nobody is asked whether he
// answers.
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

// goesAlone tells whether etcd starts as the only member, because somebody has asked for it. If the others have a quorum by now, that was
// long ago: they would stop.
func (k keeper) goesAlone(ctx context.Context) (bool, error) {
	if !exists(k.at(nodespec.AloneFile)) {
		return false, nil
	}
	a, ok := k.asker().serving(ctx)
	if !ok {
		return true, nil
	}
	return false, errors.Join(fmt.Errorf("this machine was to go on alone, but %v is a member by now, and a quorum answers it", a), k.goneAlone())
}

// goneAlone is called when etcd serves: what it was told to do about its members is done.
func (k keeper) goneAlone() error {
	if !exists(k.at(nodespec.AloneFile)) {
		return nil
	}
	if err := k.tidy(nodespec.AloneFile); err != nil {
		return err
	}
	return durable.SyncFolder(k.dirs.EtcdKept)
}

// rejoin has the data of this machine dropped when etcd starts next, so that it joins the others anew. The last database stays, as what
// `restore --undo` puts back. A member that the others count on is not touched.
func (k keeper) rejoin(ctx context.Context) (struct{}, error) {
	none := struct{}{}
	if len(k.spec.OtherControlPlanes()) == 0 {
		return none, errors.New("etcd: nothing was changed: Cluster.spec.controlPlanes names no other machine that could be joined")
	}
	var s nodespec.EtcdStatus
	if k.ask(ctx, &s) == nil && s.Leader != "" {
		return none, errors.New("etcd: nothing was changed: this machine is a member, and a quorum answers it")
	}
	if _, ok := k.asker().serving(ctx); !ok {
		return none, errors.New("etcd: nothing was changed: no other machine of Cluster.spec.controlPlanes serves the cluster's data, so there is nobody to join; switch them on, or `orlopctl etcd recover` the one whose data are to be kept")
	}
	if err := durable.WriteFile(k.at(nodespec.RejoinFile), nil, 0o600); err != nil {
		return none, fmt.Errorf("etcd: cannot write down that the data are dropped: %w", err)
	}
	return none, nil
}

// drop does what rejoin has written down. A cut at any moment is finished by the next call.
func (k keeper) drop() error {
	if !exists(k.at(nodespec.RejoinFile)) {
		return nil
	}
	// What is begun anew does not go on alone.
	if err := k.goneAlone(); err != nil {
		return err
	}
	// Data that were of no member, because joining was cut short, are no reason to lose those that were.
	if k.hasData() && exists(k.database()) {
		if err := k.tidy(undo); err != nil {
			return err
		}
		if err := move(k.database(), k.at(undo)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(k.dirs.EtcdData, member)); err != nil {
		return fmt.Errorf("etcd: cannot drop the data: %w", err)
	}
	if err := durable.SyncFolder(k.dirs.EtcdData); err != nil {
		return err
	}
	if err := k.tidy(nodespec.RejoinFile); err != nil {
		return err
	}
	return durable.SyncFolder(k.dirs.EtcdKept) // if it came back, it would drop what this machine has joined with by then
}

// alone is an error in a cluster of several members: what is done to the data of one of them would not be done to the others'.
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
