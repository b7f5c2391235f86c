package api

import (
	"context"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
)

// UpgradeDeps are the dependencies of service Upgrade (package upgrade of machined). The errors are
// gRPC statuses.
type UpgradeDeps struct {
	// Status is the state of the last upgrade.
	Status   cell.View[*api.UpgradeStatus]
	Receiver BundleReceiver
	Server   BundleServer
	// Rollback starts the return to the version in the other slot, and returns this version. force
	// overrides a rejection by the cluster.
	Rollback func(ctx context.Context, force bool, by string) (version string, err error)
	// Finalize raises the level of the cluster, and returns the level before and after.
	Finalize func(ctx context.Context, by string) (from, to string, err error)
}

// BundleReceiver receives a bundle from a client, a registry or a peer.
type BundleReceiver interface {
	BeginUpload(sha256 string, size int64) (have int64, err error)
	Upload(first *api.UploadBundleRequest, next func() (*api.UploadBundleRequest, error), by string) (*api.UpgradeStarted, error)
	Fetch(ctx context.Context, r *api.FetchBundleRequest, by string) (*api.UpgradeStarted, error)
}

// BundleServer serves the running version to peers, and its bill of materials to clients. by is the
// ID of the caller.
type BundleServer interface {
	DescribeBundle(ctx context.Context) (*api.DescribeBundleResponse, error)
	Download(ctx context.Context, r *api.DownloadBundleRequest, by string, send func(piece []byte) error) error
	ReadSBOM(ctx context.Context, by string, send func(*api.ReadSBOMResponse) error) error
}

type upgradeService struct {
	api.UnimplementedUpgradeServer
	deps UpgradeDeps
}

func (s upgradeService) Status(context.Context, *api.UpgradeStatusRequest) (*api.UpgradeStatus, error) {
	now, _ := s.deps.Status.Get()
	return now, nil
}

func (s upgradeService) Watch(_ *api.WatchUpgradeRequest, stream grpc.ServerStreamingServer[api.UpgradeStatus]) error {
	for w := s.deps.Status.Watch(); ; {
		now, _, err := w.Next(stream.Context())
		if err != nil {
			return endOfStream(err)
		}
		if err := stream.Send(now); err != nil {
			return err
		}
	}
}

func (s upgradeService) BeginUpload(_ context.Context, r *api.BeginUploadRequest) (*api.BeginUploadResponse, error) {
	have, err := s.deps.Receiver.BeginUpload(r.Sha256, r.Size)
	if err != nil {
		return nil, err
	}
	return &api.BeginUploadResponse{Received: have}, nil
}

func (s upgradeService) Upload(stream grpc.ClientStreamingServer[api.UploadBundleRequest, api.UpgradeStarted]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	started, err := s.deps.Receiver.Upload(first, stream.Recv, caller(stream.Context()))
	if err != nil {
		return err
	}
	return stream.SendAndClose(started)
}

func (s upgradeService) Fetch(ctx context.Context, r *api.FetchBundleRequest) (*api.UpgradeStarted, error) {
	return s.deps.Receiver.Fetch(ctx, r, caller(ctx))
}

func (s upgradeService) Rollback(ctx context.Context, r *api.RollbackRequest) (*api.RollbackResponse, error) {
	ctx, err := withApproval(ctx, r)
	if err != nil {
		return nil, err
	}
	to, err := s.deps.Rollback(ctx, r.Force, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.RollbackResponse{To: to}, nil
}

func (s upgradeService) Finalize(ctx context.Context, _ *api.FinalizeRequest) (*api.FinalizeResponse, error) {
	from, to, err := s.deps.Finalize(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.FinalizeResponse{From: from, To: to}, nil
}

func (s upgradeService) DescribeBundle(ctx context.Context, _ *api.DescribeBundleRequest) (*api.DescribeBundleResponse, error) {
	return s.deps.Server.DescribeBundle(ctx)
}

func (s upgradeService) Download(r *api.DownloadBundleRequest, stream grpc.ServerStreamingServer[api.DownloadBundleResponse]) error {
	return s.deps.Server.Download(stream.Context(), r, api.CallerFromContext(stream.Context()).ID(), func(piece []byte) error {
		return stream.Send(&api.DownloadBundleResponse{Chunk: piece})
	})
}

func (s upgradeService) ReadSBOM(_ *api.ReadSBOMRequest, stream grpc.ServerStreamingServer[api.ReadSBOMResponse]) error {
	return s.deps.Server.ReadSBOM(stream.Context(), api.CallerFromContext(stream.Context()).ID(), stream.Send)
}
