package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The snapshots that the machine takes by itself (docs/decisions/0025-etcd-restore.md) lie in a
// folder beside the data. machined says when. The name of each says all that is to be said of it,
// so that a list reads none of them: 20261122T201140Z-1234-3.6.0.db, or
// 20261122T201140Z-1234-3.6.0.db.age of one that is encrypted.

const (
	keptFolder = "snapshots"
	// in that folder: a snapshot that is not whole, or was not when the power was cut
	coming   = "coming"
	keptTime = "20060102T150405Z"
	sealed   = ".age" // ends the names of those that are encrypted
	// untouched is the part of DATA, in percent, that stays free of them. With less the kubelet
	// begins to delete images, and then pods (imageGCHighThresholdPercent and evictionHard in
	// orchestrator/kubelet/config.go).
	untouched = 20
)

func keptName(s nodespec.StoredSnapshot) string {
	name := s.At.UTC().Format(keptTime) + "-" + strconv.FormatInt(s.Revision, 10) + "-" + s.Version + savedSuffix
	if s.Encrypted {
		name += sealed
	}
	return name
}

// parseKept is the reverse. What keptName does not write is not ok: a name leads nowhere else.
func parseKept(name string) (s nodespec.StoredSnapshot, ok bool) {
	plain, encrypted := strings.CutSuffix(name, sealed)
	parts := strings.SplitN(strings.TrimSuffix(plain, savedSuffix), "-", 3)
	if len(parts) != 3 || strings.ContainsRune(name, filepath.Separator) {
		return s, false
	}
	at, err := time.Parse(keptTime, parts[0])
	revision, noNumber := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || noNumber != nil {
		return s, false
	}
	s = nodespec.StoredSnapshot{Name: name, At: at, Revision: revision, Version: parts[2], Encrypted: encrypted}
	return s, keptName(s) == name
}

// kept lists them, the newest first, and says which of them were sent to a place; empty: to none.
func (k keeper) kept(place string) ([]nodespec.StoredSnapshot, error) {
	files, err := os.ReadDir(k.at(keptFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("etcd: cannot list the snapshots: %w", err)
	}
	sent, err := k.sent(place)
	if err != nil {
		return nil, err
	}
	all := []nodespec.StoredSnapshot{}
	for _, f := range files {
		s, ok := parseKept(f.Name())
		if !ok {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, fmt.Errorf("etcd: cannot list the snapshots: %w", err)
		}
		s.Size, s.Sent = info.Size(), sent.At[s.Name]
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b nodespec.StoredSnapshot) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Revision, a.Revision))
	})
	return all, nil
}

// keep takes one more, reads it back, encrypts it for whom it is meant, and removes what is too
// much then. When it returns, the snapshot is there for good. So many percent of DATA stay free.
func (k keeper) keep(ctx context.Context, order nodespec.TakeSnapshotRequest, free int) (made nodespec.StoredSnapshot, err error) {
	readers, err := recipients(order.Recipients)
	if err != nil {
		return made, err
	}
	if err := k.tidy(keptFolder + "/" + coming); err != nil {
		return made, err
	}
	copies := 1
	if len(readers) > 0 {
		copies = 2 // what is read back is not what stays
	}
	// What is too much already goes first: the number may be a smaller one now, because there is no
	// room.
	if _, err := k.thin(nodespec.StoredSnapshot{At: time.Now()}, order.Most+1); err != nil {
		return made, err
	}
	if err := k.roomToKeep(copies, free); err != nil {
		return made, err
	}
	folder := k.at(keptFolder)
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return made, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	part := filepath.Join(folder, coming)
	about, err := k.fill(ctx, part, readers)
	if err != nil {
		return made, errors.Join(err, k.tidy(keptFolder+"/"+coming))
	}
	made = nodespec.StoredSnapshot{At: time.Now().UTC().Truncate(time.Second), Revision: about.Revision, Version: about.Version, Encrypted: len(readers) > 0}
	made.Name = keptName(made)
	if err = os.Rename(part, filepath.Join(folder, made.Name)); err == nil {
		err = durable.SyncDir(folder)
	}
	if err == nil {
		err = durable.SyncDir(k.dirs.EtcdSnapshots) // the folder may be new
	}
	if err != nil {
		return made, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	all, err := k.thin(made, order.Most)
	if err != nil {
		return made, err
	}
	if i := slices.IndexFunc(all, func(s nodespec.StoredSnapshot) bool { return s.Name == made.Name }); i >= 0 {
		made = all[i] // with its size
	}
	return made, nil
}

// thin removes those that are too much with one that was made, or is about to be, and returns all
// that there were.
func (k keeper) thin(made nodespec.StoredSnapshot, most int) ([]nodespec.StoredSnapshot, error) {
	all, err := k.kept("")
	if err != nil {
		return nil, err
	}
	for _, s := range tooMany(all, made, most) {
		if err := os.Remove(filepath.Join(k.at(keptFolder), s.Name)); err != nil {
			return nil, fmt.Errorf("etcd: cannot remove an old snapshot: %w", err)
		}
	}
	return all, nil
}

// fill writes a snapshot into a new file, flushed, for some readers; for everybody if there are
// none.
func (k keeper) fill(ctx context.Context, name string, readers []age.Recipient) (about nodespec.EtcdSnapshot, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return about, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	defer f.Close()
	if len(readers) == 0 {
		about, err = Snapshot(ctx, k.dirs, f)
	} else {
		about, err = k.fillSealed(ctx, f, readers)
	}
	if err != nil {
		return about, err
	}
	if err := f.Sync(); err != nil {
		return about, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	return about, nil
}

// fillSealed has the snapshot itself in a file without a name, beside the database that has it all
// too: what cannot be read back is not worth encrypting.
func (k keeper) fillSealed(ctx context.Context, to io.Writer, readers []age.Recipient) (about nodespec.EtcdSnapshot, err error) {
	fd, err := unix.Open(k.dirs.EtcdSnapshots, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return about, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	plain := os.NewFile(uintptr(fd), "snapshot")
	defer plain.Close()
	if about, err = Snapshot(ctx, k.dirs, plain); err != nil {
		return about, err
	}
	if _, err = plain.Seek(0, io.SeekStart); err == nil {
		err = seal(to, plain, readers)
	}
	if err != nil {
		return about, fmt.Errorf("etcd: cannot encrypt the snapshot: %w", err)
	}
	return about, nil
}

// seal encrypts what comes for some readers.
func seal(to io.Writer, from io.Reader, readers []age.Recipient) error {
	w, err := age.Encrypt(to, readers...)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, from); err != nil {
		return err
	}
	return w.Close()
}

// recipients reads the public keys of those for whom snapshots are encrypted.
func recipients(keys []string) ([]age.Recipient, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	all, err := age.ParseRecipients(strings.NewReader(strings.Join(keys, "\n")))
	if err != nil || len(all) != len(keys) {
		return nil, errors.New("etcd: cannot use Cluster.spec.etcd.snapshots.recipients: one of them is no public key of age")
	}
	return all, nil
}

// tooMany are those to remove so that the one just made and the newest others remain, so many in
// all. What claims to be of a later time was made under a wrong clock, and goes first.
func tooMany(all []nodespec.StoredSnapshot, made nodespec.StoredSnapshot, most int) []nodespec.StoredSnapshot {
	others := slices.DeleteFunc(slices.Clone(all), func(s nodespec.StoredSnapshot) bool { return s.Name == made.Name })
	later := func(s nodespec.StoredSnapshot) int { return max(s.At.Compare(made.At), 0) }
	slices.SortStableFunc(others, func(a, b nodespec.StoredSnapshot) int {
		return cmp.Or(cmp.Compare(later(a), later(b)), b.At.Compare(a.At))
	})
	return others[min(max(most-1, 0), len(others)):]
}

// roomToKeep is an error if with so many more less than so many percent of DATA were free.
func (k keeper) roomToKeep(copies, percent int) error {
	info, err := os.Stat(k.database())
	if err != nil {
		return fmt.Errorf("etcd: there are no data: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(k.dirs.EtcdSnapshots, &s); err != nil {
		return fmt.Errorf("etcd: cannot tell the free space of DATA: %w", err)
	}
	takes := int64(copies) * info.Size()
	if free, must := int64(s.Bavail)*s.Bsize, int64(s.Blocks)*s.Bsize/100*int64(percent); free < takes+must {
		return fmt.Errorf("etcd: DATA has no room for a snapshot: it takes %d MiB, %d MiB are free, of which %d are left to images and pods; delete images or volumes that are not needed, or lower Cluster.spec.etcd.snapshots.keep",
			(takes+1<<20-1)>>20, free>>20, must>>20)
	}
	return nil
}

// giveKept fills a file with one of them, as it lies there.
func (k keeper) giveKept(name string, to *os.File) (about nodespec.EtcdSnapshot, err error) {
	f, err := k.openKept(name)
	if err != nil {
		return about, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return about, fmt.Errorf("etcd: cannot look at the snapshot: %w", err)
	}
	if err := room(k.dirs.EtcdSnapshots, info.Size(), reserve, "etcd: cannot give a snapshot"); err != nil {
		return about, err
	}
	if _, err := io.Copy(to, f); err != nil {
		return about, fmt.Errorf("etcd: cannot read the snapshot: %w", err)
	}
	s, _ := parseKept(name) // it was opened by this name
	return nodespec.EtcdSnapshot{Revision: s.Revision, Version: s.Version}, nil
}

// openKept opens one of them.
func (k keeper) openKept(name string) (*os.File, error) {
	if _, ok := parseKept(name); !ok {
		return nil, fmt.Errorf("etcd: %q is the name of no snapshot that a machine keeps; `orlopctl etcd snapshots` lists them", name)
	}
	f, err := os.Open(filepath.Join(k.at(keptFolder), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("etcd: the snapshot %s is not there; `orlopctl etcd snapshots` lists them", name)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot open the snapshot: %w", err)
	}
	return f, nil
}
