package machinetest

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// upgradeService simulates a machine with an unreliable connection. Uploads fail after brokenAfter
// bytes, and a watch of an upgrade fails while the upgrade is running.
type upgradeService struct {
	api.UnimplementedUpgradeServer
	f      *Machine
	mu     sync.Mutex
	have   int64              // bytes of the uploaded bundle
	breaks int                // number of uploads that failed
	record *api.UpgradeStatus // the last upgrade
	// finalized is true after a call of Finalize has raised the level of the cluster.
	finalized bool
}

const (
	brokenAfter   = 1_500_000 // bytes of an upload before the connection breaks
	brokenVersion = "1.6.0"   // a version that every machine rolls back
)

// BeginUpload implements api.UpgradeServer.
func (s *upgradeService) BeginUpload(_ context.Context, r *api.BeginUploadRequest) (*api.BeginUploadResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Size < 1<<20 {
		return nil, status.Error(codes.FailedPrecondition, "upgrade refused: the test expects more")
	}
	return &api.BeginUploadResponse{Received: s.have}, nil
}

// Upload implements api.UpgradeServer.
func (s *upgradeService) Upload(stream grpc.ClientStreamingServer[api.UploadBundleRequest, api.UpgradeStarted]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Offset != s.have || len(first.Sha256) != 64 {
		return status.Errorf(codes.FailedPrecondition, "offset %d of %s, the test expects %d", first.Offset, first.Sha256, s.have)
	}
	if err := s.f.checkNeeded(disruption.Upgrade, first.Force); err != nil {
		return err
	}
	for came := int64(0); ; {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(s.begin("1.3.0"))
		}
		if err != nil {
			return err
		}
		came, s.have = came+int64(len(r.Chunk)), s.have+int64(len(r.Chunk))
		if came > brokenAfter {
			s.breaks++
			return status.Error([]codes.Code{codes.Unavailable, codes.Aborted}[s.breaks%2], "the test breaks it off")
		}
	}
}

// Fetch implements api.UpgradeServer.
func (s *upgradeService) Fetch(_ context.Context, r *api.FetchBundleRequest) (*api.UpgradeStarted, error) {
	if err := s.f.checkNeeded(disruption.Upgrade, r.Force); err != nil {
		return nil, err
	}
	version := "1.4.0"
	switch {
	case r.Peer == "10.0.0.12" && r.Reference == "":
		version = "1.5.0"
	case r.Peer == "10.0.0.66" && r.Reference == "":
		version = brokenVersion
	case r.Reference != "registry.test/orlop:1" || string(r.Ca) != "a CA\n" || r.Username != "dora" || r.Password != "secret":
		return nil, status.Errorf(codes.FailedPrecondition, "the test does not expect %v", r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begin(version), nil
}

// Rollback implements api.UpgradeServer.
func (s *upgradeService) Rollback(_ context.Context, r *api.RollbackRequest) (*api.RollbackResponse, error) {
	if err := s.f.checkNeeded(disruption.Rollback, r.Force); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = &api.UpgradeStatus{Running: "1.2.2", From: "1.2.2", To: "1.2.3", Phase: "rolled back", Reason: "asked by admin"}
	return &api.RollbackResponse{To: "1.2.2"}, nil
}

// Finalize implements api.UpgradeServer. Only the first call raises the level.
func (s *upgradeService) Finalize(context.Context, *api.FinalizeRequest) (*api.FinalizeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.GetPhase() == "writing" {
		return nil, status.Error(codes.FailedPrecondition, "finalize refused: control-plane machine m1 is being upgraded; wait until it is healthy (`orlopctl health`)")
	}
	from := "1.36"
	if s.finalized {
		from = "1.37"
	}
	s.finalized = true
	return &api.FinalizeResponse{From: from, To: "1.37"}, nil
}

// begin records that an upgrade to a version is running.
func (s *upgradeService) begin(version string) *api.UpgradeStarted {
	s.record = &api.UpgradeStatus{Running: "1.2.3", From: "1.2.3", To: version, Phase: "writing", Operation: "write", Done: 1 << 20, Total: 2 << 20}
	return &api.UpgradeStarted{From: "1.2.3", To: version}
}

// Status implements api.UpgradeServer.
func (s *upgradeService) Status(context.Context, *api.UpgradeStatusRequest) (*api.UpgradeStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record, nil
}

// Watch implements api.UpgradeServer.
func (s *upgradeService) Watch(_ *api.WatchUpgradeRequest, stream grpc.ServerStreamingServer[api.UpgradeStatus]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := stream.Send(s.record); err != nil {
		return err
	}
	if s.record.GetPhase() == "writing" {
		if s.record.To == brokenVersion {
			s.record = &api.UpgradeStatus{Running: "1.2.3", From: "1.2.3", To: brokenVersion, Phase: "rolled back", Reason: "the test rolls it back"}
		} else {
			s.record = &api.UpgradeStatus{Running: s.record.To, From: "1.2.3", To: s.record.To, Phase: "committed"}
		}
		return status.Error(codes.Unavailable, "the machine reboots")
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}
