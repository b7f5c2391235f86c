package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Etcd is the etcd of this machine (package etcd of machined).
type Etcd interface {
	// Read and Change run a command of the orchestrator for which machined has no rules. The
	// command reads the request (nil: none) and writes the answer. After a success, Change adds an
	// event with the text that the function event returns (nil: no event).
	Read(ctx context.Context, command string, request, answer proto.Message) error
	Change(ctx context.Context, command string, request, answer proto.Message, event func() string) error

	SendSnapshot(ctx context.Context, stored, by string, send func(*api.EtcdSnapshotResponse) error) error
	ListSnapshots(ctx context.Context) (*api.EtcdListSnapshotsResponse, error)
	TakeSnapshot() (*api.EtcdTakeSnapshotResponse, error)
	Restore(first *api.EtcdRestoreRequest, receive func() (*api.EtcdRestoreRequest, error), by string) (nodespec.EtcdRestored, error)
	Reencrypt(ctx context.Context, countOnly bool) (nodespec.ReencryptResult, error)
	RemoveMember(member, by string) (*api.EtcdRemoveMemberResponse, error)
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
	return s.etcd.ListSnapshots(ctx)
}

func (s etcdService) TakeSnapshot(context.Context, *api.EtcdTakeSnapshotRequest) (*api.EtcdTakeSnapshotResponse, error) {
	return s.etcd.TakeSnapshot()
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
	return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: restored.Message()})
}

func (s etcdService) Status(ctx context.Context, _ *api.EtcdStatusRequest) (*api.EtcdStatusResponse, error) {
	out := &api.EtcdStatusResponse{}
	if err := s.etcd.Read(ctx, "data-status", nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (s etcdService) Defragment(ctx context.Context, _ *api.EtcdDefragmentRequest) (*api.EtcdDefragmentResponse, error) {
	out := &api.EtcdDefragmentResponse{}
	err := s.etcd.Change(ctx, "defragment-data", nil, out, func() string {
		return fmt.Sprintf("defragmented from %d KiB to %d KiB, asked by %s", out.Before>>10, out.After>>10, caller(ctx))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s etcdService) Disarm(ctx context.Context, _ *api.EtcdDisarmRequest) (*api.EtcdDisarmResponse, error) {
	out := &api.EtcdDisarmResponse{}
	if err := s.etcd.Change(ctx, "disarm-data", nil, out, nil); err != nil {
		return nil, err
	}
	if len(out.Alarms) == 0 {
		SetUnchanged(ctx)
	}
	return out, nil
}

func (s etcdService) Reencrypt(ctx context.Context, r *api.EtcdReencryptRequest) (*api.EtcdReencryptResponse, error) {
	done, err := s.etcd.Reencrypt(ctx, r.CountOnly)
	if _, coded := status.FromError(err); !coded {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err != nil {
		return nil, err
	}
	if r.CountOnly || done.Reencrypted == 0 {
		SetUnchanged(ctx)
	}
	return &api.EtcdReencryptResponse{Secrets: int64(done.Secrets), Reencrypted: int64(done.Reencrypted)}, nil
}

func (s etcdService) RemoveMember(ctx context.Context, r *api.EtcdRemoveMemberRequest) (*api.EtcdRemoveMemberResponse, error) {
	return s.etcd.RemoveMember(r.Member, caller(ctx))
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
