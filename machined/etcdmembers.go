package main

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
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Methods about the members of etcd (docs/decisions/0029-members.md). The orchestrator decides
// which changes are safe (orchestrator/etcd/members.go).

func toEtcdMember(m nodespec.EtcdMember) *api.EtcdMember {
	return &api.EtcdMember{Id: m.ID, Name: m.Name, PeerUrls: m.PeerURLs, Learner: m.Learner, Problem: m.Problem}
}

func (a etcdAPI) RemoveMember(ctx context.Context, r *api.EtcdRemoveMemberRequest) (*api.EtcdRemoveMemberResponse, error) {
	if err := a.m.checkEtcd(); err != nil {
		return nil, err
	}
	if r.Member == "" {
		return nil, status.Error(codes.InvalidArgument, "etcd: no member is named; `orlopctl etcd members` lists them")
	}
	// It continues if the caller disconnects: the deletion of the Node cannot be requested again,
	// because the etcd member does not exist any more.
	removed, err := runCommand[nodespec.EtcdMember](a.m.runCtx, a.m, paths.UserAPI, "remove-member", r.Member)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	a.m.events.add("etcd", "operation", fmt.Sprintf("the member %s (%s) was removed by %s", removed.Name, removed.ID, caller(ctx)))
	return &api.EtcdRemoveMemberResponse{Removed: toEtcdMember(removed), NodeError: a.m.deleteMemberNode(a.m.runCtx, removed)}, nil
}

// deleteMemberNode deletes the Node and the pods of a control-plane machine after the removal of
// its etcd member, or returns why the Node stays. A machine in the configuration may come back, and
// its replacement may have its name already.
func (m *machine) deleteMemberNode(ctx context.Context, removed nodespec.EtcdMember) string {
	if removed.Name == "" {
		return "" // its etcd has never started, so its Node is unknown
	}
	now, _ := m.config.Get()
	if !isControlPlane(now.config) {
		return "this machine has no configuration of a control plane any more; `kubectl delete node " + removed.Name + "`"
	}
	for _, at := range removed.PeerURLs {
		u, err := url.Parse(at)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && slices.Contains(now.config.Cluster.Spec.ControlPlanes, a) {
			return fmt.Sprintf("Cluster.spec.controlPlanes names %s, so the machine may come back; remove it there, then `kubectl delete node %s`", a, removed.Name)
		}
	}
	if known := m.ledger.current(); reservedName(now.config, known, removed.Name) || known.NameInUse(removed.Name, time.Now()) {
		return "another machine of the cluster has its name"
	}
	there, err := m.deleteNodes(ctx, now.config, []string{removed.Name})
	if err != nil {
		return err.Error()
	}
	for _, name := range there {
		m.events.add("cluster", "operation", fmt.Sprintf("the Node of machine %s is deleted: its member was removed", name))
	}
	return ""
}

func (a etcdAPI) Recover(ctx context.Context, _ *api.EtcdRecoverRequest) (*api.EtcdRecoverResponse, error) {
	done, err := changeMembership[nodespec.EtcdRecovered](a.m, "recover-data", nodespec.ForceNewClusterFile)
	if err != nil {
		return nil, err
	}
	// The other members may have come back before the restart; then etcd continues with them.
	//
	// It continues if the caller disconnects.
	now, err := runCommand[nodespec.EtcdStatus](a.m.runCtx, a.m, paths.UserAPI, "data-status", nil)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "etcd: serves, but its remaining members are unknown: %v; `orlopctl etcd members` lists them", err)
	}
	if i := slices.IndexFunc(now.Members, func(m nodespec.EtcdMember) bool { return slices.Contains(done.IDs, m.ID) }); i >= 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: no member was removed: %s came back meanwhile, and a quorum answers", now.Members[i].Name)
	}
	a.m.events.add("etcd", "operation", fmt.Sprintf("etcd continues without %s, asked by %s", strings.Join(done.RemovedMembers, ", "), caller(ctx)))
	return &api.EtcdRecoverResponse{RemovedMembers: done.RemovedMembers}, nil
}

func (a etcdAPI) Rejoin(ctx context.Context, _ *api.EtcdRejoinRequest) (*api.EtcdRejoinResponse, error) {
	if _, err := changeMembership[struct{}](a.m, "rejoin-data", nodespec.RejoinFile); err != nil {
		return nil, err
	}
	a.m.events.add("etcd", "operation", "this machine dropped its etcd data and is a member again, asked by "+caller(ctx))
	return &api.EtcdRejoinResponse{}, nil
}

// leaveEtcd removes the etcd member of this machine before its data are wiped, so that the others
// do not count it. It returns an error if they would lose their quorum. It continues if the caller
// disconnects.
func (m *machine) leaveEtcd(by string) error {
	if m.checkEtcd() != nil {
		return nil
	}
	left, err := runCommand[nodespec.EtcdMember](m.runCtx, m, paths.UserAPI, "leave-cluster", nil)
	if err == nil && left.ID != "" {
		m.events.add("etcd", "operation", fmt.Sprintf("this machine's member %s has left, asked by %s", left.ID, by))
	}
	return err
}

// checkQuorumWithout returns an error if the others would lose their quorum while this machine,
// which retains its data, has no configuration to start etcd. An unknown state is no error: a
// machine in an unknown state does not vote either.
func (m *machine) checkQuorumWithout() error {
	if m.checkEtcd() != nil {
		return nil
	}
	now, err := runCommand[nodespec.EtcdStatus](m.runCtx, m, paths.UserAPI, "data-status", nil)
	if err != nil || now.Leader == "" {
		return nil
	}
	if slices.ContainsFunc(now.Members, func(m nodespec.EtcdMember) bool { return m.Learner && m.ID == now.ID }) {
		return nil // it has no vote
	}
	return etcdjoin.MayRestart(nodespec.CountVoters(now.Members))
}

// changeMembership stores a request that etcd performs at its next start, restarts etcd, and
// returns when etcd serves. It continues if the caller disconnects.
func changeMembership[Answer any](m *machine, command, mark string) (answer Answer, err error) {
	if err := m.checkEtcd(); err != nil {
		return answer, err
	}
	if !m.snapshotMu.TryLock() {
		return answer, errSnapshotBusy
	}
	defer m.snapshotMu.Unlock()
	if answer, err = runCommand[Answer](m.runCtx, m, paths.UserAPI, command, nil); err != nil {
		return answer, status.Error(codes.FailedPrecondition, err.Error())
	}
	return answer, m.restartFor(mark)
}

// restartFor restarts etcd for a stored request, and returns when the request is done and etcd
// serves.
func (m *machine) restartFor(mark string) error {
	failed, err := m.restartEtcd(func() bool {
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

// exitReason returns why a service has ended that waits for its restart; empty if it does not wait.
func exitReason(list []supervise.Status, service string) string {
	i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == service })
	if i < 0 || list[i].State != supervise.BackingOff {
		return ""
	}
	return list[i].Detail
}

// componentReady reports whether a component of a service is ready.
func componentReady(list []supervise.Status, service, component string) bool {
	i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == service })
	return i >= 0 && slices.ContainsFunc(list[i].Components, func(c supervise.Component) bool { return c.Name == component && c.Ready })
}
