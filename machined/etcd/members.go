package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// RemoveMember removes a member, and deletes its Node if it was a machine.
func (k *Manager) RemoveMember(member, by string) (*api.EtcdRemoveMemberResponse, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	if member == "" {
		return nil, status.Error(codes.InvalidArgument, "etcd: no member is named; `orlopctl etcd members` lists them")
	}
	// The removal continues if the caller disconnects: the deletion of the Node cannot be requested
	// again, because the etcd member does not exist any more.
	removed := &api.EtcdMember{}
	if err := nodespec.RunInto(k.deps.Stopping, k.deps.Command, paths.UserAPI, "remove-member", &api.EtcdRemoveMemberRequest{Member: member}, removed); err != nil {
		return nil, commandError(err)
	}
	k.deps.Event("etcd", "operation", fmt.Sprintf("the member %s (%s) was removed by %s", removed.Name, removed.Id, by))
	return &api.EtcdRemoveMemberResponse{Removed: removed, NodeError: k.deleteMemberNode(k.deps.Stopping, removed)}, nil
}

// deleteMemberNode deletes the Node and the pods of a control-plane machine after the removal of
// its etcd member. It returns the reason if the Node stays: the configuration still names the
// machine, which may come back, or a replacement already has its name.
func (k *Manager) deleteMemberNode(ctx context.Context, removed *api.EtcdMember) string {
	if removed.Name == "" {
		return "" // its etcd has never started, so its Node is unknown
	}
	now, _ := k.deps.Config.Get()
	if !now.Config.IsControlPlane() {
		return "this machine has no configuration of a control plane any more; `kubectl delete node " + removed.Name + "`"
	}
	for _, at := range removed.PeerUrls {
		u, err := url.Parse(at)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && slices.Contains(now.Config.Cluster.Spec.ControlPlanes, a) {
			return fmt.Sprintf("Cluster.spec.controlPlanes names %s, so the machine may come back; remove it there, then `kubectl delete node %s`", a, removed.Name)
		}
	}
	if k.deps.NameInUse(now.Config, removed.Name) {
		return "another machine of the cluster has its name"
	}
	there, err := k.deps.DeleteNodes(ctx, now.Config, []string{removed.Name})
	if err != nil {
		return err.Error()
	}
	for _, name := range there {
		k.deps.Event("cluster", "operation", fmt.Sprintf("the Node of machine %s is deleted: its member was removed", name))
	}
	return ""
}

// Recover restarts etcd with this machine as the only member, after a permanent loss of the quorum.
// When etcd serves, it returns the names of the dropped members.
func (k *Manager) Recover(by string) (dropped []string, err error) {
	done, err := changeMembership[nodespec.EtcdRecovered](k, "recover-data", nodespec.ForceNewClusterFile)
	if err != nil {
		return nil, err
	}
	// The other members may have come back before the restart; then etcd continues with them. This
	// check continues if the caller disconnects.
	now := &api.EtcdStatusResponse{}
	if err := nodespec.RunInto(k.deps.Stopping, k.deps.Command, paths.UserAPI, "data-status", nil, now); err != nil {
		return nil, status.Errorf(codes.Unavailable, "etcd: serves, but its remaining members are unknown: %v; `orlopctl etcd members` lists them", err)
	}
	if i := slices.IndexFunc(now.Members, func(m *api.EtcdMember) bool { return slices.Contains(done.IDs, m.Id) }); i >= 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: no member was removed: %s came back meanwhile, and a quorum answers", now.Members[i].Name)
	}
	k.deps.Event("etcd", "operation", fmt.Sprintf("etcd continues without %s, asked by %s", strings.Join(done.RemovedMembers, ", "), by))
	return done.RemovedMembers, nil
}

// Rejoin drops the data of a machine that is no member any more, and returns when it is a member
// again.
func (k *Manager) Rejoin(by string) error {
	if _, err := changeMembership[struct{}](k, "rejoin-data", nodespec.RejoinFile); err != nil {
		return err
	}
	k.deps.Event("etcd", "operation", "this machine dropped its etcd data and is a member again, asked by "+by)
	return nil
}

// Leave removes the etcd member of this machine before its data are wiped. The other members then
// do not count it for their quorum. Leave returns an error if they would lose their quorum. It
// continues if the caller disconnects.
func (k *Manager) Leave(by string) error {
	if k.check() != nil {
		return nil
	}
	left := &api.EtcdMember{}
	err := nodespec.RunInto(k.deps.Stopping, k.deps.Command, paths.UserAPI, "leave-cluster", nil, left)
	if err == nil && left.Id != "" {
		k.deps.Event("etcd", "operation", fmt.Sprintf("this machine's member %s has left, asked by %s", left.Id, by))
	}
	return err
}

// changeMembership stores a request that etcd performs at its next start, restarts etcd, and
// returns when etcd serves. It continues if the caller disconnects.
func changeMembership[Answer any](k *Manager, command, mark string) (answer Answer, err error) {
	if err := k.check(); err != nil {
		return answer, err
	}
	if !k.snapshotMu.TryLock() {
		return answer, errSnapshotBusy
	}
	defer k.snapshotMu.Unlock()
	if answer, err = nodespec.Run[Answer](k.deps.Stopping, k.deps.Command, paths.UserAPI, command, nil); err != nil {
		return answer, commandError(err)
	}
	return answer, k.restartFor(mark)
}

// restartFor restarts etcd for a stored request, and returns when the request is done and etcd
// serves.
func (k *Manager) restartFor(mark string) error {
	failed, err := k.restart(func() bool {
		_, pending := os.Lstat(filepath.Join(paths.EtcdSnapshots, mark))
		return errors.Is(pending, fs.ErrNotExist)
	})
	if err != nil {
		return status.Errorf(codes.Unavailable, "etcd: the change is stored and applies when etcd starts, which has not happened yet: %v; `orlopctl services` shows more", err)
	}
	if failed != "" {
		return status.Errorf(codes.Unavailable, "etcd: does not serve yet and restarts: %s; `orlopctl services` shows more", failed)
	}
	return nil
}
