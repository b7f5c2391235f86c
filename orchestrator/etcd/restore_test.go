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

var thisFormat = format{"3.6.8", "v1.36.3"}

// taken is a file with a snapshot of what etcd holds. It has no name, as on a machine.
func (m testMember) taken() *os.File {
	m.t.Helper()
	f, err := os.CreateTemp(m.t.TempDir(), "snapshot")
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { f.Close() })
	if err := os.Remove(f.Name()); err != nil {
		m.t.Fatal(err)
	}
	if _, err := Snapshot(m.t.Context(), m.k.dirs, f); err != nil {
		m.t.Fatal(err)
	}
	return f
}

func (m testMember) prepare(file *os.File) nodespec.EtcdRestored {
	m.t.Helper()
	r, err := m.k.prepare(m.t.Context(), nodespec.EtcdRestore{By: "CN=admin", Undo: file == nil}, file, thisFormat)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

func (m testMember) putBack() nodespec.EtcdRestored {
	m.t.Helper()
	r, err := readRestored(m.k.at(nodespec.LastRestoreFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// expect fails unless just these keys are there.
func (m testMember) expect(c *clientv3.Client, keys ...string) {
	m.t.Helper()
	all, err := c.Get(context.Background(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		m.t.Fatal(err)
	}
	var have []string
	for _, kv := range all.Kvs {
		if string(kv.Key) != writerKey {
			have = append(have, string(kv.Key))
		}
	}
	if !slices.Equal(have, keys) {
		m.t.Errorf("the keys are %q; want %q", have, keys)
	}
}

// TestRestore: a snapshot comes back while etcd runs, with revisions above all that anybody has
// seen; and what it has replaced comes back, when etcd does not run.
func TestRestore(t *testing.T) {
	m := newMember(t)
	var last int64
	m.serve(thisFormat, func(c *clientv3.Client) {
		if err := sign(t.Context(), c, thisFormat); err != nil {
			t.Fatal(err)
		}
		m.put(c, "kept", 3)
		f := m.taken()
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
			t.Errorf("revision %d comes after %d, which somebody may remember", r, last)
		}
		if _, err := c.Get(t.Context(), "kept", clientv3.WithRev(last)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a revision that is gone: %v", err)
		}
		s := m.k.status(t.Context())
		if s.Problem != "" || s.Leader == "" || s.Leader != s.ID || s.Restored == nil || s.Restored.Replaced != last || s.UndoSize == 0 || s.Size == 0 || s.Used > s.Size {
			t.Errorf("%+v", s)
		}
	})
	m.prepare(nil)
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "later", "latest") })
	if r := m.putBack(); !r.Undo || r.Revision != last {
		t.Errorf("%+v", r)
	}
	m.prepare(nil)
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "again", "kept") })
	// format.json, put-back.json, undo.snapshot
	if left, _ := filepath.Glob(m.k.at("*")); len(left) != 3 {
		t.Errorf("%q is left", left)
	}
}

// collecting has memory collected, and what was found unused closed, whenever somebody asks for its
// deadline.
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

// TestRestoreHeld: the file stays open for as long as it is read, though only its path is used.
func TestRestoreHeld(t *testing.T) {
	m := newMember(t)
	var f *os.File
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		f = m.taken()
	})
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.k.prepare(collecting{t.Context()}, nodespec.EtcdRestore{}, os.NewFile(uintptr(fd), "snapshot"), thisFormat)
	if err != nil {
		t.Error(err)
	}
}

// TestRestoreElsewhere: a machine without data gets those of another.
func TestRestoreElsewhere(t *testing.T) {
	from, to := newMember(t), newMember(t)
	var f *os.File
	from.serve(thisFormat, func(c *clientv3.Client) {
		from.put(c, "kept", 1)
		f = from.taken()
	})
	to.k.spec.NodeName = "other"
	if err := os.WriteFile(to.k.at(undo), []byte("of an earlier restore"), 0o600); err != nil {
		t.Fatal(err)
	}
	to.prepare(f)
	to.serve(thisFormat, func(c *clientv3.Client) { to.expect(c, "kept") })
	if r := to.putBack(); r.Replaced != 0 {
		t.Errorf("%+v", r)
	}
	if exists(to.k.at(undo)) {
		t.Error("there is something to put back, and there was nothing")
	}
}

// TestRestoreBroken: data that etcd cannot open, in whatever way, are no obstacle.
func TestRestoreBroken(t *testing.T) {
	for name, breaks := range map[string]func(db string) error{
		"cut":     func(db string) error { return os.Truncate(db, 9000) },
		"empty":   func(db string) error { return os.Truncate(db, 0) },
		"rubbish": func(db string) error { return os.WriteFile(db, []byte(strings.Repeat("rubbish ", 4096)), 0o600) },
		"missing": os.Remove,
		"pages": func(db string) error {
			f, err := os.OpenFile(db, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			// behind the two that say where all is
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
				f = m.taken()
				last = m.put(c, "later", 5)
			})
			if err := breaks(m.k.database()); err != nil {
				t.Fatal(err)
			}
			if s := m.k.status(t.Context()); !strings.Contains(s.Problem, "etcd does not run") {
				t.Errorf("%+v", s)
			}
			m.prepare(f)
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.expect(c, "kept")
				if r := m.put(c, "again", 1); r <= last {
					t.Errorf("revision %d comes after %d, which somebody may remember", r, last)
				}
			})
		})
	}
}

// TestRestoreRefused: what is no snapshot, or not for this version, changes nothing.
func TestRestoreRefused(t *testing.T) {
	m := newMember(t)
	var good, newer []byte
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		read := func() []byte {
			text, err := io.ReadAll(io.NewSectionReader(m.taken(), 0, 1<<30))
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		good = read()
		if err := sign(t.Context(), c, format{"3.6.8", "v1.37.0"}); err != nil {
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
		"nothing":  {nil, "is damaged, or none"},
		"rubbish":  {[]byte("hello"), "is damaged, or none"},
		"cut":      {good[:len(good)-512], "is damaged: its digest is another one"},
		"unsigned": {good[:len(good)-32], "does not end with a digest"},
		"flipped":  {flipped, "is damaged: its digest is another one"},
		"newer":    {newer, "written by etcd 3.6.8 and Kubernetes v1.37.0, which are newer"},
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
			if _, err := m.k.prepare(t.Context(), nodespec.EtcdRestore{}, f, thisFormat); err == nil || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("%v; want %q", err, bad.want)
			}
		})
	}
	if _, err := m.k.prepare(t.Context(), nodespec.EtcdRestore{Undo: true}, nil, thisFormat); err == nil || !strings.Contains(err.Error(), "nothing to put back") {
		t.Error(err)
	}
	for _, left := range []string{asked, nodespec.PendingRestoreFile} {
		if exists(m.k.at(left)) {
			t.Errorf("%s is left", left)
		}
	}
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
}

// TestSigned: a signature says the newest format of those who may write the data, and of nobody
// else.
func TestSigned(t *testing.T) {
	old, next := format{"3.6.8", "v1.36.3"}, format{"3.6.8", "v1.37.0"}
	both := []string{"a", "b"}
	one := signature{}.signed(next, "a", []string{"a"})
	if one.format != next {
		t.Errorf("the first one: %+v", one)
	}
	if back := one.signed(old, "a", []string{"a"}); back.format != old {
		t.Errorf("the only one goes back: %+v", back)
	}
	two := one.signed(next, "b", both)
	mixed := two.signed(old, "a", both)
	if mixed.format != next || mixed.By["a"] != old {
		t.Errorf("one of two goes back: %+v", mixed)
	}
	if back := mixed.signed(old, "b", both); back.format != old {
		t.Errorf("both go back: %+v", back)
	}
	if left := mixed.signed(old, "a", []string{"a"}); left.format != old || len(left.By) != 1 {
		t.Errorf("the other one is gone: %+v", left)
	}
	if unknown := (signature{format: next}).signed(old, "a", both); unknown.format != next {
		t.Errorf("somebody has said nothing: %+v", unknown)
	}
}

// TestSignBack: a version that the machine has gone back to puts its own snapshots back.
func TestSignBack(t *testing.T) {
	m := newMember(t)
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		for _, f := range []format{{"3.6.8", "v1.37.0"}, thisFormat, thisFormat} {
			if err := sign(t.Context(), c, f); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := c.Get(t.Context(), writerKey); err != nil || r.Kvs[0].Version != 2 {
			t.Errorf("what is said is said again: %v, %v", r, err)
		}
		m.prepare(m.taken())
	})
}

// TestRestoreAmid: while data are put in place by another process, etcd does not start without any.
func TestRestoreAmid(t *testing.T) {
	m := newMember(t)
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		m.prepare(m.taken())
	})
	for _, step := range m.k.swap()[:2] {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := m.k.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.k.settle(thisFormat); err == nil || !strings.Contains(err.Error(), "it is tried again") {
		t.Errorf("without data: %v", err)
	}
	unlock()
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
}

// TestRestoreCut: the power goes after each step of the swap, and before it; also where a newer
// version has written what is replaced, which what was saved for this version must not come in
// place of.
func TestRestoreCut(t *testing.T) {
	for cut := range 2 * (len(keeper{}.swap()) + 1) {
		cut, newer := cut/2, cut%2 == 1
		t.Run(fmt.Sprint(cut, newer), func(t *testing.T) {
			m := newMember(t)
			var last int64
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.put(c, "kept", 1)
				f := m.taken()
				last = m.put(c, "later", 2)
				m.prepare(f)
			})
			if newer {
				if err := m.k.note(formatFile, format{"3.7.0", "v1.37.0"}); err != nil {
					t.Fatal(err)
				}
			}
			for _, step := range m.k.swap()[:cut] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
			if r := m.putBack(); r.Replaced != last {
				t.Errorf("%+v; the last revision was %d", r, last)
			}
			for _, left := range []string{asked, nodespec.PendingRestoreFile, replaced} {
				if exists(m.k.at(left)) {
					t.Errorf("%s is left", left)
				}
			}
			m.prepare(nil)
			m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept", "later") })
		})
	}
}

// TestRestoreAmidSwap: the power goes after each step of the swap, and somebody asks for something
// else, in vain, before etcd starts: nothing is lost that is nowhere else.
func TestRestoreAmidSwap(t *testing.T) {
	for cut := range len(keeper{}.swap()) + 1 {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			m := newMember(t)
			m.serve(thisFormat, func(c *clientv3.Client) {
				m.put(c, "kept", 1)
				f := m.taken()
				m.put(c, "later", 2)
				m.prepare(f)
			})
			for _, step := range m.k.swap()[:cut] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.k.prepare(t.Context(), nodespec.EtcdRestore{Kept: "../none"}, nil, thisFormat); err == nil {
				t.Fatal("there is no such snapshot")
			}
			m.serve(thisFormat, func(c *clientv3.Client) {
				if cut < 2 { // it was not put in place, and was not to be any more
					m.expect(c, "kept", "later")
				} else {
					m.expect(c, "kept")
				}
			})
		})
	}
}

// TestRestoreUnfinished: what was not made to its end is forgotten, but not while it is being made.
func TestRestoreUnfinished(t *testing.T) {
	m := newMember(t)
	m.serve(thisFormat, func(c *clientv3.Client) { m.put(c, "kept", 1) })
	if err := os.MkdirAll(m.k.at(asked+"/"+member), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := m.k.lock()
	if err != nil {
		t.Fatal(err)
	}
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
	if !exists(m.k.at(asked)) {
		t.Error("what is being made was removed")
	}
	if _, err := m.k.prepare(t.Context(), nodespec.EtcdRestore{Undo: true}, nil, thisFormat); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Error(err)
	}
	unlock()
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
	if exists(m.k.at(asked)) {
		t.Error("what was not finished is left")
	}
}

// TestRestoreThenBack: what was asked for is put in place, and then gives way to the data of this
// version, because the version that made it may have written what this one does not understand.
func TestRestoreThenBack(t *testing.T) {
	m, next := newMember(t), format{"3.7.0", "v1.37.0"}
	m.serve(thisFormat, func(c *clientv3.Client) {
		m.put(c, "kept", 1)
		if _, err := TakeSavepoint(t.Context(), m.k.spec, m.k.dirs); err != nil {
			t.Fatal(err)
		}
	})
	m.serve(next, func(c *clientv3.Client) {
		m.put(c, "next", 1)
		f := m.taken()
		m.put(c, "later", 1)
		if _, err := m.k.prepare(t.Context(), nodespec.EtcdRestore{}, f, next); err != nil {
			t.Fatal(err)
		}
	})
	m.serve(thisFormat, func(c *clientv3.Client) { m.expect(c, "kept") })
	// format.json, put-back.json, restored.json, undo.snapshot, 1.0.0.db
	if left, _ := filepath.Glob(m.k.at("*")); len(left) != 5 {
		t.Errorf("%q is left", left)
	}
}

// TestNoSpace: a full database takes writes again when it was defragmented and the alarm is taken
// back.
func TestNoSpace(t *testing.T) {
	m := newMember(t)
	m.quota = 4 << 20
	m.serve(thisFormat, func(c *clientv3.Client) {
		value := strings.Repeat("x", 200<<10)
		full := func() error {
			_, err := c.Put(t.Context(), "large", value)
			return err
		}
		// The quota is held against what is in the file, which etcd writes ten times a second.
		var err error
		for begun := time.Now(); err == nil && time.Since(begun) < 30*time.Second; {
			err = full()
		}
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatalf("it was not filled: %v", err)
		}
		if s := m.k.status(t.Context()); !slices.Equal(s.Alarms, []string{"NOSPACE"}) || s.Quota != m.quota {
			t.Errorf("%+v", s)
		}
		done, err := defragment(t.Context(), m.k.dirs)
		if err != nil || done.Compacted == 0 || done.After >= done.Before {
			t.Errorf("%+v, %v", done, err)
		}
		if _, err := defragment(t.Context(), m.k.dirs); err != nil {
			t.Errorf("once more: %v", err)
		}
		if err := full(); !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Errorf("the alarm was taken back: %v", err)
		}
		if raised, err := disarm(t.Context(), m.k.dirs); err != nil || !slices.Equal(raised, []string{"NOSPACE"}) {
			t.Errorf("%q, %v", raised, err)
		}
		if err := full(); err != nil {
			t.Error(err)
		}
		if done, err := defragment(t.Context(), m.k.dirs); err != nil || done.Compacted != 0 {
			t.Errorf("%+v, %v", done, err)
		}
	})
}
