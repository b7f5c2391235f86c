package main

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The methods of package etcd.

type etcdAPI struct {
	api.UnimplementedEtcdServer
	m *machine
}

func (a etcdAPI) Snapshot(r *api.EtcdSnapshotRequest, stream grpc.ServerStreamingServer[api.EtcdSnapshotResponse]) error {
	return endOfStream(a.m.etcd.SendSnapshot(stream.Context(), r.Stored, caller(stream.Context()), stream.Send))
}

func (a etcdAPI) ListSnapshots(ctx context.Context, _ *api.EtcdListSnapshotsRequest) (*api.EtcdListSnapshotsResponse, error) {
	list, err := a.m.etcd.ListSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.EtcdListSnapshotsResponse{Target: list.Target, Problem: list.Problem}
	for _, s := range list.Stored {
		out.Snapshots = append(out.Snapshots, toStoredSnapshot(s))
	}
	return out, nil
}

func toStoredSnapshot(s nodespec.StoredSnapshot) *api.EtcdStoredSnapshot {
	out := &api.EtcdStoredSnapshot{Name: s.Name, At: timestamppb.New(s.At), Revision: s.Revision, Size: s.Size, Version: s.Version, Encrypted: s.Encrypted}
	if !s.Uploaded.IsZero() {
		out.Uploaded = timestamppb.New(s.Uploaded)
	}
	return out
}

func (a etcdAPI) TakeSnapshot(context.Context, *api.EtcdTakeSnapshotRequest) (*api.EtcdTakeSnapshotResponse, error) {
	made, problem, err := a.m.etcd.TakeSnapshot()
	if err != nil {
		return nil, err
	}
	return &api.EtcdTakeSnapshotResponse{Snapshot: toStoredSnapshot(made), Problem: problem}, nil
}

func (a etcdAPI) Restore(stream grpc.ClientStreamingServer[api.EtcdRestoreRequest, api.EtcdRestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	restored, err := a.m.etcd.Restore(first, stream.Recv, caller(stream.Context()))
	if err != nil {
		return err
	}
	return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: toRestored(restored)})
}

func toRestored(r nodespec.EtcdRestored) *api.EtcdRestored {
	return &api.EtcdRestored{At: timestamppb.New(r.At), By: r.By, Revision: r.Revision, Keys: int64(r.Keys), Replaced: r.Replaced, Undo: r.Undo}
}

func (a etcdAPI) Status(ctx context.Context, _ *api.EtcdStatusRequest) (*api.EtcdStatusResponse, error) {
	s, err := a.m.etcd.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.EtcdStatusResponse{
		Problem: s.Problem, Member: s.Member, Id: s.ID, Leader: s.Leader, Version: s.Version, Size: s.Size, Used: s.Used, Quota: s.Quota,
		Revision: s.Revision, RaftIndex: s.Index, RaftTerm: s.Term, Alarms: s.Alarms, UndoSize: s.UndoSize,
	}
	if s.Restored != nil {
		out.Restored = toRestored(*s.Restored)
	}
	for _, m := range s.Members {
		out.Members = append(out.Members, toEtcdMember(m))
	}
	return out, nil
}

func (a etcdAPI) Defragment(ctx context.Context, _ *api.EtcdDefragmentRequest) (*api.EtcdDefragmentResponse, error) {
	done, err := a.m.etcd.Defragment(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.EtcdDefragmentResponse{Before: done.Before, After: done.After, Compacted: done.Compacted}, nil
}

func (a etcdAPI) Disarm(ctx context.Context, _ *api.EtcdDisarmRequest) (*api.EtcdDisarmResponse, error) {
	raised, err := a.m.etcd.Disarm(ctx)
	if err != nil {
		return nil, err
	}
	if len(raised) == 0 {
		setUnchanged(ctx)
	}
	return &api.EtcdDisarmResponse{Alarms: raised}, nil
}

func toEtcdMember(m nodespec.EtcdMember) *api.EtcdMember {
	return &api.EtcdMember{Id: m.ID, Name: m.Name, PeerUrls: m.PeerURLs, Learner: m.Learner, Problem: m.Problem}
}

func (a etcdAPI) RemoveMember(ctx context.Context, r *api.EtcdRemoveMemberRequest) (*api.EtcdRemoveMemberResponse, error) {
	removed, nodeError, err := a.m.etcd.RemoveMember(r.Member, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.EtcdRemoveMemberResponse{Removed: toEtcdMember(removed), NodeError: nodeError}, nil
}

func (a etcdAPI) Recover(ctx context.Context, _ *api.EtcdRecoverRequest) (*api.EtcdRecoverResponse, error) {
	dropped, err := a.m.etcd.Recover(caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.EtcdRecoverResponse{RemovedMembers: dropped}, nil
}

func (a etcdAPI) Rejoin(ctx context.Context, _ *api.EtcdRejoinRequest) (*api.EtcdRejoinResponse, error) {
	if err := a.m.etcd.Rejoin(caller(ctx)); err != nil {
		return nil, err
	}
	return &api.EtcdRejoinResponse{}, nil
}
