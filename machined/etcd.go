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
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/plainfile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The cluster's data at an operator's word (docs/decisions/0025-etcd-restore.md). What they mean is
// the orchestrator's (orchestrator/etcd); here they are bytes, in a file that has no name: whatever
// cuts a call short takes it along.

const (
	// dataTime bounds what etcd has to read or write all of its data for.
	dataTime = saveTimeout
	// moveTime bounds what is moved between this machine and a caller: one that takes or brings a
	// little at a time would keep others off, and the file's room on DATA.
	moveTime = time.Hour
	// serveTime is how long process "api" may take to end and to serve what was restored.
	serveTime = 6 * time.Minute
	// maxSnapshot is more than etcd can hold: a database of 4 GiB, which may grow a little beyond.
	maxSnapshot = 8 << 30
	// snapshotReserve is what a snapshot that comes leaves free on DATA, in bytes; the orchestrator
	// has the same.
	snapshotReserve = 512 << 20
	// componentEtcd is the component of process "api" that holds the data.
	componentEtcd = "etcd"
)

var errMoving = status.Error(codes.Aborted, "etcd: another snapshot is being taken, sent or restored on this machine; try again when that is done")

// noData is why there is nothing to ask etcd on this machine; nil where its data are.
func (m *machine) noData() error {
	switch {
	case m.medium != "":
		return status.Error(codes.FailedPrecondition, "etcd: "+notInstalled)
	case !m.holdsData():
		return status.Error(codes.FailedPrecondition, "etcd: it does not run on this machine, which is no control-plane machine of a cluster; ask one")
	}
	return nil
}

// nameless makes a file on DATA for the orchestrator and this process.
func nameless() (*os.File, error) {
	fd, err := unix.Open(paths.Data, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "etcd: cannot make a file on DATA: %v", err)
	}
	f := os.NewFile(uintptr(fd), "snapshot")
	if err := f.Chown(paths.UserAPI, paths.UserAPI); err != nil { // it opens it once more
		f.Close()
		return nil, status.Errorf(codes.Internal, "etcd: cannot make a file on DATA: %v", err)
	}
	return f, nil
}

// transfer has something moved between this machine and a caller, in most that time. It ends when
// nothing has moved for a while, and when the machine goes down: returning from a call ends what
// hangs in its stream.
func (m *machine) transfer(most time.Duration, move func(moved func()) error) error {
	did, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- panics.Do("transfer", func() error { return move(func() { kick(did) }) })
	}()
	end := time.NewTimer(most)
	defer end.Stop()
	for late := time.NewTimer(patience); ; late.Reset(patience) {
		select {
		case err := <-done:
			return err
		case <-did:
		case <-late.C:
			return status.Errorf(codes.Aborted, "etcd: nothing of the snapshot has moved for %v", patience)
		case <-end.C:
			return status.Errorf(codes.Aborted, "etcd: the snapshot has not moved within %v; use a faster line", most)
		case <-m.working.Done():
			return status.Error(codes.Unavailable, "the machine goes down")
		}
	}
}

// within bounds a call whose process has files of DATA open: when the machine goes down they are in
// the way.
func (m *machine) within(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	stop := context.AfterFunc(m.working, cancel)
	return ctx, func() { stop(); cancel() }
}

type etcdAPI struct {
	api.UnimplementedEtcdServer
	m *machine
}

func (a etcdAPI) Snapshot(request *api.EtcdSnapshotRequest, stream grpc.ServerStreamingServer[api.EtcdSnapshotResponse]) error {
	if err := a.m.noData(); err != nil {
		return err
	}
	if !a.m.handing.TryLock() {
		return errMoving
	}
	defer a.m.handing.Unlock()
	f, err := nameless()
	if err != nil {
		return err
	}
	defer f.Close()
	taken, err := a.m.fillSnapshot(stream.Context(), request.Kept, f)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return status.Errorf(codes.Internal, "etcd: cannot read the snapshot: %v", err)
	}
	about := &api.EtcdSnapshot{Revision: taken.Revision, Keys: int64(taken.Keys), Size: info.Size(), Version: taken.Version}
	what := fmt.Sprintf("a snapshot was taken at revision %d", taken.Revision)
	if request.Kept != "" {
		what = fmt.Sprintf("the snapshot %q was fetched", request.Kept)
	}
	a.m.events.add("etcd", "op", what+" by "+caller(stream.Context()))
	return endOfStream(a.m.transfer(moveTime, func(moved func()) error {
		return sendSnapshot(about, io.NewSectionReader(f, 0, info.Size()), func(r *api.EtcdSnapshotResponse) error {
			moved()
			return stream.Send(r)
		})
	}))
}

// fillSnapshot fills a file with what etcd holds, or with a snapshot that is kept. Other snapshots
// wait for that, and not for whoever reads the file: it changes no more.
func (m *machine) fillSnapshot(ctx context.Context, kept string, f *os.File) (taken nodespec.EtcdSnapshot, err error) {
	if !m.moving.TryLock() {
		return taken, errMoving
	}
	defer m.moving.Unlock()
	ctx, cancel := m.within(ctx, dataTime)
	defer cancel()
	taken, err = ask[nodespec.EtcdSnapshot](ctx, m, paths.UserAPI, "snapshot-data", nodespec.SendSnapshotRequest{Kept: kept}, f)
	if err != nil {
		return taken, status.Error(codes.FailedPrecondition, err.Error())
	}
	return taken, nil
}

// sendSnapshot sends a snapshot, and its digest last.
func sendSnapshot(about *api.EtcdSnapshot, from io.Reader, send func(*api.EtcdSnapshotResponse) error) error {
	if err := send(&api.EtcdSnapshotResponse{About: about}); err != nil {
		return err
	}
	sum, chunk := sha256.New(), make([]byte, givenChunk)
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

func (a etcdAPI) List(ctx context.Context, _ *api.EtcdListRequest) (*api.EtcdListResponse, error) {
	if err := a.m.noData(); err != nil {
		return nil, err
	}
	want, _ := a.m.wantedSnapshots()
	place := snapshotTarget(want).Place
	kept, err := askInTurn[[]nodespec.StoredSnapshot](ctx, a.m, "kept-snapshots", place)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out := &api.EtcdListResponse{Target: place, Problem: a.m.sender.problem(place)}
	for _, s := range kept {
		out.Snapshots = append(out.Snapshots, toKept(s))
	}
	return out, nil
}

func toKept(s nodespec.StoredSnapshot) *api.EtcdKept {
	out := &api.EtcdKept{Name: s.Name, At: timestamppb.New(s.At), Revision: s.Revision, Size: s.Size, Version: s.Version, Encrypted: s.Encrypted}
	if !s.Sent.IsZero() {
		out.Sent = timestamppb.New(s.Sent)
	}
	return out
}

func (a etcdAPI) Keep(context.Context, *api.EtcdKeepRequest) (*api.EtcdKeepResponse, error) {
	m := a.m
	if err := m.noData(); err != nil {
		return nil, err
	}
	want, _ := m.wantedSnapshots()
	if now, _ := m.upgrade.Get(); now.Undecided() != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: no snapshot was kept: %v", now.Undecided())
	}
	made, err := m.keepNow(want)
	if err != nil {
		return nil, err
	}
	problem := m.sendNow(want)
	if list, err := ask[[]nodespec.StoredSnapshot](m.working, m, paths.UserAPI, "kept-snapshots", snapshotTarget(want).Place); err == nil {
		if i := slices.IndexFunc(list, func(s nodespec.StoredSnapshot) bool { return s.Name == made.Name }); i >= 0 {
			made = list[i] // with when it was sent
		}
	}
	return &api.EtcdKeepResponse{Kept: toKept(made), Problem: problem}, nil
}

// keepNow takes one of the machine's own snapshots. It goes on without the caller.
func (m *machine) keepNow(want config.Snapshots) (nodespec.StoredSnapshot, error) {
	if !m.moving.TryLock() {
		return nodespec.StoredSnapshot{}, errMoving
	}
	defer m.moving.Unlock()
	ctx, cancel := m.within(context.Background(), dataTime)
	defer cancel()
	made, err := m.keepSnapshot(ctx, want)
	if err != nil {
		return made, status.Errorf(codes.FailedPrecondition, "etcd: no snapshot was kept: %v", err)
	}
	return made, nil
}

func (a etcdAPI) Restore(stream grpc.ClientStreamingServer[api.EtcdRestoreRequest, api.EtcdRestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := a.m.noData(); err != nil {
		return err
	}
	if first.Undo && first.Kept != "" {
		return status.Error(codes.InvalidArgument, "etcd: cannot restore, nothing was changed: a kept snapshot and what was replaced are both asked for; ask for one of them")
	}
	// An upgrade may not change what this has looked at, nor the other way round.
	if !a.m.writing.TryLock() {
		return status.Error(codes.Aborted, "etcd: cannot restore, nothing was changed: an upgrade is being received or written; `orlopctl upgrade status` tells how far it is")
	}
	defer a.m.writing.Unlock()
	if now, _ := a.m.upgrade.Get(); now.Undecided() != nil {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: %v", now.Undecided())
	}
	if !a.m.moving.TryLock() {
		return errMoving
	}
	defer a.m.moving.Unlock()
	f, err := nameless()
	if err != nil {
		return err
	}
	defer f.Close()
	if !first.Undo && first.Kept == "" {
		if err := roomFor(first.Size); err != nil {
			return err
		}
		if err := a.m.receiveSnapshot(stream.Recv, first, f); err != nil {
			return err
		}
	}
	// From here on it goes on without the caller.
	answer, err := a.m.restoreData(nodespec.EtcdRestore{By: caller(stream.Context()), Undo: first.Undo, Kept: first.Kept}, f)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&api.EtcdRestoreResponse{Restored: answer})
}

// roomFor is an error unless a snapshot of so many bytes can come, and be made into data.
func roomFor(size int64) error {
	if size <= 0 || size > maxSnapshot {
		return status.Errorf(codes.InvalidArgument, "etcd: %d bytes are no snapshot", size)
	}
	free, err := upgrade.FreeSpace(paths.Data)
	if err != nil {
		return status.Errorf(codes.Internal, "etcd: cannot tell the free space of DATA: %v", err)
	}
	if need := 2*size + snapshotReserve; free < need {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: DATA has no room: %d MiB are free, %d are needed; delete images or volumes that are not needed", free>>20, (need+1<<20-1)>>20)
	}
	return nil
}

// receiveSnapshot fills a file with what comes, which has to be what was announced.
func (m *machine) receiveSnapshot(receive func() (*api.EtcdRestoreRequest, error), first *api.EtcdRestoreRequest, f io.WriterAt) error {
	got, sum := int64(0), sha256.New()
	err := m.transfer(moveTime, func(moved func()) error {
		to := io.MultiWriter(io.NewOffsetWriter(f, 0), sum)
		from := &chunks[*api.EtcdRestoreRequest]{rest: first.Chunk, receive: func() (*api.EtcdRestoreRequest, error) {
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
		return status.Errorf(status.Code(err), "etcd: the snapshot has not come, nothing was changed: %s", status.Convert(err).Message())
	}
	if got != first.Size || hex.EncodeToString(sum.Sum(nil)) != first.Sha256 {
		return status.Errorf(codes.InvalidArgument, "etcd: the snapshot that came is not the one that was announced, nothing was changed; send it again")
	}
	return nil
}

// restoreData has the orchestrator make data of a snapshot and put them in place, and returns when
// etcd serves them.
func (m *machine) restoreData(order nodespec.EtcdRestore, f *os.File) (*api.EtcdRestored, error) {
	making, cancel := context.WithTimeout(m.working, dataTime)
	defer cancel()
	made, err := ask[nodespec.EtcdRestored](making, m, paths.UserAPI, "restore-data", order, f)
	if err != nil {
		return nil, notMade(paths.EtcdSnapshots, err)
	}
	m.events.add("etcd", "op", fmt.Sprintf("the data of revision %d are to be restored, asked by %s", made.Revision, order.By))
	return m.putInPlace(made)
}

// restartEtcd has etcd started anew, and returns when what was to be done by it has begun, and it
// serves, or when its process has ended again: failed is why.
func (m *machine) restartEtcd(begun func() bool) (failed string, err error) {
	defer m.forgetting.afresh() // also where it comes in force after this
	if err := m.services.Restart(serviceKubeAPI); err != nil {
		return "", err
	}
	serving, cancel := context.WithTimeout(m.working, serveTime)
	defer cancel()
	_, err = cell.Wait(serving, m.services.Status(), func(list []supervise.Status) bool {
		if !begun() {
			return false
		}
		failed = whyEnded(list, serviceKubeAPI)
		return failed != "" || componentReady(list, serviceKubeAPI, componentEtcd)
	})
	return failed, err
}

// putInPlace has etcd started with what was made, and returns when it serves that.
func (m *machine) putInPlace(made nodespec.EtcdRestored) (*api.EtcdRestored, error) {
	var done nodespec.EtcdRestored
	failed, err := m.restartEtcd(func() bool {
		done = dataPutBack()
		return done.At.Equal(made.At)
	})
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "etcd: the data of revision %d are put in place when etcd starts, and it has not yet: %v; `orlopctl services` says more", made.Revision, err)
	}
	if failed != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "etcd: the data of revision %d are in place, and cannot be served: %s; `orlopctl etcd restore --undo` puts back what they have replaced", done.Revision, failed)
	}
	m.events.add("etcd", "op", fmt.Sprintf("the data of revision %d were restored; those that they replaced had come to revision %d", done.Revision, done.Replaced))
	// What the controllers remember is of the data that are gone.
	if err := m.services.Restart(serviceControllers); err != nil {
		m.events.add("etcd", "failure", err.Error())
	}
	return toRestored(done), nil
}

// notMade is the status of an order that failed, or was cut short: then it may have been written
// down by its process before, and only that kind of process may take it back.
func notMade(kept string, err error) error {
	if _, missing := os.Lstat(filepath.Join(kept, nodespec.PendingRestoreFile)); errors.Is(missing, fs.ErrNotExist) {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: %v", err)
	}
	return status.Errorf(codes.Unavailable, "etcd: restoring was cut short, and other data are put in place when etcd starts next: %v; look then (`orlopctl etcd status`), and restore again, or `orlopctl etcd restore --undo`", err)
}

// dataPutBack is what was restored last; zero if nothing was.
func dataPutBack() (r nodespec.EtcdRestored) {
	const most = 4 << 10 // some hundred bytes are written
	text, err := plainfile.Read(paths.EtcdSnapshots, nodespec.LastRestoreFile, most)
	if err != nil || json.Unmarshal(text, &r) != nil {
		return nodespec.EtcdRestored{}
	}
	return r
}

func toRestored(r nodespec.EtcdRestored) *api.EtcdRestored {
	return &api.EtcdRestored{At: timestamppb.New(r.At), By: r.By, Revision: r.Revision, Keys: int64(r.Keys), Replaced: r.Replaced, Undo: r.Undo}
}

func (a etcdAPI) Status(ctx context.Context, _ *api.EtcdStatusRequest) (*api.EtcdStatusResponse, error) {
	if err := a.m.noData(); err != nil {
		return nil, err
	}
	s, err := askInTurn[nodespec.EtcdStatus](ctx, a.m, "data-status", nil)
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
		out.Members = append(out.Members, toMember(m))
	}
	return out, nil
}

func (a etcdAPI) Defragment(ctx context.Context, _ *api.EtcdDefragmentRequest) (*api.EtcdDefragmentResponse, error) {
	if err := a.m.noData(); err != nil {
		return nil, err
	}
	ctx, cancel := a.m.within(ctx, dataTime)
	defer cancel()
	done, err := ask[nodespec.EtcdDefragmented](ctx, a.m, paths.UserAPI, "defragment-data", nil)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	a.m.events.add("etcd", "op", fmt.Sprintf("defragmented from %d KiB to %d KiB, asked by %s", done.Before>>10, done.After>>10, caller(ctx)))
	return &api.EtcdDefragmentResponse{Before: done.Before, After: done.After, Compacted: done.Compacted}, nil
}

func (a etcdAPI) Disarm(ctx context.Context, _ *api.EtcdDisarmRequest) (*api.EtcdDisarmResponse, error) {
	if err := a.m.noData(); err != nil {
		return nil, err
	}
	raised, err := ask[[]string](ctx, a.m, paths.UserAPI, "disarm-data", nil)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if len(raised) == 0 {
		didNothing(ctx)
	}
	return &api.EtcdDisarmResponse{Alarms: raised}, nil
}
