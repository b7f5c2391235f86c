package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The snapshots that the machine takes by itself (docs/decisions/0025-etcd-restore.md) lie in a folder beside the data. machined says
// when. The name of each says all that is to be said of it, so that a list reads none of them: 20261122T201140Z-1234-3.6.0.db.

const (
	keptFolder = "snapshots"
	coming     = "coming" // in that folder: a snapshot that is not whole, or was not when the power was cut
	keptTime   = "20060102T150405Z"
	// untouched is the part of DATA, in percent, that stays free of them. With less the kubelet begins to delete images, and then pods
	// (imageGCHighThresholdPercent and evictionHard in orchestrator/kubelet/config.go).
	untouched = 20
)

func keptName(s nodespec.EtcdKept) string {
	return s.At.UTC().Format(keptTime) + "-" + strconv.FormatInt(s.Revision, 10) + "-" + s.Version + savedSuffix
}

// parseKept is the reverse. What keptName does not write is not ok: a name leads nowhere else.
func parseKept(name string) (s nodespec.EtcdKept, ok bool) {
	parts := strings.SplitN(strings.TrimSuffix(name, savedSuffix), "-", 3)
	if len(parts) != 3 || strings.ContainsRune(name, filepath.Separator) {
		return s, false
	}
	at, err := time.Parse(keptTime, parts[0])
	revision, noNumber := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || noNumber != nil {
		return s, false
	}
	s = nodespec.EtcdKept{Name: name, At: at, Revision: revision, Version: parts[2]}
	return s, keptName(s) == name
}

// kept lists them, the newest first.
func (k keeper) kept() ([]nodespec.EtcdKept, error) {
	files, err := os.ReadDir(k.at(keptFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("etcd: cannot list the snapshots: %w", err)
	}
	all := []nodespec.EtcdKept{}
	for _, f := range files {
		s, ok := parseKept(f.Name())
		if !ok {
			continue
		}
		info, err := f.Info()
		if err != nil {
			return nil, fmt.Errorf("etcd: cannot list the snapshots: %w", err)
		}
		s.Size = info.Size()
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b nodespec.EtcdKept) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Revision, a.Revision))
	})
	return all, nil
}

// keep takes one more, reads it back, and removes what is too much then. When it returns, the snapshot is there for good. So many percent
// of DATA stay free.
func (k keeper) keep(ctx context.Context, most, free int) (made nodespec.EtcdKept, err error) {
	if err := k.tidy(keptFolder + "/" + coming); err != nil {
		return made, err
	}
	if err := k.roomToKeep(free); err != nil {
		return made, err
	}
	folder := k.at(keptFolder)
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return made, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	part := filepath.Join(folder, coming)
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return made, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	defer f.Close()
	about, err := Snapshot(ctx, k.dirs, f)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return made, errors.Join(err, os.Remove(part))
	}
	made = nodespec.EtcdKept{At: time.Now().UTC().Truncate(time.Second), Revision: about.Revision, Version: about.Version}
	made.Name = keptName(made)
	if err = os.Rename(part, filepath.Join(folder, made.Name)); err == nil {
		err = durable.SyncFolder(folder)
	}
	if err == nil {
		err = durable.SyncFolder(k.dirs.EtcdKept) // the folder may be new
	}
	if err != nil {
		return made, fmt.Errorf("etcd: cannot keep a snapshot: %w", err)
	}
	all, err := k.kept()
	if err != nil {
		return made, err
	}
	for _, s := range tooMany(all, made, most) {
		if err := os.Remove(filepath.Join(folder, s.Name)); err != nil {
			return made, fmt.Errorf("etcd: cannot remove an old snapshot: %w", err)
		}
	}
	if i := slices.IndexFunc(all, func(s nodespec.EtcdKept) bool { return s.Name == made.Name }); i >= 0 {
		made = all[i] // with its size
	}
	return made, nil
}

// tooMany are those to remove so that the one just made and the newest others remain, so many in all. What claims to be of a later time
// was made under a wrong clock, and goes first.
func tooMany(all []nodespec.EtcdKept, made nodespec.EtcdKept, most int) []nodespec.EtcdKept {
	others := slices.DeleteFunc(slices.Clone(all), func(s nodespec.EtcdKept) bool { return s.Name == made.Name })
	later := func(s nodespec.EtcdKept) int { return max(s.At.Compare(made.At), 0) }
	slices.SortStableFunc(others, func(a, b nodespec.EtcdKept) int {
		return cmp.Or(cmp.Compare(later(a), later(b)), b.At.Compare(a.At))
	})
	return others[min(max(most-1, 0), len(others)):]
}

// roomToKeep is an error if with one more less than so many percent of DATA were free.
func (k keeper) roomToKeep(percent int) error {
	info, err := os.Stat(k.database())
	if err != nil {
		return fmt.Errorf("etcd: there are no data: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(k.dirs.EtcdKept, &s); err != nil {
		return fmt.Errorf("etcd: cannot tell the free space of DATA: %w", err)
	}
	if free, must := int64(s.Bavail)*s.Bsize, int64(s.Blocks)*s.Bsize/100*int64(percent); free < info.Size()+must {
		return fmt.Errorf("etcd: DATA has no room for a snapshot: it takes %d MiB, %d MiB are free, of which %d are left to images and pods; delete images or volumes that are not needed, or lower Cluster.spec.etcd.snapshots.keep",
			(info.Size()+1<<20-1)>>20, free>>20, must>>20)
	}
	return nil
}

// openKept opens one of them to be restored.
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
