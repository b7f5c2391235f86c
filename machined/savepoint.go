package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/plainfile"
)

// What an upgrade has to do with the cluster's data. etcd and its files are the orchestrator's
// (orchestrator/etcd, keep.go): it saves them before an upgrade, and puts them back by itself when
// this version finds what it cannot read.

// saveTimeout bounds saving: etcd holds at most 4 GiB, which a slow disk writes in minutes.
const saveTimeout = 10 * time.Minute

// holdsData tells whether the cluster's data are on this machine.
func (m *machine) holdsData() bool {
	now, _ := m.config.Get()
	return now.config != nil && now.config.Cluster != nil && now.config.Machine.Spec.Role == config.RoleControlPlane
}

// saveData saves the cluster's data for the version that runs.
func (m *machine) saveData(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	saved, err := ask[nodespec.Savepoint](ctx, m, paths.UserAPI, "save-data", nil)
	if err != nil {
		return err
	}
	m.events.add("upgrade", "op", fmt.Sprintf("the cluster's data are saved up to revision %d, %d KiB", saved.Revision, saved.Size>>10))
	return nil
}

// dropSaved removes what was saved for this version by an upgrade before: it is of then, and a
// version that comes back would take it for what was there before this one.
func (m *machine) dropSaved() error {
	err := os.Remove(filepath.Join(paths.EtcdSnapshots, nodespec.SavepointFile(m.release.Version)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// dataRestored is what was lost of the cluster's data since a time; zero if nothing was put back.
func dataRestored(since time.Time) (lost nodespec.SavepointRestored) {
	// some hundred bytes are written
	const most = 4 << 10
	// it is the orchestrator's folder
	text, err := plainfile.Read(paths.EtcdSnapshots, nodespec.RestoredFile, most)
	if err != nil || json.Unmarshal(text, &lost) != nil || lost.At.Before(since) {
		return nodespec.SavepointRestored{}
	}
	return lost
}
