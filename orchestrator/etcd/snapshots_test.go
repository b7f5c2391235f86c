package etcd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

func TestSnapshotName(t *testing.T) {
	const name = "20261122T201140Z-1234-3.6.0.db"
	s, ok := parseSnapshotName(name)
	want := storedSnapshot{Name: name, At: time.Date(2026, 11, 22, 20, 11, 40, 0, time.UTC), Revision: 1234, Version: "3.6.0"}
	if !ok || s != want {
		t.Errorf("%+v, %t; want %+v", s, ok, want)
	}
	want.Name, want.Encrypted = name+".age", true
	if s, ok := parseSnapshotName(want.Name); !ok || s != want {
		t.Errorf("%+v, %t; want %+v", s, ok, want)
	}
	for _, bad := range []string{"", partialFile, name + ".age.age", "20261122T201140Z-1234-3.6.0.age", "1.2.0.db", "20261122T201140Z-1234-3.6.0", "20261122T201140Z-01234-3.6.0.db", "20261322T201140Z-1-3.6.0.db",
		"20261122T201140Z-1-../../data/member/snap/db.db", "/20261122T201140Z-1-3.6.0.db"} {
		if s, ok := parseSnapshotName(bad); ok {
			t.Errorf("parseSnapshotName accepts %q as %+v", bad, s)
		}
	}
}

// TestBeyondRetention checks which snapshots are deleted. The snapshot just made always remains,
// and the newest of the others. Snapshots that are newer than the one just made come from a fast
// clock, and are deleted first.
func TestBeyondRetention(t *testing.T) {
	at := func(hour int) storedSnapshot {
		s := storedSnapshot{At: time.Date(2026, 11, 22, hour, 0, 0, 0, time.UTC), Revision: 1, Version: "3.6.0"}
		s.Name = snapshotName(s)
		return s
	}
	for _, c := range []struct {
		all  []int // the hours of all snapshots, the newest first
		made int
		most int
		want []int // the hours of the snapshots that are deleted
	}{
		{[]int{6}, 6, 1, nil},
		{[]int{6, 5, 4}, 6, 4, nil},
		{[]int{6, 5, 4, 3, 2}, 6, 4, []int{2}},
		{[]int{6, 5, 4, 3, 2}, 6, 1, []int{5, 4, 3, 2}},
		{[]int{9, 8, 6, 5, 4}, 6, 4, []int{8}},
		{[]int{9, 8, 6}, 6, 1, []int{9, 8}},
	} {
		var all []storedSnapshot
		for _, hour := range c.all {
			all = append(all, at(hour))
		}
		var got []int
		for _, s := range beyondRetention(all, at(c.made), c.most) {
			got = append(got, s.At.Hour())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("of the snapshots %v with the retention %d, %v are deleted; want %v", c.all, c.most, got, c.want)
		}
	}
}

// TestTakeSnapshot checks that a stored snapshot can be restored, and that old and incomplete
// snapshots are removed.
func TestTakeSnapshot(t *testing.T) {
	m := newMember(t)
	dir := m.local.at(snapshotDir)
	if all, err := m.local.snapshots().list(""); err != nil || len(all) != 0 {
		t.Errorf("before the first snapshot: %v, %v", all, err)
	}
	if _, err := m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 1}, 0); err == nil || !strings.Contains(err.Error(), "no data") {
		t.Errorf("without data: %v", err)
	}
	var kept storedSnapshot
	m.serve(thisFormat, func(c *clientv3.Client) {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		const old = "20200102T030405Z-7-3.6.0.db"
		for _, name := range []string{old, "20200102T030400Z-6-3.6.0.db", partialFile} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("cut"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		revision := m.put(c, "before", 3)
		var err error
		if kept, err = m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 2}, 0); err != nil || kept.Revision != revision || kept.Size == 0 || time.Since(kept.At) > time.Minute {
			t.Errorf("%+v, %v; want revision %d", kept, err, revision)
		}
		if _, err := m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 2}, 100); err == nil || !strings.Contains(err.Error(), "DATA has no space for a snapshot") {
			t.Errorf("without space: %v", err)
		}
		all, err := m.local.snapshots().list("")
		if err != nil || len(all) != 2 || all[0] != kept || all[1].Name != old {
			t.Errorf("the list is %+v, %v", all, err)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 2 {
			t.Errorf("the directory has %v, %v", files, err)
		}
		if info, err := os.Stat(filepath.Join(dir, kept.Name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		m.put(c, "after", 1)
		for name, want := range map[string]string{old: "is damaged or not a snapshot", "20200102T030400Z-6-3.6.0.db": "no stored snapshot", "../format.json": "is not the name of a stored snapshot"} {
			if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{Stored: name}, nil, thisFormat); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
	})
	if _, err := m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 2}, 0); err == nil || !strings.Contains(err.Error(), "etcd does not run") {
		t.Errorf("while etcd does not run: %v", err)
	}
	if all, err := m.local.snapshots().list(""); err != nil || len(all) != 2 || exists(filepath.Join(dir, partialFile)) {
		t.Errorf("after a failure, the list is %+v, %v, or an incomplete snapshot is left", all, err)
	}
	// If there is no space for a snapshot, a lower retention still deletes old snapshots.
	m.serve(thisFormat, func(*clientv3.Client) {
		if _, err := m.local.snapshots().take(t.Context(), nodespec.TakeSnapshotRequest{Most: 1}, 100); err == nil || !strings.Contains(err.Error(), "DATA has no space for a snapshot") {
			t.Errorf("without space: %v", err)
		}
	})
	if all, err := m.local.snapshots().list(""); err != nil || len(all) != 1 || all[0] != kept {
		t.Errorf("the list with the retention 1 is %+v, %v", all, err)
	}
	if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{By: "CN=admin", Stored: kept.Name}, nil, thisFormat); err != nil {
		t.Fatal(err)
	}
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "before") })
}
