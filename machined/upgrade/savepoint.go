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
// (orchestrator/etcd/savepoint.go). It takes a savepoint before an upgrade when machined runs its
// command. After a rollback it restores the savepoint by itself if the old version cannot read the
// data.

// savepoints takes and removes the savepoints of a machine.
type savepoints struct{ deps *Deps }

// savepointTimeout is the longest time to take a savepoint. etcd holds at most 4 GiB, and a slow
// disk needs minutes to write them.
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

// drop removes the savepoint that the machine took for this version at an earlier upgrade. Its data
// are outdated, and a rollback of the present upgrade would restore them.
func (s savepoints) drop() error {
	err := os.Remove(filepath.Join(s.deps.Files.EtcdSnapshots, nodespec.SavepointFile(s.deps.version())))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// restored returns the data loss by the restore of a savepoint, if a savepoint was restored after
// since. It returns the zero value if none was restored.
func (s savepoints) restored(since time.Time) (lost nodespec.SavepointRestored) {
	// The file has some hundred bytes.
	const most = 4 << 10
	// ReadUntrusted, because the orchestrator can write to the directory.
	text, err := safefile.ReadUntrusted(s.deps.Files.EtcdSnapshots, nodespec.RestoredFile, most)
	if err != nil || json.Unmarshal(text, &lost) != nil || lost.At.Before(since) {
		return nodespec.SavepointRestored{}
	}
	return lost
}
