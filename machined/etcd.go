package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Methods about the etcd data (docs/decisions/0025-etcd-restore.md). The orchestrator interprets
// the data (orchestrator/etcd); here they are bytes in a file without a name, which disappears if
// the call is interrupted.

const (
	// dataTimeout bounds operations for which etcd reads or writes all of its data.
	dataTimeout = savepointTimeout
	// transferTimeout bounds the transfer between this machine and a caller: a slow caller would
	// block other callers and occupy space on DATA.
	transferTimeout = time.Hour
	// serveTimeout bounds the time for process "api" to stop and to serve the restored data.
	serveTimeout = 6 * time.Minute
	// maxSnapshot exceeds the size of any snapshot: a database has at most 4 GiB and may grow a
	// little beyond.
	maxSnapshot = 8 << 30
	// snapshotReserve is the space in bytes that an uploaded snapshot leaves free on DATA; the
	// orchestrator has the same value.
	snapshotReserve = 512 << 20
	// componentEtcd is the component of process "api" that holds the data.
	componentEtcd = "etcd"
)

var errSnapshotBusy = status.Error(codes.Aborted, "etcd: another snapshot is being taken, sent or restored on this machine; try again when that is done")

// checkEtcd returns an error if etcd does not run on this machine.
func (m *machine) checkEtcd() error {
	switch {
	case m.bootMedium != "":
		return status.Error(codes.FailedPrecondition, "etcd: "+notInstalled)
	case !m.runsEtcd():
		return status.Error(codes.FailedPrecondition, "etcd: does not run on this machine; ask a control-plane machine")
	}
	return nil
}

// unnamedFile creates a file without a name on DATA for the orchestrator and this process.
func unnamedFile() (*os.File, error) {
	fd, err := unix.Open(paths.Data, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "etcd: cannot create a file on DATA: %v", err)
	}
	f := os.NewFile(uintptr(fd), "snapshot")
	if err := f.Chown(paths.UserAPI, paths.UserAPI); err != nil { // the orchestrator opens it again
		f.Close()
		return nil, status.Errorf(codes.Internal, "etcd: cannot create a file on DATA: %v", err)
	}
	return f, nil
}

// transfer runs a transfer between this machine and a caller, for at most the given time. It ends
// if no data moved for a while, and at shutdown: the return from the call ends a blocked stream.
func (m *machine) transfer(most time.Duration, move func(moved func()) error) error {
	err := transfer.Watch("transfer", m.runCtx.Done(), most, move)
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

type etcdAPI struct {
	api.UnimplementedEtcdServer
	m *machine
}

func (a etcdAPI) Snapshot(request *api.EtcdSnapshotRequest, stream grpc.ServerStreamingServer[api.EtcdSnapshotResponse]) error {
	if err := a.m.checkEtcd(); err != nil {
		return err
	}
	if !a.m.sendSnapshotMu.TryLock() {
		return errSnapshotBusy
	}
	defer a.m.sendSnapshotMu.Unlock()
	f, err := unnamedFile()
	if err != nil {
		return err
	}
	defer f.Close()
	taken, err := a.m.fillSnapshot(stream.Context(), request.Stored, f)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return status.Errorf(codes.Internal, "etcd: cannot read the snapshot: %v", err)
	}
	about := &api.EtcdSnapshotInfo{Revision: taken.Revision, Keys: int64(taken.Keys), Size: info.Size(), Version: taken.Version}
	what := fmt.Sprintf("a snapshot was taken at revision %d", taken.Revision)
	if request.Stored != "" {
		what = fmt.Sprintf("the snapshot %q was fetched", request.Stored)
	}
	a.m.events.add("etcd", "operation", what+" by "+caller(stream.Context()))
	return endOfStream(a.m.transfer(transferTimeout, func(moved func()) error {
		return sendSnapshot(about, io.NewSectionReader(f, 0, info.Size()), func(r *api.EtcdSnapshotResponse) error {
			moved()
			return stream.Send(r)
		})
	}))
}

// fillSnapshot writes a new or a stored snapshot into a file. Other snapshots wait for that, but
// not for the caller that reads the file: it does not change any more.
func (m *machine) fillSnapshot(ctx context.Context, stored string, f *os.File) (taken nodespec.EtcdSnapshot, err error) {
	if !m.snapshotMu.TryLock() {
		return taken, errSnapshotBusy
	}
	defer m.snapshotMu.Unlock()
	ctx, cancel := limits.Within(ctx, m.runCtx, dataTimeout)
	defer cancel()
	taken, err = runCommand[nodespec.EtcdSnapshot](ctx, m, paths.UserAPI, "stream-snapshot", nodespec.SendSnapshotRequest{Stored: stored}, f)
	if err != nil {
		return taken, status.Error(codes.FailedPrecondition, err.Error())
	}
	return taken, nil
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

func (a etcdAPI) ListSnapshots(ctx context.Context, _ *api.EtcdListSnapshotsRequest) (*api.EtcdListSnapshotsResponse, error) {
	if err := a.m.checkEtcd(); err != nil {
		return nil, err
	}
	want, _ := a.m.wantedSnapshots()
	place := snapshotTarget(want).Place
	stored, err := nodespec.Run[[]nodespec.StoredSnapshot](ctx, a.m.readOrchestrator, paths.UserAPI, "list-snapshots", place)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out := &api.EtcdListSnapshotsResponse{Target: place, Problem: a.m.uploader.problem(place)}
	for _, s := range stored {
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
	m := a.m
	if err := m.checkEtcd(); err != nil {
		return nil, err
	}
	want, _ := m.wantedSnapshots()
	if now, _ := m.upgrade.Get(); now.Undecided() != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: cannot take a snapshot: %v", now.Undecided())
	}
	made, err := m.takeSnapshotNow(want)
	if err != nil {
		return nil, err
	}
	problem := m.uploadNow(want)
	if list, err := runCommand[[]nodespec.StoredSnapshot](m.runCtx, m, paths.UserAPI, "list-snapshots", snapshotTarget(want).Place); err == nil {
		if i := slices.IndexFunc(list, func(s nodespec.StoredSnapshot) bool { return s.Name == made.Name }); i >= 0 {
			made = list[i] // with the time of its upload
		}
	}
	return &api.EtcdTakeSnapshotResponse{Snapshot: toStoredSnapshot(made), Problem: problem}, nil
}

// takeSnapshotNow takes a stored snapshot. It continues if the caller disconnects.
func (m *machine) takeSnapshotNow(want config.Snapshots) (nodespec.StoredSnapshot, error) {
	if !m.snapshotMu.TryLock() {
		return nodespec.StoredSnapshot{}, errSnapshotBusy
	}
	defer m.snapshotMu.Unlock()
	ctx, cancel := limits.Within(context.Background(), m.runCtx, dataTimeout)
	defer cancel()
	made, err := m.takeSnapshot(ctx, want)
	if err != nil {
		return made, status.Errorf(codes.FailedPrecondition, "etcd: cannot take a snapshot: %v", err)
	}
	return made, nil
}

func (a etcdAPI) Restore(stream grpc.ClientStreamingServer[api.EtcdRestoreRequest, api.EtcdRestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := a.m.checkEtcd(); err != nil {
		return err
	}
	if first.Undo && first.Stored != "" {
		return status.Error(codes.InvalidArgument, "etcd: cannot restore, nothing was changed: a stored snapshot and an undo are both requested; request one of them")
	}
	// An upgrade must not change the state that this method has checked, nor the other way round.
	if !a.m.writeMu.TryLock() {
		return status.Error(codes.Aborted, "etcd: cannot restore, nothing was changed: an upgrade is being received or written; `orlopctl upgrade status` shows its progress")
	}
	defer a.m.writeMu.Unlock()
	if now, _ := a.m.upgrade.Get(); now.Undecided() != nil {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: %v", now.Undecided())
	}
	if !a.m.snapshotMu.TryLock() {
		return errSnapshotBusy
	}
	defer a.m.snapshotMu.Unlock()
	f, err := unnamedFile()
	if err != nil {
		return err
	}
	defer f.Close()
	if !first.Undo && first.Stored == "" {
		if err := checkSnapshotSpace(first.Size); err != nil {
			return err
		}
		if err := a.m.receiveSnapshot(stream.Recv, first, f); err != nil {
			return err
		}
	}
	// From here on it continues if the caller disconnects.
	answer, err := a.m.restoreData(nodespec.EtcdRestore{By: caller(stream.Context()), Undo: first.Undo, Stored: first.Stored}, f)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: answer})
}

// checkSnapshotSpace returns an error unless DATA has space for an uploaded snapshot of size bytes
// and its restored data.
func checkSnapshotSpace(size int64) error {
	if size <= 0 || size > maxSnapshot {
		return status.Errorf(codes.InvalidArgument, "etcd: %d bytes are not the size of a snapshot", size)
	}
	free, err := upgrade.FreeSpace(paths.Data)
	if err != nil {
		return status.Errorf(codes.Internal, "etcd: cannot read the free space of DATA: %v", err)
	}
	if need := 2*size + snapshotReserve; free < need {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: DATA is too full: %d MiB are free, %d are necessary; delete unused images or volumes", free>>20, (need+1<<20-1)>>20)
	}
	return nil
}

// receiveSnapshot writes an uploaded snapshot into a file and verifies size and digest.
func (m *machine) receiveSnapshot(receive func() (*api.EtcdRestoreRequest, error), first *api.EtcdRestoreRequest, f io.WriterAt) error {
	got, sum := int64(0), sha256.New()
	err := m.transfer(transferTimeout, func(moved func()) error {
		to := io.MultiWriter(io.NewOffsetWriter(f, 0), sum)
		from := &transfer.Chunks[*api.EtcdRestoreRequest]{Rest: first.Chunk, Receive: func() (*api.EtcdRestoreRequest, error) {
			moved()
			return receive()
		}}
		var err error
		got, err = io.Copy(to, io.LimitReader(from, first.Size+1))
		return err
	})
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = errors.New("DATA is full")
		}
		return status.Errorf(status.Code(err), "etcd: cannot receive the snapshot, nothing was changed: %s", status.Convert(err).Message())
	}
	if got != first.Size || hex.EncodeToString(sum.Sum(nil)) != first.Sha256 {
		return status.Errorf(codes.InvalidArgument, "etcd: the received snapshot does not match its size and digest, nothing was changed; send it again")
	}
	return nil
}

// restoreData restores a snapshot with the orchestrator and returns when etcd serves the data.
func (m *machine) restoreData(request nodespec.EtcdRestore, f *os.File) (*api.EtcdRestored, error) {
	making, cancel := context.WithTimeout(m.runCtx, dataTimeout)
	defer cancel()
	made, err := runCommand[nodespec.EtcdRestored](making, m, paths.UserAPI, "restore-data", request, f)
	if err != nil {
		return nil, restoreError(paths.EtcdSnapshots, err)
	}
	m.events.add("etcd", "operation", fmt.Sprintf("the restore of revision %d has started, asked by %s", made.Revision, request.By))
	return m.activateRestored(made)
}

// restartEtcd restarts etcd and returns when started reports that the pending operation has started
// and etcd serves, or when its process has ended again: failed is the reason.
func (m *machine) restartEtcd(started func() bool) (failed string, err error) {
	defer m.nodeGC.restartAll() // also if the restore takes effect after the return
	if err := m.services.Restart(serviceKubeAPI); err != nil {
		return "", err
	}
	serving, cancel := context.WithTimeout(m.runCtx, serveTimeout)
	defer cancel()
	_, err = cell.Wait(serving, m.services.Status(), func(list []supervise.Status) bool {
		if !started() {
			return false
		}
		failed = exitReason(list, serviceKubeAPI)
		return failed != "" || componentReady(list, serviceKubeAPI, componentEtcd)
	})
	return failed, err
}

// activateRestored restarts etcd with the restored data and returns when etcd serves them.
func (m *machine) activateRestored(made nodespec.EtcdRestored) (*api.EtcdRestored, error) {
	var done nodespec.EtcdRestored
	failed, err := m.restartEtcd(func() bool {
		done = lastRestore()
		return done.At.Equal(made.At)
	})
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "etcd: the data of revision %d become active when etcd starts, and it has not started yet: %v; `orlopctl services` shows more", made.Revision, err)
	}
	if failed != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: the data of revision %d are active, and etcd cannot serve them: %s; `orlopctl etcd restore --undo` restores the replaced data", done.Revision, failed)
	}
	m.events.add("etcd", "operation", fmt.Sprintf("the data of revision %d were restored; the replaced data had revision %d", done.Revision, done.Replaced))
	// The controllers cache objects of the replaced data.
	if err := m.services.Restart(serviceControllers); err != nil {
		m.events.add("etcd", "failure", err.Error())
	}
	return toRestored(done), nil
}

// restoreError is the status of a failed or interrupted restore: its process may have stored the
// request before, and only a process of that user can remove it.
func restoreError(dir string, err error) error {
	if _, missing := os.Lstat(filepath.Join(dir, nodespec.PendingRestoreFile)); errors.Is(missing, fs.ErrNotExist) {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: %v", err)
	}
	return status.Errorf(codes.Unavailable, "etcd: the restore was interrupted, and other data become active at the next start of etcd: %v; check then (`orlopctl etcd status`), and restore again, or `orlopctl etcd restore --undo`", err)
}

// lastRestore returns the last restore; the zero value if there was none.
func lastRestore() (r nodespec.EtcdRestored) {
	const most = 4 << 10 // some hundred bytes are written
	text, err := safefile.ReadUntrusted(paths.EtcdSnapshots, nodespec.LastRestoreFile, most)
	if err != nil || json.Unmarshal(text, &r) != nil {
		return nodespec.EtcdRestored{}
	}
	return r
}

func toRestored(r nodespec.EtcdRestored) *api.EtcdRestored {
	return &api.EtcdRestored{At: timestamppb.New(r.At), By: r.By, Revision: r.Revision, Keys: int64(r.Keys), Replaced: r.Replaced, Undo: r.Undo}
}

func (a etcdAPI) Status(ctx context.Context, _ *api.EtcdStatusRequest) (*api.EtcdStatusResponse, error) {
	if err := a.m.checkEtcd(); err != nil {
		return nil, err
	}
	s, err := nodespec.Run[nodespec.EtcdStatus](ctx, a.m.readOrchestrator, paths.UserAPI, "data-status", nil)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
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
	if err := a.m.checkEtcd(); err != nil {
		return nil, err
	}
	ctx, cancel := limits.Within(ctx, a.m.runCtx, dataTimeout)
	defer cancel()
	done, err := runCommand[nodespec.EtcdDefragmented](ctx, a.m, paths.UserAPI, "defragment-data", nil)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	a.m.events.add("etcd", "operation", fmt.Sprintf("defragmented from %d KiB to %d KiB, asked by %s", done.Before>>10, done.After>>10, caller(ctx)))
	return &api.EtcdDefragmentResponse{Before: done.Before, After: done.After, Compacted: done.Compacted}, nil
}

func (a etcdAPI) Disarm(ctx context.Context, _ *api.EtcdDisarmRequest) (*api.EtcdDisarmResponse, error) {
	if err := a.m.checkEtcd(); err != nil {
		return nil, err
	}
	raised, err := runCommand[[]string](ctx, a.m, paths.UserAPI, "disarm-data", nil)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if len(raised) == 0 {
		setUnchanged(ctx)
	}
	return &api.EtcdDisarmResponse{Alarms: raised}, nil
}
