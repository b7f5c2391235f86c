package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// localMember is this machine's etcd member: its data, and the files in the directory beside the
// data.
type localMember struct {
	dirs dirs.Dirs
	spec nodespec.Spec
}

func (l localMember) at(name string) string { return filepath.Join(l.dirs.EtcdSnapshots, name) }

// The operations on the member, by subject.
func (l localMember) savepoints() savepoints { return savepoints{l} }
func (l localMember) snapshots() snapshots   { return snapshots{l} }
func (l localMember) uploader() uploader     { return uploader{l.snapshots()} }
func (l localMember) restores() restores     { return restores{l} }
func (l localMember) members() members       { return members{l} }

// database returns the path of etcd's database file.
func (l localMember) database() string { return filepath.Join(l.dirs.EtcdData, databaseFile) }

// databaseFile is the path of the database in a data directory.
const databaseFile = member + "/snap/db"

// logDir is etcd's write-ahead log in the data directory. A directory without a log has no data of
// a member.
const logDir = member + "/wal"

func (l localMember) hasData() bool { return exists(filepath.Join(l.dirs.EtcdData, logDir)) }

// bootstrapFile lies in the directory beside the data. Its existence records that this machine
// bootstraps a cluster, and that its etcd has not served the cluster yet.
const bootstrapFile = "founding"

// dropUncommittedBootstrap removes the data of a bootstrap that a power cut interrupted. etcd
// creates its log before it records the first member in the log. With an empty log, etcd would wait
// forever for a peer to add it. The cluster has committed no entry by then, so nothing is lost.
func (l localMember) dropUncommittedBootstrap() error {
	if !l.hasData() || !exists(l.at(bootstrapFile)) {
		return nil
	}
	log, err := wal.OpenForRead(nopLogger, filepath.Join(l.dirs.EtcdData, logDir), &walpb.Snapshot{})
	if err != nil {
		return nil // etcd has committed entries, or reports the damage itself
	}
	defer log.Close()
	if _, state, _, err := log.ReadAll(); err != nil || state.GetCommit() > 0 {
		return nil
	}
	return l.dropData()
}

// dropData removes the data permanently.
func (l localMember) dropData() error {
	if err := os.RemoveAll(filepath.Join(l.dirs.EtcdData, member)); err != nil {
		return fmt.Errorf("etcd: cannot drop the data: %w", err)
	}
	return safefile.SyncDir(l.dirs.EtcdData)
}

// memberID returns the ID of the member to which the data belong, and the ID of its cluster. Each
// file of the log begins with both.
func (l localMember) memberID() (number, cluster uint64, err error) {
	err = l.readLog(func(r *walpb.Record) (more bool, err error) {
		if r.GetType() != wal.MetadataType {
			return true, nil
		}
		var m etcdserverpb.Metadata
		err = proto.Unmarshal(r.GetData(), &m)
		number, cluster = m.GetNodeID(), m.GetClusterID()
		return false, err
	})
	if err == nil && number == 0 {
		err = errors.New("etcd: the log does not contain the member's ID")
	}
	return number, cluster, err
}

// lastCommit returns the raft term and the index of the last committed entry that the log of this
// member records. Recovery with one member (etcd's force-new-cluster) retains only the entries up
// to this index. Each file of the log records term and index near its beginning and at every
// change.
func (l localMember) lastCommit() (term, index uint64, err error) {
	err = l.readLog(func(r *walpb.Record) (more bool, err error) {
		if r.GetType() != wal.StateType {
			return true, nil
		}
		var s raftpb.HardState
		err = proto.Unmarshal(r.GetData(), &s)
		term, index = s.GetTerm(), s.GetCommit()
		return true, err
	})
	return term, index, err
}

// readLog calls `do` with each record of the newest log file, until `do` returns false. etcd may be
// writing to the file: an incomplete record counts as the end of the file.
func (l localMember) readLog(do func(r *walpb.Record) (more bool, err error)) error {
	files, err := filepath.Glob(filepath.Join(l.dirs.EtcdData, logDir, "*.wal"))
	if err != nil || len(files) == 0 {
		return errors.Join(errors.New("etcd: no log found"), err)
	}
	f, err := os.Open(slices.Max(files))
	if err != nil {
		return fmt.Errorf("etcd: cannot read its log: %w", err)
	}
	defer f.Close()
	records := wal.NewDecoder(fileutil.NewFileReader(f))
	for more := true; more; {
		var r walpb.Record
		err := records.Decode(&r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err == nil && r.GetType() == wal.CrcType {
			records.UpdateCRC(r.GetCrc())
		} else if err == nil {
			more, err = do(&r)
		}
		if err != nil {
			return fmt.Errorf("etcd: cannot read its log: %w", err)
		}
	}
	return nil
}

// storedMembers returns the members of the database. No process may have the database open.
func (l localMember) storedMembers() (all []*api.EtcdMember, err error) {
	err = viewDatabase(l.database(), func(tx *bolt.Tx) error {
		members := tx.Bucket(schema.Members.Name())
		if members == nil {
			return nil
		}
		return members.ForEach(func(_, value []byte) error {
			var m membership.Member
			if err := json.Unmarshal(value, &m); err != nil {
				return err
			}
			all = append(all, memberOf(m))
			return nil
		})
	})
	return all, err
}

// build makes a data directory beside the data, from the file named in `from`. It raises the
// revisions by bump and marks the earlier revisions as compacted, so that no client takes an older
// object for a newer one. If database is true, the file is a bare database, which has no digest to
// check, unlike a snapshot.
func (l localMember) build(from, dir string, bump uint64, database bool) error {
	url := peerURL(l.spec)
	return etcdutl.NewV3(zap.NewNop()).Restore(etcdutl.RestoreConfig{
		SnapshotPath: from, OutputDataDir: l.at(dir), SkipHashCheck: database,
		Name: l.spec.Node.Name, PeerURLs: []string{url}, InitialCluster: l.spec.Node.Name + "=" + url,
		// With a new token, etcd treats the data as those of another cluster. So it does not accept
		// a former member with the old data.
		InitialClusterToken: l.spec.Cluster + time.Now().UTC().Format(" 2006-01-02T15:04:05Z"),
		RevisionBump:        bump, MarkCompacted: true,
	})
}

// writeOrder records an instruction for the next start of etcd. The instruction is valid only until
// the machine reboots, because the operator gave it for the machines that were on at the time.
// After a power cut all machines may return.
func (l localMember) writeOrder(name string) error {
	return safefile.WriteFile(l.at(name), []byte(bootenv.BootID()), 0o600)
}

// isStale reports whether an instruction is from an earlier boot.
func (l localMember) isStale(name string) bool {
	of, err := os.ReadFile(l.at(name))
	return err == nil && string(of) != bootenv.BootID()
}

// removeMarker removes a recorded instruction durably.
func (l localMember) removeMarker(name string) error {
	if !exists(l.at(name)) {
		return nil
	}
	if err := l.removeAll(name); err != nil {
		return err
	}
	return safefile.SyncDir(l.dirs.EtcdSnapshots)
}

func (l localMember) removeAll(names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(l.at(name)); err != nil {
			return fmt.Errorf("etcd: cannot remove old files: %w", err)
		}
	}
	return nil
}

func (l localMember) writeJSON(name string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		err = safefile.WriteFile(l.at(name), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("etcd: cannot write %s: %w", name, err)
	}
	return nil
}
