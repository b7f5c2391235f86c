package etcd

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

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Restore replaces the data by an uploaded or a stored snapshot, or by the data before the last
// restore. It returns when etcd serves the data. receive returns the messages after the first.
func (k *Manager) Restore(first *api.EtcdRestoreRequest, receive func() (*api.EtcdRestoreRequest, error), by string) (restored nodespec.EtcdRestored, err error) {
	if err := k.check(); err != nil {
		return restored, err
	}
	if first.Undo && first.Stored != "" {
		return restored, status.Error(codes.InvalidArgument, "etcd: cannot restore, nothing was changed: a stored snapshot and an undo are both requested; request one of them")
	}
	// An upgrade must not change the state that this method has checked, and this method must not
	// change the state that an upgrade has checked.
	unlock, ok := k.deps.LockUpgrade()
	if !ok {
		return restored, status.Error(codes.Aborted, "etcd: cannot restore, nothing was changed: an upgrade is being received or written; `orlopctl upgrade status` shows its progress")
	}
	defer unlock()
	if pending := k.deps.UpgradePending(); pending != nil {
		return restored, status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: %v", pending)
	}
	if !k.snapshotMu.TryLock() {
		return restored, errSnapshotBusy
	}
	defer k.snapshotMu.Unlock()
	f, err := unnamedFile()
	if err != nil {
		return restored, err
	}
	defer f.Close()
	if !first.Undo && first.Stored == "" {
		if err := k.checkSnapshotSpace(first.Size); err != nil {
			return restored, err
		}
		if err := k.receiveSnapshot(receive, first, f); err != nil {
			return restored, err
		}
	}
	// From here on the restore continues if the caller disconnects.
	return k.restoreData(nodespec.EtcdRestore{By: by, Undo: first.Undo, Stored: first.Stored}, f)
}

// checkSnapshotSpace returns an error unless DATA has space for an uploaded snapshot of size bytes
// and its restored data.
func (k *Manager) checkSnapshotSpace(size int64) error {
	if size <= 0 || size > maxSnapshot {
		return status.Errorf(codes.InvalidArgument, "etcd: %d bytes are not the size of a snapshot", size)
	}
	free, err := k.deps.FreeSpace()
	if err != nil {
		return status.Errorf(codes.Internal, "etcd: cannot read the free space of DATA: %v", err)
	}
	if need := 2*size + snapshotReserve; free < need {
		return status.Errorf(codes.FailedPrecondition, "etcd: cannot restore, nothing was changed: DATA is too full: %d MiB are free, %d are necessary; delete unused images or volumes", free>>20, (need+1<<20-1)>>20)
	}
	return nil
}

// receiveSnapshot writes an uploaded snapshot into a file and verifies size and digest.
func (k *Manager) receiveSnapshot(receive func() (*api.EtcdRestoreRequest, error), first *api.EtcdRestoreRequest, f io.WriterAt) error {
	got, sum := int64(0), sha256.New()
	err := k.transfer(transferTimeout, func(moved func()) error {
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
func (k *Manager) restoreData(request nodespec.EtcdRestore, f *os.File) (nodespec.EtcdRestored, error) {
	making, cancel := context.WithTimeout(k.deps.Stopping, dataTimeout)
	defer cancel()
	made, err := nodespec.Run[nodespec.EtcdRestored](making, k.deps.Command, paths.UserAPI, "restore-data", request, f)
	if err != nil {
		return nodespec.EtcdRestored{}, restoreError(paths.EtcdSnapshots, err)
	}
	k.deps.Event("etcd", "operation", fmt.Sprintf("the restore of revision %d has started, asked by %s", made.Revision, request.By))
	return k.activateRestored(made)
}

// activateRestored restarts etcd with the restored data and returns when etcd serves them.
func (k *Manager) activateRestored(made nodespec.EtcdRestored) (nodespec.EtcdRestored, error) {
	var done nodespec.EtcdRestored
	failed, err := k.restart(func() bool {
		done = lastRestore()
		return done.At.Equal(made.At)
	})
	if err != nil {
		return nodespec.EtcdRestored{}, status.Errorf(codes.Unavailable, "etcd: the data of revision %d become active when etcd starts, and it has not started yet: %v; `orlopctl services` shows more", made.Revision, err)
	}
	if failed != "" {
		return nodespec.EtcdRestored{}, status.Errorf(codes.FailedPrecondition, "etcd: the data of revision %d are active, and etcd cannot serve them: %s; `orlopctl etcd restore --undo` restores the replaced data", done.Revision, failed)
	}
	k.deps.Event("etcd", "operation", fmt.Sprintf("the data of revision %d were restored; the replaced data had revision %d", done.Revision, done.Replaced))
	// The controllers restart, because they cache objects of the replaced data.
	if err := k.deps.Services.Restart(nodespec.ServiceControllers); err != nil {
		k.deps.Event("etcd", "failure", err.Error())
	}
	return done, nil
}

// restoreError is the status of a failed or interrupted restore. Before it failed, the process may
// have stored the request, and only a process of the same user can remove it.
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
