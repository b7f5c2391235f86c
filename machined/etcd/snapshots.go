package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// unnamedFile creates a file without a name on DATA for the orchestrator and this process.
func unnamedFile() (*os.File, error) {
	fd, err := unix.Open(paths.Data, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "etcd: cannot create a file on DATA: %v", err)
	}
	f := os.NewFile(uintptr(fd), "snapshot")
	if err := f.Chown(paths.UserAPI, paths.UserAPI); err != nil { // another user opens it again
		f.Close()
		return nil, status.Errorf(codes.Internal, "etcd: cannot create a file on DATA: %v", err)
	}
	return f, nil
}

// transfer runs a transfer between this machine and a caller, for no longer than `most`. It returns
// an error if no data moved for transfer.StallTimeout, and at shutdown. The return from the call
// then ends a blocked stream.
func (k *Manager) transfer(most time.Duration, move func(moved func()) error) error {
	err := transfer.Watch("transfer", k.deps.Stopping.Done(), most, move)
	switch {
	case errors.Is(err, transfer.ErrStalled):
		return status.Errorf(codes.Aborted, "etcd: the transfer of the snapshot has stalled for %v", transfer.StallTimeout)
	case errors.Is(err, transfer.ErrTooLong):
		return status.Errorf(codes.Aborted, "etcd: the transfer of the snapshot took more than %v; use a faster line", most)
	case errors.Is(err, transfer.ErrStopped):
		return status.Error(codes.Unavailable, "the machine is shutting down")
	}
	return err
}

// SendSnapshot sends a new or a stored snapshot to a caller.
func (k *Manager) SendSnapshot(ctx context.Context, stored, by string, send func(*api.EtcdSnapshotResponse) error) error {
	if err := k.check(); err != nil {
		return err
	}
	if !k.sendSnapshotMu.TryLock() {
		return errSnapshotBusy
	}
	defer k.sendSnapshotMu.Unlock()
	f, err := unnamedFile()
	if err != nil {
		return err
	}
	defer f.Close()
	about, err := k.fillSnapshot(ctx, stored, f)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return status.Errorf(codes.Internal, "etcd: cannot read the snapshot: %v", err)
	}
	about.Size = info.Size()
	what := fmt.Sprintf("a snapshot was taken at revision %d", about.Revision)
	if stored != "" {
		what = fmt.Sprintf("the snapshot %q was fetched", stored)
	}
	k.deps.Event("etcd", "operation", what+" by "+by)
	return k.transfer(transferTimeout, func(moved func()) error {
		return sendSnapshot(about, io.NewSectionReader(f, 0, info.Size()), func(r *api.EtcdSnapshotResponse) error {
			moved()
			return send(r)
		})
	})
}

// fillSnapshot writes a new or a stored snapshot into a file. It excludes other snapshots only
// while it writes. The caller can read the file afterwards without this lock, because the file does
// not change any more.
func (k *Manager) fillSnapshot(ctx context.Context, stored string, f *os.File) (*api.EtcdSnapshotInfo, error) {
	if !k.snapshotMu.TryLock() {
		return nil, errSnapshotBusy
	}
	defer k.snapshotMu.Unlock()
	ctx, cancel := limits.Within(ctx, k.deps.Stopping, dataTimeout)
	defer cancel()
	about := &api.EtcdSnapshotInfo{}
	if err := nodespec.RunInto(ctx, k.deps.Command, paths.UserAPI, "stream-snapshot", &api.EtcdSnapshotRequest{Stored: stored}, about, f); err != nil {
		return nil, commandError(err)
	}
	return about, nil
}

// sendSnapshot sends a snapshot, and its digest last.
func sendSnapshot(about *api.EtcdSnapshotInfo, from io.Reader, send func(*api.EtcdSnapshotResponse) error) error {
	if err := send(&api.EtcdSnapshotResponse{Header: about}); err != nil {
		return err
	}
	sum, chunk := sha256.New(), make([]byte, transfer.ChunkSize)
	for {
		n, err := io.ReadFull(from, chunk)
		if n > 0 {
			sum.Write(chunk[:n])
			if err := send(&api.EtcdSnapshotResponse{Chunk: chunk[:n]}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return send(&api.EtcdSnapshotResponse{Sha256: hex.EncodeToString(sum.Sum(nil))})
		case err != nil:
			return status.Errorf(codes.Internal, "etcd: cannot read the snapshot: %v", err)
		}
	}
}

// ListSnapshots returns the stored snapshots, the URL to which they are uploaded, and the error of
// the last upload.
func (k *Manager) ListSnapshots(ctx context.Context) (*api.EtcdListSnapshotsResponse, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	want, _ := k.wantedSnapshots()
	target := k.target(want).Place
	stored, err := listSnapshots(ctx, k.deps.ReadCommand, target)
	if err != nil {
		return nil, commandError(err)
	}
	return &api.EtcdListSnapshotsResponse{Snapshots: stored, Target: target, Problem: k.uploader.problem(target)}, nil
}

// listSnapshots returns the stored snapshots, the newest first, with the times of their uploads to
// a target.
func listSnapshots(ctx context.Context, start nodespec.Command, target string) ([]*api.EtcdStoredSnapshot, error) {
	list := &api.EtcdListSnapshotsResponse{}
	err := nodespec.RunInto(ctx, start, paths.UserAPI, "list-snapshots", target, list)
	return list.Snapshots, err
}

// TakeSnapshot takes a stored snapshot and uploads it.
func (k *Manager) TakeSnapshot() (*api.EtcdTakeSnapshotResponse, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	want, _ := k.wantedSnapshots()
	if pending := k.deps.UpgradePending(); pending != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: cannot take a snapshot: %v", pending)
	}
	made, err := k.takeSnapshotNow(want)
	if err != nil {
		return nil, err
	}
	problem := k.uploadNow(want)
	if list, err := listSnapshots(k.deps.Stopping, k.deps.Command, k.target(want).Place); err == nil {
		if i := slices.IndexFunc(list, func(s *api.EtcdStoredSnapshot) bool { return s.Name == made.Name }); i >= 0 {
			made = list[i] // with the time of its upload
		}
	}
	return &api.EtcdTakeSnapshotResponse{Snapshot: made, Problem: problem}, nil
}

// takeSnapshotNow takes a stored snapshot. It continues if the caller disconnects.
func (k *Manager) takeSnapshotNow(want config.Snapshots) (*api.EtcdStoredSnapshot, error) {
	if !k.snapshotMu.TryLock() {
		return nil, errSnapshotBusy
	}
	defer k.snapshotMu.Unlock()
	ctx, cancel := limits.Within(context.Background(), k.deps.Stopping, dataTimeout)
	defer cancel()
	made, err := k.takeSnapshot(ctx, want)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: cannot take a snapshot: %v", err)
	}
	return made, nil
}
