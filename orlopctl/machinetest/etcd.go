package machinetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync"

	agecrypt "filippo.io/age"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// etcdService simulates an etcd with 300 kB of data.
//
// The stream of its second snapshot ends too early, and its third snapshot is damaged in transit.
// It restores only the snapshot that it sends, or the stored snapshot `kept`, and it can undo a
// restore. As soon as it has sent a snapshot, it has two stored snapshots. The stored snapshot
// `sealed` is encrypted for `reader`. The S3 target rejects the first upload and accepts later
// uploads. A client can disarm the alarm NOSPACE only after a defragmentation. After the
// disarming, etcd does not run.
type etcdService struct {
	api.UnimplementedEtcdServer
	mu                            sync.Mutex
	asked, kept                   int               // calls of Snapshot and TakeSnapshot
	restored                      *api.EtcdRestored // the last restore or undo
	defragged, still, reencrypted bool              // still: etcd does not run any more
}

var snapshot = []byte(strings.Repeat("the cluster's data ", 300000/19))

// Snapshot implements api.EtcdServer.
func (s *etcdService) Snapshot(request *api.EtcdSnapshotRequest, stream grpc.ServerStreamingServer[api.EtcdSnapshotResponse]) error {
	if request.Stored != "" {
		return sendFakeSnapshot(request.Stored, stream)
	}
	s.mu.Lock()
	s.asked++
	asked := s.asked
	s.mu.Unlock()
	sum := sha256.Sum256(snapshot)
	half := len(snapshot) / 2
	all := []*api.EtcdSnapshotResponse{
		{Header: &api.EtcdSnapshotInfo{Revision: 1234, Keys: 567, Size: int64(len(snapshot)), Version: "3.6.0"}},
		{Chunk: snapshot[:half]}, {Chunk: snapshot[half:]}, {Sha256: hex.EncodeToString(sum[:])},
	}
	switch asked {
	case 2:
		all = all[:3]
	case 3:
		all[2] = &api.EtcdSnapshotResponse{Chunk: []byte(strings.Repeat("x", len(all[2].Chunk)))}
	}
	for _, r := range all {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	return nil
}

const (
	kept         = "20260504T030201Z-1200-3.6.0.db"
	sealed       = "20260504T020201Z-1100-3.6.0.db.age"
	reader       = "age17v5l8engqx6xqx094k2dnwr8t3q4f7p294ceggy6zu2yce4vfeaquctkrq"
	uploadTarget = "https://s3.example.com:443/backups"
)

// sendFakeSnapshot sends the stored snapshot with this name.
func sendFakeSnapshot(name string, stream grpc.ServerStreamingServer[api.EtcdSnapshotResponse]) error {
	content := snapshot
	switch name {
	case kept:
	case sealed:
		reader, err := agecrypt.ParseX25519Recipient(reader)
		if err != nil {
			return err
		}
		var to bytes.Buffer
		w, err := agecrypt.Encrypt(&to, reader)
		if err != nil {
			return err
		}
		if _, err := w.Write(snapshot); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		content = to.Bytes()
	default:
		return status.Errorf(codes.FailedPrecondition, "etcd: the snapshot %s is not there", name)
	}
	sum := sha256.Sum256(content)
	for _, r := range []*api.EtcdSnapshotResponse{
		{Header: &api.EtcdSnapshotInfo{Revision: 1200, Size: int64(len(content)), Version: "3.6.0"}}, {Chunk: content}, {Sha256: hex.EncodeToString(sum[:])},
	} {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	return nil
}

// TakeSnapshot implements api.EtcdServer.
func (s *etcdService) TakeSnapshot(context.Context, *api.EtcdTakeSnapshotRequest) (*api.EtcdTakeSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept++
	made := &api.EtcdStoredSnapshot{Name: sealed, At: now, Revision: 1100, Size: 99 << 20, Version: "3.6.0", Encrypted: true}
	if s.kept == 1 {
		return &api.EtcdTakeSnapshotResponse{Snapshot: made, Problem: uploadTarget + ": the store answers AccessDenied: Access Denied (HTTP 403)"}, nil
	}
	made.Uploaded = now
	return &api.EtcdTakeSnapshotResponse{Snapshot: made}, nil
}

// ListSnapshots implements api.EtcdServer.
func (s *etcdService) ListSnapshots(context.Context, *api.EtcdListSnapshotsRequest) (*api.EtcdListSnapshotsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == 0 { // no snapshot was sent yet
		return &api.EtcdListSnapshotsResponse{}, nil
	}
	r := &api.EtcdListSnapshotsResponse{Snapshots: []*api.EtcdStoredSnapshot{
		{Name: kept, At: now, Revision: 1200, Size: 99 << 20, Version: "3.6.0"},
		{Name: sealed, At: now, Revision: 1100, Size: 99 << 20, Version: "3.6.0", Encrypted: true},
	}}
	switch s.kept {
	case 0:
	case 1:
		r.Target, r.Problem = uploadTarget, "the store answers AccessDenied: Access Denied (HTTP 403)"
	default:
		r.Target, r.Snapshots[1].Uploaded = uploadTarget, now
	}
	return r, nil
}

// Restore implements api.EtcdServer.
func (s *etcdService) Restore(stream grpc.ClientStreamingServer[api.EtcdRestoreRequest, api.EtcdRestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first.Undo {
		if s.restored == nil {
			return status.Error(codes.FailedPrecondition, "etcd: cannot undo: no restore on this machine has replaced data")
		}
		s.restored = &api.EtcdRestored{At: now, By: "CN=admin", Revision: 2345, Keys: 600, Replaced: 1001240, Undo: true}
		return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: s.restored})
	}
	switch first.Stored {
	case "":
	case kept:
		s.restored = &api.EtcdRestored{At: now, By: "CN=admin", Revision: 1200, Keys: 500, Replaced: 2345}
		return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: s.restored})
	default:
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: no stored snapshot %s", first.Stored)
	}
	sum, size := sha256.New(), int64(0)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		sum.Write(r.Chunk)
		size += int64(len(r.Chunk))
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != first.Sha256 || size != first.Size {
		return status.Errorf(codes.InvalidArgument, "%d bytes with %s came", size, got)
	}
	if want := sha256.Sum256(snapshot); hex.EncodeToString(want[:]) != first.Sha256 {
		return status.Error(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: the snapshot is damaged: its digest is another one")
	}
	s.restored = &api.EtcdRestored{At: now, By: "CN=admin", Revision: 1234, Keys: 567, Replaced: 2345}
	return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: s.restored})
}

// Status implements api.EtcdServer.
func (s *etcdService) Status(context.Context, *api.EtcdStatusRequest) (*api.EtcdStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still {
		return &api.EtcdStatusResponse{Problem: "etcd does not run: connection refused", Member: "m1", Size: 100 << 20, Revision: 1234}, nil
	}
	r := &api.EtcdStatusResponse{
		Member: "m1", Id: "8e9e05c52164694d", Leader: "8e9e05c52164694d", Version: "3.7.3", Size: 100 << 20, Used: 60 << 20, Quota: 4 << 30,
		Revision: 1234, RaftIndex: 2000, RaftTerm: 3, Alarms: []string{"NOSPACE"}, Restored: s.restored,
		Members: []*api.EtcdMember{
			{Id: "8e9e05c52164694d", Name: "m1", PeerUrls: []string{"https://10.0.0.11:2380"}},
			{Id: "aa744b279852bfa2", Name: "m2", PeerUrls: []string{"https://10.0.0.12:2380"}},
			{Id: "cee81545452c54fd", Name: "m3", PeerUrls: []string{"https://10.0.0.13:2380"}, Problem: "no answer in time"},
		},
	}
	if s.restored != nil {
		r.UndoSize = 99 << 20
	}
	return r, nil
}

// Reencrypt implements api.EtcdServer. Three of 12 Secrets are encrypted with another key, until
// the first call that does not only count them.
func (s *etcdService) Reencrypt(_ context.Context, r *api.EtcdReencryptRequest) (*api.EtcdReencryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &api.EtcdReencryptResponse{Secrets: 12, Reencrypted: 3}
	if s.reencrypted {
		answer.Reencrypted = 0
	}
	s.reencrypted = s.reencrypted || !r.CountOnly
	return answer, nil
}

// Defragment implements api.EtcdServer.
func (s *etcdService) Defragment(context.Context, *api.EtcdDefragmentRequest) (*api.EtcdDefragmentResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defragged = true
	return &api.EtcdDefragmentResponse{Before: 100 << 20, After: 60 << 20, Compacted: 1234}, nil
}

// Disarm implements api.EtcdServer.
func (s *etcdService) Disarm(context.Context, *api.EtcdDisarmRequest) (*api.EtcdDisarmResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.defragged {
		return nil, status.Error(codes.FailedPrecondition, "the test expects that it is defragmented first")
	}
	if s.still {
		return &api.EtcdDisarmResponse{}, nil
	}
	s.still = true
	return &api.EtcdDisarmResponse{Alarms: []string{"NOSPACE"}}, nil
}

// RemoveMember removes m3, which does not answer. It rejects the removal of any other member, as a
// real machine does if the removal would cost the quorum.
func (s *etcdService) RemoveMember(_ context.Context, r *api.EtcdRemoveMemberRequest) (*api.EtcdRemoveMemberResponse, error) {
	if r.Member != "m3" {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: cannot remove %s, nothing was changed: 2 of 3 members answer; without it there would be 2 members, of which 2 are required, and only 1 would answer", r.Member)
	}
	return &api.EtcdRemoveMemberResponse{Removed: &api.EtcdMember{Id: "cee81545452c54fd", Name: "m3"}, NodeError: "Cluster.spec.controlPlanes names 10.0.0.13"}, nil
}

// Recover implements api.EtcdServer.
func (s *etcdService) Recover(context.Context, *api.EtcdRecoverRequest) (*api.EtcdRecoverResponse, error) {
	return &api.EtcdRecoverResponse{RemovedMembers: []string{"m2", "m3"}}, nil
}

// Rejoin implements api.EtcdServer.
func (s *etcdService) Rejoin(context.Context, *api.EtcdRejoinRequest) (*api.EtcdRejoinResponse, error) {
	return &api.EtcdRejoinResponse{}, nil
}
