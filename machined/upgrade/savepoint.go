package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Savepoints of the etcd data for upgrades. The orchestrator owns etcd and its files
// (orchestrator/etcd/savepoint.go): it takes a savepoint before an upgrade, and restores it by
// itself after a rollback if this version cannot read the data.

// savepoints takes and removes the savepoints of a machine.
type savepoints struct{ deps *Deps }

// savepointTimeout bounds a savepoint: etcd holds at most 4 GiB, which a slow disk writes in
// minutes.
const savepointTimeout = 10 * time.Minute

// runsEtcd reports whether etcd runs on this machine.
func (s savepoints) runsEtcd() bool {
	return s.deps.Node.Config().IsControlPlane()
}

// take takes a savepoint for the running version.
func (s savepoints) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, savepointTimeout)
	defer cancel()
	saved, err := nodespec.Run[nodespec.Savepoint](ctx, s.deps.Node.Command, paths.UserAPI, "take-savepoint", nil)
	if err != nil {
		return err
	}
	s.deps.Event("operation", fmt.Sprintf("took a savepoint of the etcd data at revision %d, %d KiB", saved.Revision, saved.Size>>10))
	return nil
}

// drop removes the savepoint of this version from an earlier upgrade: its data are old,
// and a rollback would restore them as the state before this upgrade.
func (s savepoints) drop() error {
	err := os.Remove(filepath.Join(s.deps.Files.EtcdSnapshots, nodespec.SavepointFile(s.deps.version())))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// restored returns the data loss of a restored savepoint since a time; the zero value if
// none was restored.
func (s savepoints) restored(since time.Time) (lost nodespec.SavepointRestored) {
	// some hundred bytes are written
	const most = 4 << 10
	// the orchestrator owns the directory
	text, err := safefile.ReadUntrusted(s.deps.Files.EtcdSnapshots, nodespec.RestoredFile, most)
	if err != nil || json.Unmarshal(text, &lost) != nil || lost.At.Before(since) {
		return nodespec.SavepointRestored{}
	}
	return lost
}
