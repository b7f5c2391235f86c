package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/snapshot"
	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	kubernetes "k8s.io/component-base/version"

	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// When a machine rolls back to the previous version, its data roll back, too. Upstream's etcd and
// Kubernetes write data that an older minor version may not understand, and promise no downgrade.
// So:
//
//   - Before an upgrade machined requests a savepoint (savepoints.take), which has the name of the
//     running version.
//   - Before it opens the data, each version records its versions of etcd and Kubernetes (format).
//   - A version that finds data of a newer minor version restores its own savepoint (ensureFormat)
//     and records the loss. The replaced data are retained for `restore --undo`. In a cluster with
//     other members, the version does not restore, because the data of a single member cannot roll
//     back. The newer data stay, and count as data of this version once etcd serves them
//     (recordServed).
//
// An upgrade within the minor versions changes no format: nothing is restored and nothing is lost.

// format is the pair of versions that wrote the data.
type format struct {
	Etcd       string `json:"etcd"`       // such as "3.7.3"
	Kubernetes string `json:"kubernetes"` // such as "v1.37.2"
}

// ownFormat returns the format that this executable writes. version.Version is the version of the
// module with etcd's API; all modules of etcd have one version (TestOneEtcd).
func ownFormat() format {
	own := format{Etcd: version.Version, Kubernetes: kubernetes.Get().GitVersion}
	if !emulation.Of(own.Kubernetes).Known() { // a build without the version of the release
		own.Kubernetes = "v" + kubernetes.DefaultKubeBinaryVersion + ".0"
	}
	return own
}

// newer reports whether the versions in own may be unable to read data of format f.
func (f format) newer(own format) bool {
	return minor(f.Etcd).GreaterThan(minor(own.Etcd)) || minor(f.Kubernetes).GreaterThan(minor(own.Kubernetes))
}

// minor returns a version without its patch level, or 0.0 if the text is not a version.
func minor(text string) *utilversion.Version {
	v, err := utilversion.ParseGeneric(text)
	if err != nil {
		return utilversion.MajorMinor(0, 0)
	}
	return utilversion.MajorMinor(v.Major(), v.Minor())
}

// savepoints are the savepoints of the data, with the format of the data.
type savepoints struct{ localMember }

// file returns the path of the savepoint of the running version.
func (l savepoints) file() string { return l.at(nodespec.SavepointFile(l.spec.Version)) }

const (
	savepointSuffix = nodespec.SavepointSuffix
	// etcd's client adds this suffix until the file is complete (snapshot.SaveWithVersion).
	partialSuffix = ".part"
)

// take writes the data of the etcd on this machine to a flushed snapshot, which has the name of the
// running version. It is the first step of an upgrade; an error rejects the upgrade. The parameter
// spare is the number of bytes of DATA that must stay free. Without them, etcd could not create its
// next log file, and the API would fail in the middle of an upgrade.
func (l savepoints) take(ctx context.Context, spare int64) (nodespec.Savepoint, error) {
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot take a savepoint: %w", err)
	}
	defer c.Close()
	// Files that are no longer needed are removed first, because the savepoint may need their
	// space.
	if err := l.removePartial(); err != nil {
		return nodespec.Savepoint{}, err
	}
	if err := l.prune(); err != nil {
		return nodespec.Savepoint{}, err
	}
	now, err := fetchStatus(ctx, c, l.dirs)
	if err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot take a savepoint: etcd does not answer: %w", err)
	}
	// The savepoint needs the size of the database, and a later restore needs it again for a copy
	// beside the present data.
	if err := checkSpace(l.dirs.EtcdSnapshots, 2*now.DbSize, spare, "etcd: cannot take a savepoint"); err != nil {
		return nodespec.Savepoint{}, err
	}
	config := clientv3.Config{Endpoints: []string{endpoint(l.dirs)}, Logger: zap.NewNop()}
	if _, err := snapshot.SaveWithVersion(ctx, zap.NewNop(), config, l.file()); err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot take a savepoint: %w", err)
	}
	if err := safefile.SyncDir(l.dirs.EtcdSnapshots); err != nil {
		return nodespec.Savepoint{}, err
	}
	status, err := etcdutl.NewV3(zap.NewNop()).Status(l.file())
	if err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot verify the savepoint: %w", err)
	}
	return nodespec.Savepoint{Revision: status.Revision, Size: status.TotalSize}, nil
}

// removePartial removes the rest of a savepoint that was interrupted. The file has the name of the
// version that ran then, so the savepoint of another version would not replace it. If such a file
// is still being written, its savepoint fails. ensureFormat can call this method all the same,
// because the etcd that sent the savepoint does not run any more.
func (l savepoints) removePartial() error {
	all, err := filepath.Glob(l.at("*" + savepointSuffix + partialSuffix))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, name := range all {
		if err := os.RemoveAll(name); err != nil { // a failing save removes its file, too
			return fmt.Errorf("etcd: cannot remove an incomplete savepoint: %w", err)
		}
	}
	return nil
}

// prune removes the savepoints of versions that can no longer be on the machine. It retains the
// savepoint of the running version and the newest other savepoint: until the new version is
// written, the machine can roll back to the previous version.
func (l savepoints) prune() error {
	all, err := filepath.Glob(l.at("*" + savepointSuffix))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	when := map[string]time.Time{}
	for _, name := range all {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("etcd: cannot stat a savepoint: %w", err)
		}
		when[name] = info.ModTime()
	}
	all = slices.DeleteFunc(all, func(name string) bool { return name == l.file() })
	slices.SortFunc(all, func(a, b string) int { return when[b].Compare(when[a]) })
	for _, name := range all[min(1, len(all)):] {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("etcd: cannot remove an old savepoint: %w", err)
		}
	}
	return nil
}

// Names of files and directories beside the stored snapshots. nodespec.RestoredFile, which records
// the loss of the last restore, is there, too. A restore by an admin has separate names
// (restore.go).
const (
	formatFile   = "format.json"
	member       = "member"    // etcd's name for the directory with all of its data
	restoringDir = "restoring" // an incomplete data directory
	droppedDir   = "dropped"   // the replaced data, for the time of the swap
)

// ensureFormat ensures that this version can serve the data, and records this version's format. If
// a newer version has written the data, it restores the savepoint of this version. The next call
// completes the work after a power cut at any moment:
//
//	live data   dropped/   restoring/member   what was interrupted
//	there       missing    any                nothing, or the restore, which starts again
//	missing     there      there              the swap; the restored data are complete
//	there       there      missing            the steps after the swap
//	missing     missing    missing            nothing: there are no data
//
// ensureFormat first completes a restore that an admin requested (restores.complete).
func (l savepoints) ensureFormat(own format) error {
	if err := l.removePartial(); err != nil { // a restore may need its space
		return err
	}
	if err := l.restores().complete(); err != nil {
		return err
	}
	if err := l.members().dropForRejoin(); err != nil {
		return err
	}
	last, err := l.lastFormat()
	if err != nil {
		return err
	}
	live, made := filepath.Join(l.dirs.EtcdData, member), l.at(restoringDir+"/"+member)
	// Data of several members belong to the others, too. etcd itself checks whether it can serve
	// them.
	shared := l.shared()
	if last.newer(own) && !shared {
		if exists(live) && !exists(l.at(droppedDir)) {
			if err := l.restore(last, own); err != nil {
				return err
			}
			if err := move(live, l.at(droppedDir)); err != nil {
				return err
			}
		}
		if !exists(live) && exists(made) {
			if err := move(made, live); err != nil {
				return err
			}
		}
	}
	if last != own && !(shared && last.newer(own)) {
		if err := l.writeJSON(formatFile, own); err != nil {
			return err
		}
	}
	// A later version that understands the dropped data can restore them (restore.go).
	if old := l.at(droppedDir + "/snap/db"); exists(old) {
		if err := move(old, l.at(undoFile)); err != nil {
			return err
		}
	}
	return l.removeAll(restoringDir, droppedDir)
}

// recordServed is called when etcd serves. If ensureFormat has left newer data as they are, it
// records them as data of this version, and removes the savepoint of this version, which is older
// than these data. Otherwise ensureFormat would still find the data newer when this machine is
// later the only member, and would restore the savepoint.
func (l savepoints) recordServed(own format) error {
	last, err := l.lastFormat()
	if err != nil || !last.newer(own) {
		return err
	}
	if err := l.writeJSON(formatFile, own); err != nil {
		return err
	}
	return l.removeAll(nodespec.SavepointFile(l.spec.Version))
}

// shared reports whether other members have the data, too. After a swap has begun, it returns
// false: the swap begins only if no other member has the data, and it moves the database that lists
// the members.
func (l savepoints) shared() bool {
	if len(l.spec.OtherControlPlanes()) == 0 || exists(l.at(droppedDir)) {
		return false
	}
	all, err := l.storedMembers()
	return err != nil || len(all) > 1
}

// lastFormat returns the recorded format of the data, or the zero format without a record.
func (l savepoints) lastFormat() (format, error) {
	text, err := os.ReadFile(l.at(formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		return format{}, nil
	}
	var f format
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return format{}, fmt.Errorf("etcd: cannot read the format of the data: %w", err)
	}
	return f, nil
}

// revisionMargin is added to the revisions of restored data, because the log of the replaced etcd
// can contain revisions that its database does not contain yet.
const revisionMargin = 1_000_000

// restore makes a data directory from the savepoint of this version. Its revisions continue above
// the revisions of the data that it replaces. A client that requests a replaced revision gets the
// error that the revision is compacted. So it does not take an older object for a newer one.
func (l savepoints) restore(last, own format) error {
	if !exists(l.file()) {
		return fmt.Errorf("etcd: the data were written by etcd %s and Kubernetes %s, which are newer than this version's %s and %s, and there is no savepoint for version %s of the system; upgrade again, or reset the machine and its data",
			last.Etcd, last.Kubernetes, own.Etcd, own.Kubernetes, l.spec.Version)
	}
	if err := l.removeAll(restoringDir); err != nil {
		return err
	}
	info, err := os.Stat(l.file())
	if err != nil {
		return fmt.Errorf("etcd: cannot stat the savepoint of version %s: %w", l.spec.Version, err)
	}
	then, err := etcdutl.NewV3(zap.NewNop()).Status(l.file())
	if err != nil {
		return fmt.Errorf("etcd: cannot read the savepoint of version %s: %w", l.spec.Version, err)
	}
	now, err := lastRevision(l.database())
	if err != nil { // without the last revision only the number of lost revisions is unknown
		now = then.Revision
	}
	lost := max(now-then.Revision, 0)
	if err := l.build(l.file(), restoringDir, uint64(lost)+revisionMargin, false); err != nil {
		return fmt.Errorf("etcd: cannot restore the savepoint of version %s: %w", l.spec.Version, err)
	}
	text, err := json.Marshal(nodespec.SavepointRestored{Version: l.spec.Version, At: time.Now(), Saved: info.ModTime(), Revision: then.Revision, LostRevisions: lost})
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if err := safefile.WriteFile(l.at(nodespec.RestoredFile), text, 0o600); err != nil {
		return fmt.Errorf("etcd: cannot record the loss of the restore: %w", err)
	}
	return nil
}

// move renames a directory and flushes both parents.
func move(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("etcd: cannot swap the data: %w", err)
	}
	for _, dir := range []string{filepath.Dir(from), filepath.Dir(to)} {
		if err := safefile.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
