package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

var thisFormat = format{"3.7.8", "v1.37.3"}

// snapshotFile returns a file with a snapshot of etcd. As on a machine, the file is deleted and has
// only an open descriptor.
func (m testMember) snapshotFile() *os.File {
	m.t.Helper()
	f, err := os.CreateTemp(m.t.TempDir(), "snapshot")
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
	if err := os.Remove(f.Name()); err != nil {
		m.t.Fatal(err)
	}
	if _, err := Snapshot(m.t.Context(), m.local.dirs, f); err != nil {
		m.t.Fatal(err)
	}
	return f
}

// prepare requests the restore of the snapshot in file, or, if file is nil, the undo of a restore.
func (m testMember) prepare(file *os.File) nodespec.EtcdRestored {
	m.t.Helper()
	r, err := m.local.restores().prepare(m.t.Context(), nodespec.EtcdRestore{By: "CN=admin", Undo: file == nil}, file, thisFormat)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// lastRestore returns the record of the last restore.
func (m testMember) lastRestore() nodespec.EtcdRestored {
	m.t.Helper()
	r, err := readRestored(m.local.at(nodespec.LastRestoreFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// expect fails the test if the keys of etcd are not exactly these. It ignores formatKey.
func (m testMember) expect(c *clientv3.Client, keys ...string) {
	m.t.Helper()
	all, err := c.Get(context.Background(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		m.t.Fatal(err)
	}
	var have []string
	for _, kv := range all.Kvs {
		if string(kv.Key) != formatKey {
			have = append(have, string(kv.Key))
		}
	}
	if !slices.Equal(have, keys) {
		m.t.Errorf("the keys are %q; want %q", have, keys)
	}
}

// TestRestore restores a snapshot while etcd runs. After that, each new revision is higher than
// each revision that a client has seen. Then the test undoes the restore while etcd does not run,
// and undoes the undo.
func TestRestore(t *testing.T) {
	m := newMember(t)
	var last int64
	m.serve(thisFormat, func(c *clientv3.Client) {
		if err := recordFormat(t.Context(), c, thisFormat); err != nil {
			t.Fatal(err)
		}
		m.put(c, "kept", 3)
		f := m.snapshotFile()
		if _, err := c.Delete(t.Context(), "kept"); err != nil {
			t.Fatal(err)
		}
		m.put(c, "later", 3)
		if r := m.prepare(f); r.By != "CN=admin" || r.Revision != 5 || r.Keys != 2 || r.Replaced != 0 {
			t.Errorf("%+v", r)
		}
		last = m.put(c, "latest", 1)
		m.expect(c, "later", "latest")
	})
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.expect(c, "kept")
		if r := m.put(c, "again", 1); r <= last {
			t.Errorf("the revision after the restore is %d, and not above %d, which a client may remember", r, last)
		}
		if _, err := c.Get(t.Context(), "kept", clientv3.WithRev(last)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a read of a revision from before the restore: %v, want ErrCompacted", err)
		}
		s := m.local.members().status(t.Context())
		if s.Problem != "" || s.Leader == "" || s.Leader != s.Id || s.Restored == nil || s.Restored.Replaced != last || s.UndoSize == 0 || s.Size == 0 || s.Used > s.Size {
			t.Errorf("%+v", s)
		}
	})
	m.prepare(nil)
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "later", "latest") })
	if r := m.lastRestore(); !r.Undo || r.Revision != last {
		t.Errorf("%+v", r)
	}
	m.prepare(nil)
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "again", "kept") })
	// the three files are format.json, put-back.json and undo.snapshot
	if left, _ := filepath.Glob(m.local.at("*")); len(left) != 3 {
		t.Errorf("the remaining files are %q, want three", left)
	}
}

// collecting is a context. Each call of its method Deadline runs the garbage collector, and so the
// finalizers, which close files that the code no longer uses.
type collecting struct{ context.Context }

func (c collecting) Deadline() (time.Time, bool) {
	for range 2 {
		done, unused := make(chan struct{}), new([16]byte)
		runtime.SetFinalizer(unused, func(*[16]byte) { close(done) })
		runtime.GC()
		<-done
	}
	return c.Context.Deadline()
}

// TestRestoreHeld checks that the file of the snapshot stays open until it has been read. The code
// uses only the path of the file, so the garbage collector could close it earlier.
func TestRestoreHeld(t *testing.T) {
	m := newMember(t)
	var f *os.File
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		f = m.snapshotFile()
	})
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.local.restores().prepare(collecting{t.Context()}, nodespec.EtcdRestore{}, os.NewFile(uintptr(fd), "snapshot"), thisFormat)
	if err != nil {
		t.Error(err)
	}
}

// TestRestoreElsewhere restores the data of another machine on a machine without data.
func TestRestoreElsewhere(t *testing.T) {
	source, target := newMember(t), newMember(t)
	var f *os.File
	source.serve(thisFormat, func(c *clientv3.Client) {
		source.put(c, "kept", 1)
		f = source.snapshotFile()
	})
	target.local.spec.Node.Name = "other"
	if err := os.WriteFile(target.local.at(undoFile), []byte("from an earlier restore"), 0o600); err != nil {
		t.Fatal(err)
	}
	target.prepare(f)
	target.serve(thisFormat, func(c *clientv3.Client) { target.expect(c, "kept") })
	if r := target.lastRestore(); r.Replaced != 0 {
		t.Errorf("%+v", r)
	}
	if exists(target.local.at(undoFile)) {
		t.Error("an undo file exists, although the restore has replaced no data")
	}
}

// TestRestoreBroken checks that a restore works although etcd cannot open the present data.
func TestRestoreBroken(t *testing.T) {
	for name, breaks := range map[string]func(db string) error{
		"truncated":    func(db string) error { return os.Truncate(db, 9000) },
		"empty":        func(db string) error { return os.Truncate(db, 0) },
		"another text": func(db string) error { return os.WriteFile(db, []byte(strings.Repeat("rubbish ", 4096)), 0o600) },
		"missing":      os.Remove,
		"damaged pages": func(db string) error {
			f, err := os.OpenFile(db, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			// the first two pages are the meta pages, which stay intact
			_, err = f.WriteAt([]byte(strings.Repeat("rubbish ", 1024)), 8192)
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			var f *os.File
			var last int64
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.put(c, "kept", 1)
				f = m.snapshotFile()
				last = m.put(c, "later", 5)
			})
			if err := breaks(m.local.database()); err != nil {
				t.Fatal(err)
			}
			if s := m.local.members().status(t.Context()); !strings.Contains(s.Problem, "etcd does not run") {
				t.Errorf("%+v", s)
			}
			m.prepare(f)
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.expect(c, "kept")
				if r := m.put(c, "again", 1); r <= last {
					t.Errorf("the revision after the restore is %d, and not above %d, which a client may remember", r, last)
				}
			})
		})
	}
}

// TestRestoreRefused checks that an invalid snapshot, or a snapshot of a newer version, is rejected
// and changes no data.
func TestRestoreRefused(t *testing.T) {
	m := newMember(t)
	var good, newer []byte
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		read := func() []byte {
			text, err := io.ReadAll(io.NewSectionReader(m.snapshotFile(), 0, 1<<30))
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		good = read()
		if err := recordFormat(t.Context(), c, format{"3.7.8", "v1.38.0"}); err != nil {
			t.Fatal(err)
		}
		newer = read()
	})
	flipped := slices.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for name, bad := range map[string]struct {
		text []byte
		want string
	}{
		"empty":            {nil, "is damaged or not a snapshot"},
		"another text":     {[]byte("hello"), "is damaged or not a snapshot"},
		"truncated":        {good[:len(good)-512], "is damaged: its digest does not match"},
		"without a digest": {good[:len(good)-32], "does not end with a digest"},
		"flipped bit":      {flipped, "is damaged: its digest does not match"},
		"newer version":    {newer, "written by etcd 3.7.8 and Kubernetes v1.38.0, which are newer"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "snapshot")
			if err := os.WriteFile(file, bad.text, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{}, f, thisFormat); err == nil || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("%v; want %q", err, bad.want)
			}
		})
	}
	if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{Undo: true}, nil, thisFormat); err == nil || !strings.Contains(err.Error(), "no restore on this machine") {
		t.Error(err)
	}
	for _, left := range []string{requestedDir, nodespec.PendingRestoreFile} {
		if exists(m.local.at(left)) {
			t.Errorf("a rejected restore left %s", left)
		}
	}
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
}

// TestWithMember checks that the record contains the newest format of the present members, and
// ignores the formats of former members.
func TestWithMember(t *testing.T) {
	old, next := format{"3.7.8", "v1.37.3"}, format{"3.7.8", "v1.38.0"}
	both := []string{"a", "b"}
	one := formatRecord{}.withMember(next, "a", []string{"a"})
	if one.format != next {
		t.Errorf("first member: %+v", one)
	}
	if back := one.withMember(old, "a", []string{"a"}); back.format != old {
		t.Errorf("rollback of the only member: %+v", back)
	}
	two := one.withMember(next, "b", both)
	mixed := two.withMember(old, "a", both)
	if mixed.format != next || mixed.By["a"] != old {
		t.Errorf("rollback of one of two members: %+v", mixed)
	}
	if back := mixed.withMember(old, "b", both); back.format != old {
		t.Errorf("rollback of both members: %+v", back)
	}
	if left := mixed.withMember(old, "a", []string{"a"}); left.format != old || len(left.By) != 1 {
		t.Errorf("removal of the other member: %+v", left)
	}
	if unknown := (formatRecord{format: next}).withMember(old, "a", both); unknown.format != next {
		t.Errorf("a member without an entry: %+v", unknown)
	}
}

// TestRecordFormatRollback checks that, after a rollback, the older version can restore a snapshot
// that it takes itself.
func TestRecordFormatRollback(t *testing.T) {
	m := newMember(t)
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		for _, f := range []format{{"3.7.8", "v1.38.0"}, thisFormat, thisFormat} {
			if err := recordFormat(t.Context(), c, f); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := c.Get(t.Context(), formatKey); err != nil || r.Kvs[0].Version != 2 {
			t.Errorf("the same format was written again: %v, %v", r, err)
		}
		m.prepare(m.snapshotFile())
	})
}

// TestRestoreAmid checks that etcd does not start while another process swaps the data, because at
// that time the data directory does not exist.
func TestRestoreAmid(t *testing.T) {
	m := newMember(t)
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		m.prepare(m.snapshotFile())
	})
	for _, step := range m.local.restores().swapSteps()[:2] {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := m.local.restores().lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.local.savepoints().ensureFormat(thisFormat); err == nil || !strings.Contains(err.Error(), "etcd retries") {
		t.Errorf("ensureFormat during the swap: %v", err)
	}
	unlock()
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
}

// TestRestoreCut cuts the power before the swap and after each of its steps. In half of the cases,
// a newer version has written the data that the restore replaces. The savepoint of this version
// must then not replace the restored data.
func TestRestoreCut(t *testing.T) {
	for cut := range 2 * (len(localMember{}.restores().swapSteps()) + 1) {
		cut, newer := cut/2, cut%2 == 1
		t.Run(fmt.Sprint(cut, newer), func(t *testing.T) {
			m := newMember(t)
			var last int64
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.put(c, "kept", 1)
				f := m.snapshotFile()
				last = m.put(c, "later", 2)
				m.prepare(f)
			})
			if newer {
				if err := m.local.writeJSON(formatFile, format{"3.8.0", "v1.38.0"}); err != nil {
					t.Fatal(err)
				}
			}
			for _, step := range m.local.restores().swapSteps()[:cut] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
			if r := m.lastRestore(); r.Replaced != last {
				t.Errorf("%+v; the last revision was %d", r, last)
			}
			for _, left := range []string{requestedDir, nodespec.PendingRestoreFile, replacedDir} {
				if exists(m.local.at(left)) {
					t.Errorf("%s is left", left)
				}
			}
			m.prepare(nil)
			m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept", "later") })
		})
	}
}

// TestRestoreAmidSwap cuts the power after each step of the swap. Before etcd starts, an admin
// requests another restore, which fails. The failed request must not lose data of which there is no
// other copy.
func TestRestoreAmidSwap(t *testing.T) {
	for cut := range len(localMember{}.restores().swapSteps()) + 1 {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			m := newMember(t)
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.put(c, "kept", 1)
				f := m.snapshotFile()
				m.put(c, "later", 2)
				m.prepare(f)
			})
			for _, step := range m.local.restores().swapSteps()[:cut] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{Stored: "../none"}, nil, thisFormat); err == nil {
				t.Fatal("the restore of a snapshot that does not exist has no error")
			}
			m.serve(thisFormat, func(c *clientv3.Client) {
				// The swap had not begun, and the failed request replaced the first request.
				if cut < 2 {
					m.expect(c, "kept", "later")
				} else {
					m.expect(c, "kept")
				}
			})
		})
	}
}

// TestRestoreUnfinished checks that ensureFormat removes the data directory of an incomplete
// restore, but not while a process prepares a restore.
func TestRestoreUnfinished(t *testing.T) {
	m := newMember(t)
	m.serve(thisFormat, func(c *clientv3.Client) { m.put(c, "kept", 1) })
	if err := os.MkdirAll(m.local.at(requestedDir+"/"+member), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := m.local.restores().lock()
	if err != nil {
		t.Fatal(err)
	}
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
	if !exists(m.local.at(requestedDir)) {
		t.Error("the data directory was removed while a restore was being prepared")
	}
	if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{Undo: true}, nil, thisFormat); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Error(err)
	}
	unlock()
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
	if exists(m.local.at(requestedDir)) {
		t.Error("the data directory of the incomplete restore is left")
	}
}

// TestRestoreThenBack restores a snapshot with a newer version and then rolls back to this version.
// Then the savepoint of this version replaces the restored data, because this version may not be
// able to read them.
func TestRestoreThenBack(t *testing.T) {
	m, next := newMember(t), format{"3.8.0", "v1.38.0"}
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		if _, err := m.local.savepoints().take(t.Context(), reserve); err != nil {
			t.Fatal(err)
		}
	})
	m.serve(next, func(c *clientv3.Client) {
		m.put(c, "next", 1)
		f := m.snapshotFile()
		m.put(c, "later", 1)
		if _, err := m.local.restores().prepare(t.Context(), nodespec.EtcdRestore{}, f, next); err != nil {
			t.Fatal(err)
		}
	})
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
	// the five files are format.json, put-back.json, restored.json, undo.snapshot and 1.0.0.db
	if left, _ := filepath.Glob(m.local.at("*")); len(left) != 5 {
		t.Errorf("the remaining files are %q, want five", left)
	}
}

// TestNoSpace checks that a full database accepts writes again after it is defragmented and the
// alarm is cleared.
func TestNoSpace(t *testing.T) {
	m := newMember(t)
	m.quota = 4 << 20
	m.serve(thisFormat, func(c *clientv3.Client) {
		value := strings.Repeat("x", 200<<10)
		full := func() error {
			_, err := c.Put(t.Context(), "large", value)
			return err
		}
		// etcd compares the quota with the size of the file, and writes to the file ten
		// times a second.
		var err error
		for begun := time.Now(); err == nil && time.Since(begun) < 30*time.Second; {
			err = full()
		}
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatalf("the database does not become full: %v", err)
		}
		if s := m.local.members().status(t.Context()); !slices.Equal(s.Alarms, []string{"NOSPACE"}) || s.Quota != m.quota {
			t.Errorf("%+v", s)
		}
		done, err := defragment(t.Context(), m.local.dirs)
		if err != nil || done.Compacted == 0 || done.After >= done.Before {
			t.Errorf("%+v, %v", done, err)
		}
		if _, err := defragment(t.Context(), m.local.dirs); err != nil {
			t.Errorf("second defragmentation: %v", err)
		}
		if err := full(); !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Errorf("the alarm was cleared before disarm: %v", err)
		}
		if raised, err := disarm(t.Context(), m.local.dirs); err != nil || !slices.Equal(raised.GetAlarms(), []string{"NOSPACE"}) {
			t.Errorf("%q, %v", raised, err)
		}
		if err := full(); err != nil {
			t.Error(err)
		}
		if done, err := defragment(t.Context(), m.local.dirs); err != nil || done.Compacted != 0 {
			t.Errorf("%+v, %v", done, err)
		}
	})
}
