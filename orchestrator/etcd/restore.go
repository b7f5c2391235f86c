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

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// A snapshot goes to whoever may have it, and comes back at an admin's word
// (docs/decisions/0025-etcd-restore.md). What comes is made into a data folder beside the data
// (prepare), by a process of its own: etcd need not run, and goes on if it does. The file
// asked.json is written last. Process "api", which machined starts anew then, swaps the folders
// before it opens the data (putBack).

// What lies beside the data for that.
const (
	asked    = "asked"         // a data folder that was made from a snapshot
	replaced = "replaced"      // the data that it takes the place of, for as long as that lasts
	undo     = "undo.snapshot" // their database, until the next time
)

// Snapshot fills a file with what etcd holds now, and reads it back.
func Snapshot(ctx context.Context, dirs dirs.Dirs, to *os.File) (about nodespec.EtcdSnapshot, err error) {
	c, err := connect(ctx, dirs)
	if err != nil {
		return about, err
	}
	defer c.Close()
	now, err := answer(ctx, c, dirs)
	if err != nil {
		return about, fmt.Errorf("etcd: does not answer: %w", err)
	}
	if err := room(dirs.EtcdData, now.DbSize, reserve, "etcd: cannot take a snapshot"); err != nil {
		return about, err
	}
	comes, err := c.Snapshot(ctx)
	if err != nil {
		return about, fmt.Errorf("etcd: cannot take a snapshot: %w", err)
	}
	defer comes.Close()
	if _, err := io.Copy(to, comes); err != nil {
		return about, fmt.Errorf("etcd: cannot take a snapshot: %w", err)
	}
	about, _, err = look(to)
	return about, err
}

// room is an error unless DATA, which dir lies on, can take so many bytes more and has some to
// spare then.
func room(dir string, bytes, spare int64, what string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("etcd: cannot tell the free space of DATA: %w", err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < bytes+spare {
		return fmt.Errorf("%s: DATA has no room: it takes %d MiB, %d MiB are free, of which %d are kept for what runs; delete images or volumes that are not needed",
			what, (bytes+1<<20-1)>>20, free>>20, spare>>20)
	}
	return nil
}

// look checks a snapshot that etcd has sent, and says what is in it and who has written that. The
// digest comes first: what follows does not expect bytes that nobody meant.
func look(f *os.File) (about nodespec.EtcdSnapshot, writer format, err error) {
	defer runtime.KeepAlive(f) // its path does not keep it open
	info, err := f.Stat()
	if err != nil {
		return about, writer, fmt.Errorf("etcd: cannot look at the snapshot: %w", err)
	}
	// The database consists of whole pages; its digest follows it.
	size := info.Size() - sha256.Size
	if size <= 0 || size%512 != 0 {
		return about, writer, fmt.Errorf("etcd: the snapshot is damaged, or none: it does not end with a digest")
	}
	sum, end := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return about, writer, fmt.Errorf("etcd: cannot read the snapshot: %w", err)
	}
	if _, err := f.ReadAt(end, size); err != nil {
		return about, writer, fmt.Errorf("etcd: cannot read the snapshot: %w", err)
	}
	if !bytes.Equal(end, sum.Sum(nil)) {
		return about, writer, fmt.Errorf("etcd: the snapshot is damaged: its digest is another one")
	}
	return lookInto(name(f))
}

// name is a path to a file that is open, and may have none of its own.
func name(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// lookInto checks a database that nobody has open, and says what is in it and who has written that.
func lookInto(path string) (about nodespec.EtcdSnapshot, writer format, err error) {
	s, err := etcdutl.NewV3(zap.NewNop()).Status(path)
	if err != nil {
		return about, writer, fmt.Errorf("etcd: the snapshot is damaged, or none: %w", err)
	}
	err = view(path, func(keys *bolt.Bucket) error {
		return keys.ForEach(func(_, value []byte) error {
			if !bytes.Contains(value, []byte(writerKey)) {
				return nil
			}
			var kv mvccpb.KeyValue
			if err := kv.Unmarshal(value); err != nil {
				return err
			}
			if string(kv.Key) != writerKey {
				return nil
			}
			return json.Unmarshal(kv.Value, &writer) // the last one counts
		})
	})
	if err != nil {
		return about, writer, fmt.Errorf("etcd: cannot tell who has written the snapshot: %w", err)
	}
	if minor(s.Version).GreaterThan(minor(writer.Etcd)) {
		// of a version of the system that left no word of itself, or not yet
		writer.Etcd = s.Version
	}
	return nodespec.EtcdSnapshot{Revision: s.Revision, Keys: s.TotalKey, Version: s.Version}, writer, nil
}

// lockTime is how long a database may be locked by somebody who is about to end.
const lockTime = time.Second

// view reads the revisions of a database, which may be damaged in any way.
func view(path string, read func(keys *bolt.Bucket) error) error {
	return viewDatabase(path, func(tx *bolt.Tx) error {
		keys := tx.Bucket(schema.Key.Name())
		if keys == nil {
			return fmt.Errorf("%s: damaged: it has no keys", path)
		}
		return read(keys)
	})
}

// viewDatabase reads a database that nobody has open.
func viewDatabase(path string, read func(tx *bolt.Tx) error) (err error) {
	// a file that is too short (mmap(2), SIGBUS)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: damaged: %v", path, r)
		}
	}()
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTime})
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", path, err)
	}
	defer db.Close()
	return db.View(read)
}

// lastRevision is the last revision in a database that nobody has open.
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

// writerKey holds, among the data and so in every snapshot, the format of those who write them. No
// component of Kubernetes looks at it: what is theirs begins with /registry/.
const writerKey = "/orlop/format"

// signature is what writerKey holds: the newest format of those who may write the data, and that of
// each member by its number.
type signature struct {
	format
	By map[string]format `json:"by,omitempty"`
}

// signed is a signature after one of the members has said that it writes own. A member that has
// said nothing may be the one that the signature is of; one that is gone is not.
func (s signature) signed(own format, by string, members []string) signature {
	next := signature{own, map[string]format{by: own}}
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

// sign says in the data who writes them from now on.
func sign(ctx context.Context, c *clientv3.Client, own format) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
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
		have, err := c.Get(ctx, writerKey)
		if err != nil {
			return err
		}
		var last signature
		var lastText []byte
		var lastAt int64
		if len(have.Kvs) == 1 {
			lastText, lastAt = have.Kvs[0].Value, have.Kvs[0].ModRevision
			_ = json.Unmarshal(lastText, &last) // what cannot be read is nobody's
		}
		text, err := json.Marshal(last.signed(own, id(have.Header.MemberId), members))
		if err != nil || bytes.Equal(lastText, text) {
			return err
		}
		// Another member may sign at the same moment.
		done, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(writerKey), "=", lastAt)).Then(clientv3.OpPut(writerKey, string(text))).Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// bumpBlind is added to the revisions of a snapshot where nobody can tell how far those of the data
// have come that it takes the place of.
const bumpBlind = 1_000_000_000

// prepare makes a data folder of a snapshot, or of what the last one has replaced, and has it put
// in place when etcd starts next. After an error nothing is changed.
func (k keeper) prepare(ctx context.Context, order nodespec.EtcdRestore, file *os.File, own format) (nodespec.EtcdRestored, error) {
	unlock, err := k.lock()
	if err != nil {
		return nodespec.EtcdRestored{}, fmt.Errorf("etcd: other data are made or put in place at present: %w; try again", err)
	}
	defer unlock()
	if exists(k.at(nodespec.PendingRestoreFile)) && (exists(k.at(replaced)) || !exists(k.at(asked+"/"+member))) {
		if err := k.finish(); err != nil { // what is there may be nowhere else
			return nodespec.EtcdRestored{}, fmt.Errorf("etcd: data are put in place at present, and that is not finished: %w", err)
		}
	}
	if err := k.dropAsked(); err != nil { // it was not put in place, and is not wanted any more
		return nodespec.EtcdRestored{}, err
	}
	r, err := k.make(ctx, order, file, own)
	if err == nil {
		err = k.note(nodespec.PendingRestoreFile, r)
	}
	if err != nil {
		return nodespec.EtcdRestored{}, errors.Join(err, k.dropAsked())
	}
	return r, nil
}

// make does all of prepare that changes nothing.
func (k keeper) make(ctx context.Context, order nodespec.EtcdRestore, file *os.File, own format) (r nodespec.EtcdRestored, err error) {
	if order.Kept != "" {
		if s, _ := parseKept(order.Kept); s.Encrypted {
			return r, fmt.Errorf("etcd: the snapshot %[1]s is encrypted, and no machine has the key to it; `orlopctl etcd restore --from-machine %[1]s --identity KEY` decrypts it where the key is", order.Kept)
		}
		if file, err = k.openKept(order.Kept); err != nil {
			return r, err
		}
		defer file.Close()
	}
	from := k.at(undo)
	about, writer := nodespec.EtcdSnapshot{}, format{}
	defer runtime.KeepAlive(file) // its path does not keep it open
	if order.Undo {
		if !exists(from) {
			return r, errors.New("etcd: there is nothing to put back: nothing was restored on this machine")
		}
		about, writer, err = lookInto(from)
	} else {
		from = name(file)
		about, writer, err = look(file)
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
		return r, fmt.Errorf("etcd: cannot look at the snapshot: %w", err)
	}
	if err := room(k.dirs.EtcdSnapshots, info.Size(), reserve, "etcd: cannot restore"); err != nil {
		return r, err
	}
	if err := k.alone(ctx, "cannot restore"); err != nil {
		return r, err
	}
	bump := uint64(bumpBlind)
	if present, err := k.presentRevision(ctx); err == nil {
		bump = uint64(max(present-about.Revision, 0)) + bumpSpare
	}
	if err := k.build(from, asked, bump, order.Undo); err != nil {
		return r, fmt.Errorf("etcd: cannot make data of the snapshot: %w", err)
	}
	if err := k.note(asked+"/"+formatFile, own); err != nil {
		return r, err
	}
	return nodespec.EtcdRestored{At: time.Now().UTC(), By: order.By, Undo: order.Undo, Revision: about.Revision, Keys: about.Keys}, nil
}

// presentRevision is the last revision of the data that are there, which etcd may have open; 0 if
// there are none.
func (k keeper) presentRevision(ctx context.Context) (int64, error) {
	var s nodespec.EtcdStatus
	if k.ask(ctx, &s) == nil {
		return s.Revision, nil
	}
	revision, err := lastRevision(k.database())
	if errors.Is(err, fs.ErrNotExist) && !exists(filepath.Join(k.dirs.EtcdData, member)) {
		return 0, nil
	}
	return revision, err
}

// build makes a data folder beside the data. Its revisions are raised, and those before marked as
// gone, so that nobody takes an older object for a newer one. What is no snapshot but a database
// has no digest.
func (k keeper) build(from, folder string, bump uint64, database bool) error {
	url := peerURL(k.spec)
	return etcdutl.NewV3(zap.NewNop()).Restore(etcdutl.RestoreConfig{
		SnapshotPath: from, OutputDataDir: k.at(folder), SkipHashCheck: database,
		Name: k.spec.NodeName, PeerURLs: []string{url}, InitialCluster: k.spec.NodeName + "=" + url,
		// Another cluster to etcd: a member that was left out, and has the data as they were, is
		// not taken for one of it.
		InitialClusterToken: k.spec.Cluster + time.Now().UTC().Format(" 2006-01-02T15:04:05Z"),
		RevisionBump:        bump, MarkCompacted: true,
	})
}

// dropAsked forgets what was asked for.
func (k keeper) dropAsked() error {
	err := os.Remove(k.at(nodespec.PendingRestoreFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = durable.SyncDir(k.dirs.EtcdSnapshots) // before the folder goes
	}
	if err == nil {
		err = os.RemoveAll(k.at(asked))
	}
	if err != nil {
		return fmt.Errorf("etcd: cannot tidy up: %w", err)
	}
	return nil
}

// putBack puts in place what was asked for, and otherwise removes what is left of something that
// was not finished. A cut at any moment is finished by the next call. Once there is an asked.json:
//
//	live data   replaced/   asked/member   what was cut
//	there       -           there          nothing yet
//	missing     there       there          the swap
//	missing     -           there          nothing yet: there were no data
//	there       any         missing        what comes after the swap
func (k keeper) putBack() error {
	unlock, err := k.lock()
	if errors.Is(err, unix.EWOULDBLOCK) {
		if exists(filepath.Join(k.dirs.EtcdData, member)) {
			return nil // it is being made; etcd is started anew for it
		}
		// The data may be amid a swap. Without them etcd would begin a cluster, or join one.
		return fmt.Errorf("etcd: other data are made or put in place at present, and there are none until then: %w; it is tried again", err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	if !exists(k.at(nodespec.PendingRestoreFile)) {
		return k.tidy(asked, replaced)
	}
	return k.finish()
}

// finish does what is left of swap.
func (k keeper) finish() error {
	for _, step := range k.swap() {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// swap is what putBack does, once there is an asked.json. After each step everything can be begun
// anew.
func (k keeper) swap() []func() error {
	live, made, old := filepath.Join(k.dirs.EtcdData, member), k.at(asked+"/"+member), k.at(replaced+"/snap/db")
	madeBy := k.at(asked + "/" + formatFile)
	return []func() error{
		func() error { // as long as they are there
			if !exists(live) || !exists(made) {
				return nil
			}
			r, err := readRestored(k.at(nodespec.PendingRestoreFile))
			if err != nil {
				return err
			}
			r.Replaced, _ = lastRevision(k.database()) // they may be what is wrong
			return errors.Join(k.note(nodespec.PendingRestoreFile, r), k.tidy(replaced))
		},
		func() error {
			if !exists(live) || !exists(made) {
				return nil
			}
			return move(live, k.at(replaced))
		},
		func() error {
			if !exists(made) {
				return nil
			}
			// What is to be put back from now on is what this replaces, if it does, and no earlier
			// data.
			return errors.Join(k.tidy(undo), move(made, live))
		},
		func() error {
			if !exists(old) {
				return nil
			}
			return move(old, k.at(undo))
		},
		// settle looks at it next, and is not to judge them by those that they replace
		func() error {
			if !exists(madeBy) {
				return nil
			}
			return move(madeBy, k.at(formatFile))
		},
		func() error { return move(k.at(nodespec.PendingRestoreFile), k.at(nodespec.LastRestoreFile)) },
		func() error { return k.tidy(asked, replaced) },
	}
}

// lock keeps putBack and prepare apart, which are of two processes. unix.EWOULDBLOCK: the other one
// is at work.
func (k keeper) lock() (unlock func(), err error) {
	dir, err := os.Open(k.dirs.EtcdSnapshots)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return func() { dir.Close() }, nil
}

func (k keeper) tidy(names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(k.at(name)); err != nil {
			return fmt.Errorf("etcd: cannot tidy up: %w", err)
		}
	}
	return nil
}

func (k keeper) note(name string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		err = durable.WriteFile(k.at(name), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("etcd: cannot write %s: %w", name, err)
	}
	return nil
}

func readRestored(name string) (r nodespec.EtcdRestored, err error) {
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("etcd: cannot read what is restored: %w", err)
	}
	return r, nil
}
