package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Etcd is the etcd of this machine (package etcd of machined).
type Etcd interface {
	SendSnapshot(ctx context.Context, stored, by string, send func(*api.EtcdSnapshotResponse) error) error
	// ListSnapshots returns the stored snapshots, the URL to which they are uploaded, and the error
	// of the last upload.
	ListSnapshots(ctx context.Context) (stored []nodespec.StoredSnapshot, target, problem string, err error)
	TakeSnapshot() (made nodespec.StoredSnapshot, problem string, err error)
	Restore(first *api.EtcdRestoreRequest, receive func() (*api.EtcdRestoreRequest, error), by string) (nodespec.EtcdRestored, error)
	Status(ctx context.Context) (nodespec.EtcdStatus, error)
	Defragment(ctx context.Context, by string) (nodespec.EtcdDefragmented, error)
	Disarm(ctx context.Context) (alarms []string, err error)
	RemoveMember(member, by string) (removed nodespec.EtcdMember, nodeError string, err error)
	Recover(by string) (dropped []string, err error)
	Rejoin(by string) error
}

type etcdService struct {
	api.UnimplementedEtcdServer
	etcd Etcd
}

func (s etcdService) Snapshot(r *api.EtcdSnapshotRequest, stream grpc.ServerStreamingServer[api.EtcdSnapshotResponse]) error {
	return endOfStream(s.etcd.SendSnapshot(stream.Context(), r.Stored, caller(stream.Context()), stream.Send))
}

func (s etcdService) ListSnapshots(ctx context.Context, _ *api.EtcdListSnapshotsRequest) (*api.EtcdListSnapshotsResponse, error) {
	stored, target, problem, err := s.etcd.ListSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.EtcdListSnapshotsResponse{Target: target, Problem: problem}
	for _, one := range stored {
		out.Snapshots = append(out.Snapshots, toStoredSnapshot(one))
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

func (s etcdService) TakeSnapshot(context.Context, *api.EtcdTakeSnapshotRequest) (*api.EtcdTakeSnapshotResponse, error) {
	made, problem, err := s.etcd.TakeSnapshot()
	if err != nil {
		return nil, err
	}
	return &api.EtcdTakeSnapshotResponse{Snapshot: toStoredSnapshot(made), Problem: problem}, nil
}

func (s etcdService) Restore(stream grpc.ClientStreamingServer[api.EtcdRestoreRequest, api.EtcdRestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	restored, err := s.etcd.Restore(first, stream.Recv, caller(stream.Context()))
	if err != nil {
		return err
	}
	return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: toRestored(restored)})
}

func toRestored(r nodespec.EtcdRestored) *api.EtcdRestored {
	return &api.EtcdRestored{At: timestamppb.New(r.At), By: r.By, Revision: r.Revision, Keys: int64(r.Keys), Replaced: r.Replaced, Undo: r.Undo}
}

func (s etcdService) Status(ctx context.Context, _ *api.EtcdStatusRequest) (*api.EtcdStatusResponse, error) {
	have, err := s.etcd.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.EtcdStatusResponse{
		Problem: have.Problem, Member: have.Member, Id: have.ID, Leader: have.Leader, Version: have.Version, Size: have.Size, Used: have.Used, Quota: have.Quota,
		Revision: have.Revision, RaftIndex: have.Index, RaftTerm: have.Term, Alarms: have.Alarms, UndoSize: have.UndoSize,
	}
	if have.Restored != nil {
		out.Restored = toRestored(*have.Restored)
	}
	for _, m := range have.Members {
		out.Members = append(out.Members, toEtcdMember(m))
	}
	return out, nil
}

func (s etcdService) Defragment(ctx context.Context, _ *api.EtcdDefragmentRequest) (*api.EtcdDefragmentResponse, error) {
	done, err := s.etcd.Defragment(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.EtcdDefragmentResponse{Before: done.Before, After: done.After, Compacted: done.Compacted}, nil
}

func (s etcdService) Disarm(ctx context.Context, _ *api.EtcdDisarmRequest) (*api.EtcdDisarmResponse, error) {
	raised, err := s.etcd.Disarm(ctx)
	if err != nil {
		return nil, err
	}
	if len(raised) == 0 {
		SetUnchanged(ctx)
	}
	return &api.EtcdDisarmResponse{Alarms: raised}, nil
}

func toEtcdMember(m nodespec.EtcdMember) *api.EtcdMember {
	return &api.EtcdMember{Id: m.ID, Name: m.Name, PeerUrls: m.PeerURLs, Learner: m.Learner, Problem: m.Problem}
}

func (s etcdService) RemoveMember(ctx context.Context, r *api.EtcdRemoveMemberRequest) (*api.EtcdRemoveMemberResponse, error) {
	removed, nodeError, err := s.etcd.RemoveMember(r.Member, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.EtcdRemoveMemberResponse{Removed: toEtcdMember(removed), NodeError: nodeError}, nil
}

func (s etcdService) Recover(ctx context.Context, _ *api.EtcdRecoverRequest) (*api.EtcdRecoverResponse, error) {
	dropped, err := s.etcd.Recover(caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.EtcdRecoverResponse{RemovedMembers: dropped}, nil
}

func (s etcdService) Rejoin(ctx context.Context, _ *api.EtcdRejoinRequest) (*api.EtcdRejoinResponse, error) {
	if err := s.etcd.Rejoin(caller(ctx)); err != nil {
		return nil, err
	}
	return &api.EtcdRejoinResponse{}, nil
}
