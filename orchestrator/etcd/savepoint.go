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

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/snapshot"
	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	kubernetes "k8s.io/component-base/version"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The data follow a machine that goes back to the version before. Upstream writes data that an
// older minor version may not understand, etcd its own and Kubernetes its objects, and promises no
// way back. So:
//
//   - Before an upgrade machined has this version save the data (Save), under the version's name.
//   - Each version writes down, before it opens the data, which etcd and Kubernetes wrote them last (format).
//   - A version that finds data of a newer minor version puts its own back (settle), and says how much was lost by it. What was replaced is kept
//     for `restore --undo`. Not so where there are other members: the data of one cannot go back alone, and are this version's when etcd
//     serves them (served).
//
// An upgrade within the minor versions changes no format: nothing is put back, nothing is lost.

// format is which minor versions have written the data.
type format struct {
	Etcd       string `json:"etcd"`       // "3.6.8"
	Kubernetes string `json:"kubernetes"` // "v1.36.3"
}

// ownFormat is what this executable writes.
func ownFormat() format {
	return format{Etcd: serverVersion(), Kubernetes: kubernetes.Get().GitVersion}
}

// newer tells whether data of format f may hold what version own does not understand.
func (f format) newer(own format) bool {
	return minor(f.Etcd).GreaterThan(minor(own.Etcd)) || minor(f.Kubernetes).GreaterThan(minor(own.Kubernetes))
}

// minor is a version without its patch level; 0.0 for what is no version.
func minor(text string) *utilversion.Version {
	v, err := utilversion.ParseGeneric(text)
	if err != nil {
		return utilversion.MajorMinor(0, 0)
	}
	return utilversion.MajorMinor(v.Major(), v.Minor())
}

// keeper is the folder with what is kept beside the data.
type keeper struct {
	dirs dirs.Dirs
	spec nodespec.Spec
}

func (k keeper) at(name string) string { return filepath.Join(k.dirs.EtcdSnapshots, name) }

// saved is the snapshot that belongs to a version of the system.
func (k keeper) saved() string { return k.at(nodespec.SavepointFile(k.spec.Version)) }

const (
	savedSuffix = nodespec.SavepointSuffix
	// etcd's client adds it until the file is whole (snapshot.SaveWithVersion)
	unfinished = ".part"
)

// TakeSavepoint writes a snapshot of what etcd holds now, flushed, under the name of the version that runs.
// It asks the etcd that runs on this machine. An error refuses the upgrade, of which this is the
// first step.
func TakeSavepoint(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs) (nodespec.Savepoint, error) {
	return keeper{dirs, spec}.save(ctx, reserve)
}

// save leaves so many bytes of DATA free: without them etcd could not begin its next log, and the
// API would go down amid an upgrade.
func (k keeper) save(ctx context.Context, spare int64) (nodespec.Savepoint, error) {
	c, err := connect(ctx, k.dirs)
	if err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot save the data: %w", err)
	}
	defer c.Close()
	// What nobody needs goes first: it may be what takes the room.
	if err := k.dropUnfinished(); err != nil {
		return nodespec.Savepoint{}, err
	}
	if err := k.forgetSaved(); err != nil {
		return nodespec.Savepoint{}, err
	}
	now, err := answer(ctx, c, k.dirs)
	if err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot save the data: does not answer: %w", err)
	}
	// Twice: putting it back makes a copy, beside what is there then.
	if err := room(k.dirs.EtcdSnapshots, 2*now.DbSize, spare, "etcd: cannot save the data"); err != nil {
		return nodespec.Savepoint{}, err
	}
	config := clientv3.Config{Endpoints: []string{endpoint(k.dirs)}, Logger: zap.NewNop()}
	if _, err := snapshot.SaveWithVersion(ctx, zap.NewNop(), config, k.saved()); err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot save the data: %w", err)
	}
	if err := durable.SyncDir(k.dirs.EtcdSnapshots); err != nil {
		return nodespec.Savepoint{}, err
	}
	status, err := etcdutl.NewV3(zap.NewNop()).Status(k.saved())
	if err != nil {
		return nodespec.Savepoint{}, fmt.Errorf("etcd: cannot read back what was saved: %w", err)
	}
	return nodespec.Savepoint{Revision: status.Revision, Size: status.TotalSize}, nil
}

// dropUnfinished removes what is left of a save that was cut short. It has the name of the version
// that ran then, so no other version's save would take its place. A save that still goes on fails:
// settle calls this when the etcd that was asked is gone.
func (k keeper) dropUnfinished() error {
	all, err := filepath.Glob(k.at("*" + savedSuffix + unfinished))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, name := range all {
		if err := os.RemoveAll(name); err != nil { // a save that fails removes its file, too
			return fmt.Errorf("etcd: cannot remove what is left of a save that was cut short: %w", err)
		}
	}
	return nil
}

// forgetSaved removes what was saved for versions of which nothing can be on the machine any more:
// all but the one that runs and the last before it, to which the machine can go back until the new
// version is written.
func (k keeper) forgetSaved() error {
	all, err := filepath.Glob(k.at("*" + savedSuffix))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	when := map[string]time.Time{}
	for _, name := range all {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("etcd: cannot look at what was saved: %w", err)
		}
		when[name] = info.ModTime()
	}
	all = slices.DeleteFunc(all, func(name string) bool { return name == k.saved() })
	slices.SortFunc(all, func(a, b string) int { return when[b].Compare(when[a]) })
	for _, name := range all[min(1, len(all)):] {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("etcd: cannot forget an older version's data: %w", err)
		}
	}
	return nil
}

// What lies beside the snapshots, and beside nodespec.RestoredFile, which says what the last
// restoring has lost. What an admin has asked for has names of its own (restore.go).
const (
	formatFile = "format.json"
	member     = "member"    // how etcd calls the folder that holds all of its data
	restoring  = "restoring" // a data folder in the making
	dropped    = "dropped"   // the data that it takes the place of, for as long as that lasts
)

// settle sees to it that the data are such that this version can serve them, and writes down that
// it does. It does nothing when they are; when a newer version has written them, it puts back what
// was saved for this version. A cut at any moment is finished by the next call:
//
//	live data   dropped/   restoring/member   what was cut
//	there       -          any                nothing, or the restoring, which is done again from its beginning
//	missing     there      there              the swap; the restored data are whole
//	there       there      missing            what comes after the swap
//	missing     -          -                  nothing: there are no data
//
// What somebody has asked for comes before that (putBack).
func (k keeper) settle(own format) error {
	if err := k.dropUnfinished(); err != nil { // what is put back may need its room
		return err
	}
	if err := k.putBack(); err != nil {
		return err
	}
	if err := k.drop(); err != nil {
		return err
	}
	last, err := k.lastFormat()
	if err != nil {
		return err
	}
	live, made := filepath.Join(k.dirs.EtcdData, member), k.at(restoring+"/"+member)
	// Where there are other members the data are theirs, too; etcd judges itself whether it can
	// serve them.
	shared := k.shared()
	if last.newer(own) && !shared {
		if exists(live) && !exists(k.at(dropped)) {
			if err := k.restore(last, own); err != nil {
				return err
			}
			if err := move(live, k.at(dropped)); err != nil {
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
		if err := k.note(formatFile, own); err != nil {
			return err
		}
	}
	// A version that understands them again can put them back (restore.go).
	if old := k.at(dropped + "/snap/db"); exists(old) {
		if err := move(old, k.at(undo)); err != nil {
			return err
		}
	}
	for _, name := range []string{restoring, dropped} {
		if err := os.RemoveAll(k.at(name)); err != nil {
			return fmt.Errorf("etcd: cannot tidy up: %w", err)
		}
	}
	return nil
}

// served is called when etcd serves: newer data that settle has left alone are this version's from
// then on, and what was saved for it is older than they are. A time when the machine is the only
// member must not find them newer still.
func (k keeper) served(own format) error {
	last, err := k.lastFormat()
	if err != nil || !last.newer(own) {
		return err
	}
	if err := k.note(formatFile, own); err != nil {
		return err
	}
	return k.tidy(nodespec.SavepointFile(k.spec.Version))
}

// shared tells whether other members have the data, too. Where a swap has begun it was judged
// before that, by data that are not in their place any more.
func (k keeper) shared() bool {
	if len(k.spec.OtherControlPlanes()) == 0 || exists(k.at(dropped)) {
		return false
	}
	all, err := k.stored()
	return err != nil || len(all) > 1
}

// lastFormat is who has written the data; the zero format when nobody has.
func (k keeper) lastFormat() (format, error) {
	text, err := os.ReadFile(k.at(formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		return format{}, nil
	}
	var f format
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return format{}, fmt.Errorf("etcd: cannot read who has written the data: %w", err)
	}
	return f, nil
}

// bumpSpare is for revisions that lie in etcd's log and not yet in its database.
const bumpSpare = 1_000_000

// restore makes a data folder of what was saved for this version. Its revisions go on above those
// of the data that it takes the place of: whoever remembers one of those is told that it is gone,
// and does not take an older object for a newer one.
func (k keeper) restore(last, own format) error {
	if !exists(k.saved()) {
		return fmt.Errorf("etcd: the data were written by etcd %s and Kubernetes %s, which are newer than this version's %s and %s, and no data were saved for version %s of the system; upgrade again, or reset the machine and its data",
			last.Etcd, last.Kubernetes, own.Etcd, own.Kubernetes, k.spec.Version)
	}
	if err := os.RemoveAll(k.at(restoring)); err != nil {
		return fmt.Errorf("etcd: cannot tidy up: %w", err)
	}
	info, err := os.Stat(k.saved())
	if err != nil {
		return fmt.Errorf("etcd: cannot look at what was saved for version %s: %w", k.spec.Version, err)
	}
	then, err := etcdutl.NewV3(zap.NewNop()).Status(k.saved())
	if err != nil {
		return fmt.Errorf("etcd: cannot read what was saved for version %s: %w", k.spec.Version, err)
	}
	now, err := lastRevision(k.database())
	if err != nil { // it is about to be dropped; only the count is lost
		now = then.Revision
	}
	lost := max(now-then.Revision, 0)
	if err := k.build(k.saved(), restoring, uint64(lost)+bumpSpare, false); err != nil {
		return fmt.Errorf("etcd: cannot put back what was saved for version %s: %w", k.spec.Version, err)
	}
	text, err := json.Marshal(nodespec.SavepointRestored{Version: k.spec.Version, At: time.Now(), Saved: info.ModTime(), Revision: then.Revision, Dropped: lost})
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if err := durable.WriteFile(k.at(nodespec.RestoredFile), text, 0o600); err != nil {
		return fmt.Errorf("etcd: cannot write down what is lost: %w", err)
	}
	return nil
}

// move renames a folder, for good when it returns.
func move(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("etcd: cannot swap the data: %w", err)
	}
	for _, dir := range []string{filepath.Dir(from), filepath.Dir(to)} {
		if err := durable.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
