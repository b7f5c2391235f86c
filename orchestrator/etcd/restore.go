package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// An operator may download a snapshot, and an admin may restore it
// (docs/decisions/0025-etcd-restore.md). A separate process makes a data directory from the
// snapshot, beside the data (restores.prepare): etcd need not run, and is not interrupted if it
// does. That process writes the file nodespec.PendingRestoreFile last. machined then restarts
// process "api", which swaps the directories before it opens the data (restores.complete).

// Names beside the data for a restore.
const (
	requestedDir = "asked"         // the data directory that was made from the snapshot
	replacedDir  = "replaced"      // the replaced data, for the time of the swap
	undoFile     = "undo.snapshot" // the database of the replaced data, until the next restore
)

// Snapshot writes the present data of etcd to a file and verifies the file.
func Snapshot(ctx context.Context, dirs dirs.Dirs, to *os.File) (about *api.EtcdSnapshotInfo, err error) {
	c, err := connect(ctx, dirs)
	if err != nil {
		return about, err
	}
	defer c.Close()
	now, err := fetchStatus(ctx, c, dirs)
	if err != nil {
		return about, fmt.Errorf("etcd does not answer: %w", err)
	}
	if err := checkSpace(dirs.EtcdData, now.DbSize, reserve, "etcd: cannot take a snapshot"); err != nil {
		return about, err
	}
	stream, err := c.Snapshot(ctx)
	if err != nil {
		return about, fmt.Errorf("etcd: cannot take a snapshot: %w", err)
	}
	defer stream.Close()
	if _, err := io.Copy(to, stream); err != nil {
		return about, fmt.Errorf("etcd: cannot take a snapshot: %w", err)
	}
	about, _, err = checkSnapshot(to)
	return about, err
}

// checkSpace returns an error if DATA, which contains dir, has fewer free bytes than the sum of the
// parameters bytes and spare. The error begins with the text in `what`.
func checkSpace(dir string, bytes, spare int64, what string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("etcd: cannot read the free space of DATA: %w", err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < bytes+spare {
		return fmt.Errorf("%s: DATA has no space: it needs %d MiB; %d MiB are free, of which %d MiB are reserved for running components; delete unused images or volumes",
			what, (bytes+1<<20-1)>>20, free>>20, spare>>20)
	}
	return nil
}

// checkSnapshot verifies a snapshot that etcd has sent, and returns its description and the format
// of its writer. It compares the digest first: the code that reads the database does not expect
// arbitrary bytes.
func checkSnapshot(f *os.File) (about *api.EtcdSnapshotInfo, writer format, err error) {
	defer runtime.KeepAlive(f) // fdPath does not keep the file open
	info, err := f.Stat()
	if err != nil {
		return about, writer, fmt.Errorf("etcd: cannot stat the snapshot: %w", err)
	}
	// The database consists of whole pages; the digest follows it.
	size := info.Size() - sha256.Size
	if size <= 0 || size%512 != 0 {
		return about, writer, fmt.Errorf("etcd: the snapshot is damaged or not a snapshot: it does not end with a digest")
	}
	sum, end := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return about, writer, fmt.Errorf("etcd: cannot read the snapshot: %w", err)
	}
	if _, err := f.ReadAt(end, size); err != nil {
		return about, writer, fmt.Errorf("etcd: cannot read the snapshot: %w", err)
	}
	if !bytes.Equal(end, sum.Sum(nil)) {
		return about, writer, fmt.Errorf("etcd: the snapshot is damaged: its digest does not match")
	}
	return checkDatabase(fdPath(f))
}

// fdPath returns a path to an open file, which may have no name.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// checkDatabase verifies a database that no process has open, and returns its description and the
// format of its writer.
func checkDatabase(path string) (about *api.EtcdSnapshotInfo, writer format, err error) {
	s, err := etcdutl.NewV3(zap.NewNop()).Status(path)
	if err != nil {
		return about, writer, fmt.Errorf("etcd: the snapshot is damaged or not a snapshot: %w", err)
	}
	err = view(path, func(keys *bolt.Bucket) error {
		return keys.ForEach(func(_, value []byte) error {
			if !bytes.Contains(value, []byte(formatKey)) {
				return nil
			}
			var kv mvccpb.KeyValue
			if err := proto.Unmarshal(value, &kv); err != nil {
				return err
			}
			if string(kv.Key) != formatKey {
				return nil
			}
			return json.Unmarshal(kv.Value, &writer) // the last revision counts
		})
	})
	if err != nil {
		return about, writer, fmt.Errorf("etcd: cannot read the format of the snapshot: %w", err)
	}
	if minor(s.Version).GreaterThan(minor(writer.Etcd)) {
		// The version of the system that wrote the database records no format, or had not recorded
		// it yet.
		writer.Etcd = s.Version
	}
	return &api.EtcdSnapshotInfo{Revision: s.Revision, Keys: int64(s.TotalKey), Version: s.Version}, writer, nil
}

// lockTimeout is how long view waits for another process to release the database.
const lockTimeout = time.Second

// view calls the function read with the bucket of a database that contains the revisions. The
// database may be damaged in any way.
func view(path string, read func(keys *bolt.Bucket) error) error {
	return viewDatabase(path, func(tx *bolt.Tx) error {
		keys := tx.Bucket(schema.Key.Name())
		if keys == nil {
			return fmt.Errorf("%s: damaged: it has no keys", path)
		}
		return read(keys)
	})
}

// viewDatabase calls the function read with a transaction on a database that no process has open.
func viewDatabase(path string, read func(tx *bolt.Tx) error) (err error) {
	// A damaged file may be too short for its mapping (mmap(2), SIGBUS). The access then causes a
	// panic, which becomes the error.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: damaged: %v", path, r)
		}
	}()
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", path, err)
	}
	defer db.Close()
	return db.View(read)
}

// lastRevision returns the last revision of a database that no process has open.
func lastRevision(path string) (revision int64, err error) {
	if !exists(path) {
		return 0, fs.ErrNotExist
	}
	err = view(path, func(keys *bolt.Bucket) error {
		if last, _ := keys.Cursor().Last(); last != nil {
			revision = mvcc.BytesToRev(last).Main
		}
		return nil
	})
	return revision, err
}

// formatKey holds the format of the writers, as a key in the data and so in every snapshot. No
// component of Kubernetes reads it: their keys begin with /registry/.
const formatKey = "/orlop/format"

// formatRecord is the value of formatKey: the newest format of all members that may write the data,
// and the format of each member by its ID.
type formatRecord struct {
	format
	By map[string]format `json:"by,omitempty"`
}

// withMember returns the record after the member with the ID by has reported its format (own). The
// parameter members has the IDs of the present members. A present member without an entry counts
// with the newest format of the old record, because it may have written that format. The format of
// a removed member is dropped.
func (s formatRecord) withMember(own format, by string, members []string) formatRecord {
	next := formatRecord{own, map[string]format{by: own}}
	for _, m := range members {
		f, said := s.By[m]
		switch {
		case m == by:
			continue
		case said:
			next.By[m] = f
		default:
			f = s.format
		}
		next.Etcd, next.Kubernetes = newest(next.Etcd, f.Etcd), newest(next.Kubernetes, f.Kubernetes)
	}
	return next
}

func newest(a, b string) string {
	if minor(b).GreaterThan(minor(a)) {
		return b
	}
	return a
}

// recordFormat writes the format of this member into the data.
func recordFormat(ctx context.Context, c *clientv3.Client, own format) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		list, err := c.MemberList(ctx, clientv3.WithSerializable())
		if err != nil {
			return err
		}
		var members []string
		for _, m := range list.Members {
			members = append(members, id(m.ID))
		}
		have, err := c.Get(ctx, formatKey)
		if err != nil {
			return err
		}
		var last formatRecord
		var lastText []byte
		var lastAt int64
		if len(have.Kvs) == 1 {
			lastText, lastAt = have.Kvs[0].Value, have.Kvs[0].ModRevision
			_ = json.Unmarshal(lastText, &last) // an unreadable record counts as empty
		}
		text, err := json.Marshal(last.withMember(own, id(have.Header.MemberId), members))
		if err != nil || bytes.Equal(lastText, text) {
			return err
		}
		// Another member may write the record at the same moment.
		done, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(formatKey), "=", lastAt)).Then(clientv3.OpPut(formatKey, string(text))).Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// unknownRevisionBump is added to the revisions of a snapshot if the last revision of the replaced
// data is not known.
const unknownRevisionBump = 1_000_000_000

// restores are the restores that an admin requests.
type restores struct{ localMember }

// prepare makes a data directory from a snapshot or from the data that the last restore
// replaced, and marks it to replace the data at the next start of etcd. After an error nothing is
// changed.
func (l restores) prepare(ctx context.Context, order nodespec.EtcdRestore, file *os.File, own format) (nodespec.EtcdRestored, error) {
	unlock, err := l.lock()
	if err != nil {
		return nodespec.EtcdRestored{}, fmt.Errorf("etcd: another restore is in progress: %w; try again", err)
	}
	defer unlock()
	if exists(l.at(nodespec.PendingRestoreFile)) && (exists(l.at(replacedDir)) || !exists(l.at(requestedDir+"/"+member))) {
		if err := l.finishSwap(); err != nil { // the data there may exist nowhere else
			return nodespec.EtcdRestored{}, fmt.Errorf("etcd: cannot finish the restore in progress: %w", err)
		}
	}
	if err := l.drop(); err != nil { // this request supersedes an earlier one
		return nodespec.EtcdRestored{}, err
	}
	r, err := l.buildRequested(ctx, order, file, own)
	if err == nil {
		err = l.writeJSON(nodespec.PendingRestoreFile, r)
	}
	if err != nil {
		return nodespec.EtcdRestored{}, errors.Join(err, l.drop())
	}
	return r, nil
}

// buildRequested makes the data directory for prepare, and returns the record of the restore. It
// does not write the request.
func (l restores) buildRequested(ctx context.Context, order nodespec.EtcdRestore, file *os.File, own format) (r nodespec.EtcdRestored, err error) {
	if order.Stored != "" {
		if s, _ := parseSnapshotName(order.Stored); s.Encrypted {
			return r, fmt.Errorf("etcd: the snapshot %[1]s is encrypted, and no machine has the key; `orlopctl etcd restore --from-machine %[1]s --identity KEY` decrypts it on the client", order.Stored)
		}
		if file, err = l.snapshots().open(order.Stored); err != nil {
			return r, err
		}
		defer file.Close()
	}
	from := l.at(undoFile)
	var about *api.EtcdSnapshotInfo
	var writer format
	defer runtime.KeepAlive(file) // fdPath does not keep the file open
	if order.Undo {
		if !exists(from) {
			return r, errors.New("etcd: cannot undo: no restore on this machine has replaced data")
		}
		about, writer, err = checkDatabase(from)
	} else {
		from = fdPath(file)
		about, writer, err = checkSnapshot(file)
	}
	if err != nil {
		return r, err
	}
	if writer.newer(own) {
		return r, fmt.Errorf("etcd: the snapshot was written by etcd %s and Kubernetes %s, which are newer than this machine's %s and %s; upgrade the machine first",
			writer.Etcd, writer.Kubernetes, own.Etcd, own.Kubernetes)
	}
	info, err := os.Stat(from)
	if err != nil {
		return r, fmt.Errorf("etcd: cannot stat the snapshot: %w", err)
	}
	if err := checkSpace(l.dirs.EtcdSnapshots, info.Size(), reserve, "etcd: cannot restore"); err != nil {
		return r, err
	}
	if err := l.members().checkSole(ctx, "cannot restore"); err != nil {
		return r, err
	}
	bump := uint64(unknownRevisionBump)
	if present, err := l.presentRevision(ctx); err == nil {
		bump = uint64(max(present-about.Revision, 0)) + revisionMargin
	}
	if err := l.build(from, requestedDir, bump, order.Undo); err != nil {
		return r, fmt.Errorf("etcd: cannot make a data directory from the snapshot: %w", err)
	}
	if err := l.writeJSON(requestedDir+"/"+formatFile, own); err != nil {
		return r, err
	}
	return nodespec.EtcdRestored{At: time.Now().UTC(), By: order.By, Undo: order.Undo, Revision: about.Revision, Keys: int(about.Keys)}, nil
}

// presentRevision returns the last revision of the present data, which etcd may have open, or 0 if
// there are no data.
func (l restores) presentRevision(ctx context.Context) (int64, error) {
	s := &api.EtcdStatusResponse{}
	if l.members().queryStatus(ctx, s) == nil {
		return s.Revision, nil
	}
	revision, err := lastRevision(l.database())
	if errors.Is(err, fs.ErrNotExist) && !exists(filepath.Join(l.dirs.EtcdData, member)) {
		return 0, nil
	}
	return revision, err
}

// drop removes the request of a restore and its data directory.
func (l restores) drop() error {
	err := os.Remove(l.at(nodespec.PendingRestoreFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = safefile.SyncDir(l.dirs.EtcdSnapshots) // before the directory is removed
	}
	if err == nil {
		err = os.RemoveAll(l.at(requestedDir))
	}
	if err != nil {
		return fmt.Errorf("etcd: cannot remove old files: %w", err)
	}
	return nil
}

// complete performs a requested restore. Without a request it removes the rest of an incomplete
// restore. The next call completes the work after a power cut at any moment. Once
// nodespec.PendingRestoreFile exists, the directories show which step was interrupted:
//
//	live data   replaced/   asked/member   what was interrupted
//	there       missing     there          nothing yet
//	missing     there       there          the swap
//	missing     missing     there          nothing yet: there were no data
//	there       any         missing        the steps after the swap
func (l restores) complete() error {
	unlock, err := l.lock()
	if errors.Is(err, unix.EWOULDBLOCK) {
		if exists(filepath.Join(l.dirs.EtcdData, member)) {
			return nil // another process prepares a restore, and restarts etcd for it
		}
		// The data may be in the middle of a swap. Without them etcd would bootstrap a cluster, or
		// join one.
		return fmt.Errorf("etcd: another restore is in progress, and there are no data until it ends: %w; etcd retries", err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	if !exists(l.at(nodespec.PendingRestoreFile)) {
		return l.removeAll(requestedDir, replacedDir)
	}
	return l.finishSwap()
}

// finishSwap performs the remaining steps of the swap.
func (l restores) finishSwap() error {
	for _, step := range l.swapSteps() {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// swapSteps returns the steps of complete once nodespec.PendingRestoreFile exists. After any
// interrupted step, all steps can run again from the first.
func (l restores) swapSteps() []func() error {
	live, made, old := filepath.Join(l.dirs.EtcdData, member), l.at(requestedDir+"/"+member), l.at(replacedDir+"/snap/db")
	madeBy := l.at(requestedDir + "/" + formatFile)
	return []func() error{
		func() error { // records the last revision of the data that are replaced next
			if !exists(live) || !exists(made) {
				return nil
			}
			r, err := readRestored(l.at(nodespec.PendingRestoreFile))
			if err != nil {
				return err
			}
			r.Replaced, _ = lastRevision(l.database()) // the replaced data may be damaged
			return errors.Join(l.writeJSON(nodespec.PendingRestoreFile, r), l.removeAll(replacedDir))
		},
		func() error {
			if !exists(live) || !exists(made) {
				return nil
			}
			return move(live, l.at(replacedDir))
		},
		func() error {
			if !exists(made) {
				return nil
			}
			// From now on `restore --undo` restores the data that this swap replaces, if there are
			// any, and no earlier data.
			return errors.Join(l.removeAll(undoFile), move(made, live))
		},
		func() error {
			if !exists(old) {
				return nil
			}
			return move(old, l.at(undoFile))
		},
		// ensureFormat reads formatFile next, and must not find the format of the replaced data
		// there.
		func() error {
			if !exists(madeBy) {
				return nil
			}
			return move(madeBy, l.at(formatFile))
		},
		func() error { return move(l.at(nodespec.PendingRestoreFile), l.at(nodespec.LastRestoreFile)) },
		func() error { return l.removeAll(requestedDir, replacedDir) },
	}
}

// lock prevents that complete and prepare, which are in two processes, run at the same time. It
// returns unix.EWOULDBLOCK while the other process holds the lock.
func (l restores) lock() (unlock func(), err error) {
	dir, err := os.Open(l.dirs.EtcdSnapshots)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return func() { dir.Close() }, nil
}

func readRestored(name string) (r nodespec.EtcdRestored, err error) {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("etcd: cannot read the record of the restore: %w", err)
	}
	return r, nil
}
