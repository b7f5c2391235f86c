package main

import (
	"context"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/api"
)

// The methods of package upgrade.

type upgradeAPI struct {
	api.UnimplementedUpgradeServer
	m *machine
}

func (a upgradeAPI) Status(context.Context, *api.UpgradeStatusRequest) (*api.UpgradeStatus, error) {
	now, _ := a.m.upgrade.Controller.State().Get()
	return a.m.upgrade.Controller.Status(now), nil
}

func (a upgradeAPI) Watch(_ *api.WatchUpgradeRequest, stream grpc.ServerStreamingServer[api.UpgradeStatus]) error {
	for w := a.m.upgrade.Controller.State().Watch(); ; {
		now, _, err := w.Next(stream.Context())
		if err != nil {
			return endOfStream(err)
		}
		if err := stream.Send(a.m.upgrade.Controller.Status(now)); err != nil {
			return err
		}
	}
}

func (a upgradeAPI) BeginUpload(_ context.Context, r *api.BeginUploadRequest) (*api.BeginUploadResponse, error) {
	have, err := a.m.upgrade.Receiver.BeginUpload(r.Sha256, r.Size)
	if err != nil {
		return nil, err
	}
	return &api.BeginUploadResponse{Received: have}, nil
}

func (a upgradeAPI) Upload(stream grpc.ClientStreamingServer[api.UploadBundleRequest, api.UpgradeStarted]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	started, err := a.m.upgrade.Receiver.Upload(first, stream.Recv, caller(stream.Context()))
	if err != nil {
		return err
	}
	return stream.SendAndClose(started)
}

func (a upgradeAPI) Fetch(ctx context.Context, r *api.FetchBundleRequest) (*api.UpgradeStarted, error) {
	return a.m.upgrade.Receiver.Fetch(ctx, r, caller(ctx))
}

func (a upgradeAPI) Rollback(ctx context.Context, _ *api.RollbackRequest) (*api.RollbackResponse, error) {
	to, err := a.m.upgrade.Controller.Rollback(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &api.RollbackResponse{To: to}, nil
}

func (a upgradeAPI) DescribeBundle(context.Context, *api.DescribeBundleRequest) (*api.DescribeBundleResponse, error) {
	return a.m.upgrade.Server.DescribeBundle()
}

func (a upgradeAPI) Download(r *api.DownloadBundleRequest, stream grpc.ServerStreamingServer[api.DownloadBundleResponse]) error {
	return a.m.upgrade.Server.Download(stream.Context(), r, memberID(stream.Context()), func(piece []byte) error {
		return stream.Send(&api.DownloadBundleResponse{Chunk: piece})
	})
}
