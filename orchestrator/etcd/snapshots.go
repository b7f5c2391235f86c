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
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// The snapshots that the machine takes by schedule or on request
// (docs/decisions/0066-scheduled-snapshots.md) are in a directory beside the data. machined decides
// when a snapshot is taken. The name of each file contains its description, so that listing reads
// no file: 20261122T201140Z-1234-3.7.0.db, or 20261122T201140Z-1234-3.7.0.db.age if it is
// encrypted.

const (
	snapshotDir = "snapshots"
	// partialFile, in that directory, is a snapshot that is being written, or that a power cut has
	// interrupted.
	partialFile     = "coming"
	snapshotTime    = "20060102T150405Z"
	encryptedSuffix = ".age" // ends the names of encrypted snapshots
	// minFreePercent is the part of DATA, in percent, that must stay free after a snapshot. With
	// less free space the kubelet begins to delete images and then pods
	// (imageGCHighThresholdPercent and evictionHard in orchestrator/kubelet/config.go).
	minFreePercent = 20
)

// storedSnapshot is a snapshot on the machine's own disk.
type storedSnapshot struct {
	Name     string
	At       time.Time // UTC, whole seconds
	Revision int64     // last revision in it
	Version  string    // version of etcd's storage format, "3.7.0"
	Size     int64     // bytes
	// Encrypted is true if the snapshot is encrypted, for the TakeSnapshotRequest.Recipients of its
	// time.
	Encrypted bool
	Uploaded  time.Time // time of the upload, UTC; zero if not uploaded
}

func (s storedSnapshot) message() *api.EtcdStoredSnapshot {
	out := &api.EtcdStoredSnapshot{Name: s.Name, At: timestamppb.New(s.At), Revision: s.Revision, Size: s.Size, Version: s.Version, Encrypted: s.Encrypted}
	if !s.Uploaded.IsZero() {
		out.Uploaded = timestamppb.New(s.Uploaded)
	}
	return out
}

func snapshotName(s storedSnapshot) string {
	name := s.At.UTC().Format(snapshotTime) + "-" + strconv.FormatInt(s.Revision, 10) + "-" + s.Version + savepointSuffix
	if s.Encrypted {
		name += encryptedSuffix
	}
	return name
}

// parseSnapshotName is the inverse of snapshotName. It accepts only names that snapshotName writes,
// so a name cannot lead out of the directory.
func parseSnapshotName(name string) (s storedSnapshot, ok bool) {
	plain, encrypted := strings.CutSuffix(name, encryptedSuffix)
	parts := strings.SplitN(strings.TrimSuffix(plain, savepointSuffix), "-", 3)
	if len(parts) != 3 || strings.ContainsRune(name, filepath.Separator) {
		return s, false
	}
	at, err := time.Parse(snapshotTime, parts[0])
	revision, noNumber := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || noNumber != nil {
		return s, false
	}
	s = storedSnapshot{Name: name, At: at, Revision: revision, Version: parts[2], Encrypted: encrypted}
	return s, snapshotName(s) == name
}

// snapshots are the stored snapshots, with the record of their uploads.
type snapshots struct{ localMember }

// list returns the stored snapshots, the newest first, and for each the time of its upload to a
// target. The parameter place identifies the target (nodespec.EtcdTarget.Place). If it is empty, no
// snapshot counts as uploaded.
func (l snapshots) list(place string) ([]storedSnapshot, error) {
	files, err := os.ReadDir(l.at(snapshotDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("etcd: cannot list the snapshots: %w", err)
	}
	sent, err := l.uploads(place)
	if err != nil {
		return nil, err
	}
	all := []storedSnapshot{}
	for _, f := range files {
		s, ok := parseSnapshotName(f.Name())
		if !ok {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, fmt.Errorf("etcd: cannot list the snapshots: %w", err)
		}
		s.Size, s.Uploaded = info.Size(), sent.At[s.Name]
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b storedSnapshot) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Revision, a.Revision))
	})
	return all, nil
}

// take writes, verifies and encrypts a snapshot, and then applies retention. When it returns, the
// snapshot is durable. The parameter free is the percentage of DATA that must stay free.
func (l snapshots) take(ctx context.Context, order nodespec.TakeSnapshotRequest, free int) (made storedSnapshot, err error) {
	readers, err := recipients(order.Recipients)
	if err != nil {
		return made, err
	}
	if err := l.removeAll(snapshotDir + "/" + partialFile); err != nil {
		return made, err
	}
	copies := 1
	if len(readers) > 0 {
		copies = 2 // the plain snapshot that is verified, and the encrypted file
	}
	// Retention is applied before the check of the space, too: the operator may have lowered the
	// limit because DATA has no space.
	if _, err := l.applyRetention(storedSnapshot{At: time.Now()}, order.Most+1); err != nil {
		return made, err
	}
	if err := l.checkSpace(copies, free); err != nil {
		return made, err
	}
	dir := l.at(snapshotDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return made, fmt.Errorf("etcd: cannot store a snapshot: %w", err)
	}
	part := filepath.Join(dir, partialFile)
	about, err := l.write(ctx, part, readers)
	if err != nil {
		return made, errors.Join(err, l.removeAll(snapshotDir+"/"+partialFile))
	}
	made = storedSnapshot{At: time.Now().UTC().Truncate(time.Second), Revision: about.Revision, Version: about.Version, Encrypted: len(readers) > 0}
	made.Name = snapshotName(made)
	if err = os.Rename(part, filepath.Join(dir, made.Name)); err == nil {
		err = safefile.SyncDir(dir)
	}
	if err == nil {
		err = safefile.SyncDir(l.dirs.EtcdSnapshots) // the directory may be new
	}
	if err != nil {
		return made, fmt.Errorf("etcd: cannot store a snapshot: %w", err)
	}
	all, err := l.applyRetention(made, order.Most)
	if err != nil {
		return made, err
	}
	if i := slices.IndexFunc(all, func(s storedSnapshot) bool { return s.Name == made.Name }); i >= 0 {
		made = all[i] // with its size
	}
	return made, nil
}

// applyRetention removes the oldest snapshots, so that at most the number most remains. This number
// includes the snapshot made, which was taken or is about to be taken, and which is never removed.
// It returns the list from before the removal.
func (l snapshots) applyRetention(made storedSnapshot, most int) ([]storedSnapshot, error) {
	all, err := l.list("")
	if err != nil {
		return nil, err
	}
	for _, s := range beyondRetention(all, made, most) {
		if err := os.Remove(filepath.Join(l.at(snapshotDir), s.Name)); err != nil {
			return nil, fmt.Errorf("etcd: cannot remove an old snapshot: %w", err)
		}
	}
	return all, nil
}

// write writes a snapshot to a new file and flushes it. It encrypts for the recipients, if
// there are any.
func (l snapshots) write(ctx context.Context, name string, readers []age.Recipient) (about *api.EtcdSnapshotInfo, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return about, fmt.Errorf("etcd: cannot store a snapshot: %w", err)
	}
	defer f.Close()
	if len(readers) == 0 {
		about, err = Snapshot(ctx, l.dirs, f)
	} else {
		about, err = l.writeEncrypted(ctx, f, readers)
	}
	if err != nil {
		return about, err
	}
	if err := f.Sync(); err != nil {
		return about, fmt.Errorf("etcd: cannot store a snapshot: %w", err)
	}
	return about, nil
}

// writeEncrypted first writes the snapshot to a file without a name beside the database. The plain
// text adds no risk there, because the database has the same content in plain text. A snapshot that
// fails verification is not encrypted.
func (l snapshots) writeEncrypted(ctx context.Context, to io.Writer, readers []age.Recipient) (about *api.EtcdSnapshotInfo, err error) {
	fd, err := unix.Open(l.dirs.EtcdSnapshots, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return about, fmt.Errorf("etcd: cannot store a snapshot: %w", err)
	}
	plain := os.NewFile(uintptr(fd), "snapshot")
	defer plain.Close()
	if about, err = Snapshot(ctx, l.dirs, plain); err != nil {
		return about, err
	}
	if _, err = plain.Seek(0, io.SeekStart); err == nil {
		err = encrypt(to, plain, readers)
	}
	if err != nil {
		return about, fmt.Errorf("etcd: cannot encrypt the snapshot: %w", err)
	}
	return about, nil
}

// encrypt reads all bytes of the parameter from, encrypts them for the recipients, and writes the
// result to the parameter to.
func encrypt(to io.Writer, from io.Reader, readers []age.Recipient) error {
	w, err := age.Encrypt(to, readers...)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, from); err != nil {
		return err
	}
	return w.Close()
}

// recipients parses the public keys for which snapshots are encrypted.
func recipients(keys []string) ([]age.Recipient, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	all, err := age.ParseRecipients(strings.NewReader(strings.Join(keys, "\n")))
	if err != nil || len(all) != len(keys) {
		return nil, errors.New("etcd: cannot use Cluster.spec.etcd.snapshots.recipients: not a list of age public keys")
	}
	return all, nil
}

// beyondRetention returns the snapshots to remove. The snapshot made and the newest others remain,
// together at most the number most. A snapshot with a later time than made was taken under a wrong
// clock, and is removed first.
func beyondRetention(all []storedSnapshot, made storedSnapshot, most int) []storedSnapshot {
	others := slices.DeleteFunc(slices.Clone(all), func(s storedSnapshot) bool { return s.Name == made.Name })
	later := func(s storedSnapshot) int { return max(s.At.Compare(made.At), 0) }
	slices.SortStableFunc(others, func(a, b storedSnapshot) int {
		return cmp.Or(cmp.Compare(later(a), later(b)), b.At.Compare(a.At))
	})
	return others[min(max(most-1, 0), len(others)):]
}

// checkSpace returns an error if DATA has no space for further copies of the database. The
// parameter copies is their number, and percent is the percentage of DATA that must stay free.
func (l snapshots) checkSpace(copies, percent int) error {
	info, err := os.Stat(l.database())
	if err != nil {
		return fmt.Errorf("etcd: no data: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(l.dirs.EtcdSnapshots, &s); err != nil {
		return fmt.Errorf("etcd: cannot read the free space of DATA: %w", err)
	}
	takes := int64(copies) * info.Size()
	if free, reserved := int64(s.Bavail)*s.Bsize, int64(s.Blocks)*s.Bsize/100*int64(percent); free < takes+reserved {
		return fmt.Errorf("etcd: DATA has no space for a snapshot: it needs %d MiB; %d MiB are free, of which %d MiB are reserved for images and pods; delete unused images or volumes, or lower Cluster.spec.etcd.snapshots.keep",
			(takes+1<<20-1)>>20, free>>20, reserved>>20)
	}
	return nil
}

// copyTo copies a stored snapshot to a file, and does not decrypt it.
func (l snapshots) copyTo(name string, to *os.File) (about *api.EtcdSnapshotInfo, err error) {
	f, err := l.open(name)
	if err != nil {
		return about, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return about, fmt.Errorf("etcd: cannot stat the snapshot: %w", err)
	}
	if err := checkSpace(l.dirs.EtcdSnapshots, info.Size(), reserve, "etcd: cannot download a snapshot"); err != nil {
		return about, err
	}
	if _, err := io.Copy(to, f); err != nil {
		return about, fmt.Errorf("etcd: cannot read the snapshot: %w", err)
	}
	s, _ := parseSnapshotName(name) // open has checked the name
	return &api.EtcdSnapshotInfo{Revision: s.Revision, Version: s.Version}, nil
}

// open opens a stored snapshot.
func (l snapshots) open(name string) (*os.File, error) {
	if _, ok := parseSnapshotName(name); !ok {
		return nil, fmt.Errorf("etcd: %q is not the name of a stored snapshot; `orlopctl etcd snapshots` lists them", name)
	}
	f, err := os.Open(filepath.Join(l.at(snapshotDir), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("etcd: no stored snapshot %s; `orlopctl etcd snapshots` lists them", name)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot open the snapshot: %w", err)
	}
	return f, nil
}
