package etcd

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedFiles reads each file that version 0.1.0 has written beside the etcd data. Then it
// writes the same files into a new directory and compares them.
func TestReleasedFiles(t *testing.T) {
	spec := nodespec.Spec{Version: "0.1.0", Node: nodespec.Node{Name: "m1"}}
	was, is := localMember{dirs.Dirs{EtcdSnapshots: releasedtest.Copy(t, ".")}, spec}, localMember{dirs.Dirs{EtcdSnapshots: t.TempDir()}, spec}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	last, err := was.savepoints().lastFormat()
	if do(err); last != (format{"3.6.8", "v1.36.3"}) {
		t.Errorf("format %+v", last)
	}
	do(is.writeJSON(formatFile, last))

	var bootstraps string
	text, err := os.ReadFile(was.at(bootstrapFile))
	do(errors.Join(err, json.Unmarshal(text, &bootstraps)))
	do(is.writeJSON(bootstrapFile, bootstraps))

	for _, name := range []string{nodespec.PendingRestoreFile, nodespec.LastRestoreFile} {
		r, err := readRestored(was.at(name))
		if do(err); !r.Undo || r.Revision != 4711 {
			t.Errorf("%s: %+v", name, r)
		}
		do(is.writeJSON(name, r))
	}
	lost := releasedtest.Decode[nodespec.SavepointRestored](t, nodespec.RestoredFile)
	if lost.LostRevisions != 17 {
		t.Errorf("%s: %+v", nodespec.RestoredFile, lost)
	}
	do(is.writeJSON(nodespec.RestoredFile, lost))

	for _, name := range []string{nodespec.ForceNewClusterFile, nodespec.RejoinFile} {
		if !was.isStale(name) {
			t.Errorf("%s does not count as a request from an earlier boot", name)
		}
		order, err := os.ReadFile(was.at(name))
		do(errors.Join(err, os.WriteFile(is.at(name), order, 0o600)))
	}
	for _, name := range []string{filepath.Base(was.savepoints().file()), undoFile} {
		content, err := os.ReadFile(was.at(name))
		do(errors.Join(err, os.WriteFile(is.at(name), content, 0o600)))
	}

	all, err := was.snapshots().list("https://s3.example.org/bucket")
	if do(err); len(all) != 2 || !all[0].Uploaded.IsZero() || all[1].Uploaded.IsZero() || !all[1].Encrypted {
		t.Fatalf("snapshots: %+v", all)
	}
	do(os.Mkdir(is.at(snapshotDir), 0o700))
	for _, s := range all {
		do(os.WriteFile(filepath.Join(is.at(snapshotDir), snapshotName(s)), []byte("snapshot\n"), 0o600))
	}
	do(uploader{is.snapshots()}.record("https://s3.example.org/bucket", all, all[1]))

	key := releasedtest.Decode[formatRecord](t, "key-orlop-format.json")
	if formatKey != "/orlop/format" || key.Kubernetes != "v1.36.4" || key.By["a1"] != last {
		t.Errorf("%s: %+v", formatKey, key)
	}
	do(is.writeJSON("key-orlop-format.json", key))
	releasedtest.Compare(t, ".", is.dirs.EtcdSnapshots)
}
