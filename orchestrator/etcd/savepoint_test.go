package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

func TestNewer(t *testing.T) {
	own := format{"3.7.8", "v1.37.3"}
	for _, c := range []struct {
		f    format
		want bool
	}{
		{format{}, false},
		{own, false},
		{format{"3.7.99", "v1.37.99"}, false},
		{format{"3.5.21", "v1.35.0"}, false},
		{format{"3.8.0", "v1.37.3"}, true},
		{format{"4.0.0", "v1.37.3"}, true},
		{format{"3.7.8", "v1.38.0-rc.1"}, true},
		{format{"3.10.0", "v1.37.3"}, true},
	} {
		if got := c.f.newer(own); got != c.want {
			t.Errorf("%+v: %t", c.f, got)
		}
	}
}

// testMember is an etcd with its data below a directory. It serves on the socket for the API
// server.
type testMember struct {
	local localMember
	t     *testing.T
	quota int64 // in bytes; 0 means the default of etcd
}

func newMember(t *testing.T) testMember {
	dir, err := os.MkdirTemp("", "etcd") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := testMember{local: localMember{dirs.Dirs{API: dir, EtcdData: dir + "/data", EtcdSnapshots: dir + "/kept", Level: dir + "/level"}, nodespec.Spec{Node: nodespec.Node{Name: "n"}, Cluster: "c", Version: "1.0.0", Level: level.Own()}}, t: t}
	for _, d := range []string{m.local.dirs.EtcdData, m.local.dirs.EtcdSnapshots, m.local.dirs.Level} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// serve runs etcd while the function do runs. Before that, it calls ensureFormat like a version
// whose format is own.
func (m testMember) serve(own format, do func(*clientv3.Client)) {
	m.t.Helper()
	if err := m.local.savepoints().ensureFormat(own); err != nil {
		m.t.Fatal(err)
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.LogLevel, c.LogOutputs = m.local.spec.Node.Name, m.local.dirs.EtcdData, "fatal", []string{"/dev/null"}
	c.InitialCluster, c.InitialClusterToken = m.local.spec.Node.Name+"="+peerURL(m.local.spec), m.local.spec.Cluster
	urls := func(s string) []url.URL {
		u, err := url.Parse(s)
		if err != nil {
			m.t.Fatal(err)
		}
		return []url.URL{*u}
	}
	c.AdvertisePeerUrls, c.ListenPeerUrls = urls(peerURL(m.local.spec)), urls("unix://"+filepath.Join(m.local.dirs.API, "peer.sock"))
	c.ListenClientUrls, c.AdvertiseClientUrls = urls("unix://"+m.local.dirs.EtcdSocket()), urls("http://127.0.0.1:2379")
	// a short election timeout, because there is no other member
	c.QuotaBackendBytes, c.TickMs, c.ElectionMs = m.quota, 10, 100
	server, err := embed.StartEtcd(c)
	if err != nil {
		m.t.Fatal(err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		m.t.Fatal("etcd is not ready after 30 s")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + m.local.dirs.EtcdSocket()}, Logger: zap.NewNop()})
	if err != nil {
		m.t.Fatal(err)
	}
	defer client.Close()
	do(client)
}

func (m testMember) put(c *clientv3.Client, key string, times int) (revision int64) {
	m.t.Helper()
	for i := range times {
		r, err := c.Put(context.Background(), key, fmt.Sprint(i))
		if err != nil {
			m.t.Fatal(err)
		}
		revision = r.Header.Revision
	}
	return revision
}

func (m testMember) has(c *clientv3.Client, key string) bool {
	m.t.Helper()
	r, err := c.Get(context.Background(), key)
	if err != nil {
		m.t.Fatal(err)
	}
	return r.Count > 0
}

func (m testMember) restored() (r nodespec.SavepointRestored) {
	m.t.Helper()
	text, err := os.ReadFile(m.local.at(nodespec.RestoredFile))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// TestRollback checks that a rollback of the version restores the savepoint only if a newer minor
// version has written the data.
func TestRollback(t *testing.T) {
	old, patch, next := format{"3.7.8", "v1.37.3"}, format{"3.7.9", "v1.37.4"}, format{"3.7.9", "v1.38.0"}
	m := newMember(t)
	var saved, last int64
	m.serve(old, func(c *clientv3.Client) {
		m.put(c, "before", 10)
		got, err := m.local.savepoints().take(t.Context(), reserve)
		if err != nil {
			t.Fatal(err)
		}
		saved = got.Revision
		m.put(c, "after", 1)
	})
	m.serve(patch, func(c *clientv3.Client) { m.put(c, "patch", 1) })
	m.serve(old, func(c *clientv3.Client) {
		if !m.has(c, "after") || !m.has(c, "patch") {
			t.Error("an upgrade within the minor version has lost data")
		}
	})
	m.serve(next, func(c *clientv3.Client) {
		if err := recordFormat(t.Context(), c, next); err != nil {
			t.Fatal(err)
		}
		last = m.put(c, "next", 5)
	})
	m.serve(old, func(c *clientv3.Client) {
		if !m.has(c, "before") || m.has(c, "after") || m.has(c, "next") {
			t.Error("the data are not those of the savepoint")
		}
		if r := m.put(c, "again", 1); r <= last {
			t.Errorf("the revision after the restore is %d, and not above %d, which a client may remember", r, last)
		}
		if _, err := c.Get(context.Background(), "before", clientv3.WithRev(last)); err == nil {
			t.Error("a dropped revision can be read")
		}
	})
	if r := m.restored(); r.Version != "1.0.0" || r.Revision != saved || r.LostRevisions != last-saved {
		t.Errorf("%+v; saved %d, last %d", r, saved, last)
	}
	m.serve(old, func(c *clientv3.Client) {
		if !m.has(c, "again") {
			t.Error("the second start has restored the savepoint again")
		}
	})

	// The replaced data remain for a version that can read them.
	back := nodespec.EtcdRestore{Undo: true}
	if _, err := m.local.restores().prepare(t.Context(), back, nil, old); err == nil || !strings.Contains(err.Error(), "Kubernetes v1.38.0, which are newer") {
		t.Errorf("the restore of newer data: %v", err)
	}
	if _, err := m.local.restores().prepare(t.Context(), back, nil, next); err != nil {
		t.Fatal(err)
	}
	m.serve(next, func(c *clientv3.Client) {
		if !m.has(c, "after") || !m.has(c, "next") || m.has(c, "again") {
			t.Error("the data are not those that were replaced")
		}
	})
}

// TestRecordServed checks that newer data that etcd serves count as data of this version.
// recordServed then deletes the savepoint of this version, so it cannot replace the data later.
func TestRecordServed(t *testing.T) {
	own := format{"3.7.8", "v1.37.3"}
	for _, c := range []struct {
		last, want format
		remains    bool
	}{
		{format{"3.8.0", "v1.38.0"}, own, false},
		{own, own, true},
		// ensureFormat changes this format, not recordServed.
		{format{"3.7.9", "v1.37.4"}, format{"3.7.9", "v1.37.4"}, true},
	} {
		m := newMember(t)
		if err := m.local.writeJSON(formatFile, c.last); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.local.savepoints().file(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := m.local.savepoints().recordServed(own); err != nil {
			t.Fatal(err)
		}
		if got, err := m.local.savepoints().lastFormat(); err != nil || got != c.want || exists(m.local.savepoints().file()) != c.remains {
			t.Errorf("%v: %v, %v; the savepoint exists: %t", c.last, got, err, exists(m.local.savepoints().file()))
		}
	}
}

// TestSavepointNoEtcd checks that take returns an error if etcd does not run.
func TestSavepointNoEtcd(t *testing.T) {
	m := newMember(t)
	if _, err := m.local.savepoints().take(t.Context(), reserve); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Error(err)
	}
}

// TestSavepointSpace checks that a savepoint is rejected if it would use the reserved space. Files
// of earlier savepoints are removed before the check, and when etcd starts.
func TestSavepointSpace(t *testing.T) {
	m := newMember(t)
	names := func() string {
		t.Helper()
		all, err := filepath.Glob(m.local.at("*" + savepointSuffix + "*"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			all[i] = filepath.Base(all[i])
		}
		return strings.Join(all, " ")
	}
	leave := func(files ...string) {
		t.Helper()
		for i, name := range files {
			if err := os.WriteFile(m.local.at(name), []byte("cut"), 0o600); err != nil {
				t.Fatal(err)
			}
			modified := time.Unix(int64(1000*(i+1)), 0) // the last is the newest
			if err := os.Chtimes(m.local.at(name), modified, modified); err != nil {
				t.Fatal(err)
			}
		}
	}
	leave("0.9.0.db.part", "0.9.0.db")
	m.serve(thisFormat, func(c *clientv3.Client) {
		if got := names(); got != "0.9.0.db" {
			t.Errorf("when etcd has started: %s", got)
		}
		m.put(c, "before", 1)
		leave("0.8.0.db", "0.9.0.db", "0.9.0.db.part", "1.0.0.db.part")
		_, err := m.local.savepoints().take(t.Context(), 1<<60)
		if err == nil || !strings.Contains(err.Error(), "cannot take a savepoint: DATA has no space: it needs 1 MiB; ") || !strings.Contains(err.Error(), "delete unused images or volumes") {
			t.Errorf("without space: %v", err)
		}
		if got := names(); got != "0.9.0.db" {
			t.Errorf("after a rejected savepoint: %s", got)
		}
		if _, err := m.local.savepoints().take(t.Context(), reserve); err != nil {
			t.Fatal(err)
		}
		if got := names(); got != "0.9.0.db 1.0.0.db" {
			t.Errorf("after a savepoint: %s", got)
		}
	})
}

// TestPruneSavepoints checks that prune deletes all savepoints except that of this version (1.0.0)
// and the newest other one.
func TestPruneSavepoints(t *testing.T) {
	m := newMember(t)
	for i, version := range []string{"0.8.0", "0.9.0", "1.0.0", "0.7.0"} {
		if err := os.WriteFile(m.local.at(version+savepointSuffix), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		modified := time.Unix(int64(1000*(4-i)), 0) // the first is the newest
		if err := os.Chtimes(m.local.at(version+savepointSuffix), modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.local.savepoints().prune(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(m.local.at("*"))
	if want := []string{m.local.at("0.8.0.db"), m.local.at("1.0.0.db")}; err != nil || !slices.Equal(left, want) {
		t.Errorf("%q, %v", left, err)
	}
}

// TestRollbackNoSavepoint checks that a rollback without a savepoint leaves the data unchanged, and
// that the error states the reason.
func TestRollbackNoSavepoint(t *testing.T) {
	m := newMember(t)
	m.serve(format{"3.8.0", "v1.38.0"}, func(c *clientv3.Client) { m.put(c, "next", 1) })
	err := m.local.savepoints().ensureFormat(format{"3.7.8", "v1.37.3"})
	if err == nil || !strings.Contains(err.Error(), "there is no savepoint for version 1.0.0") {
		t.Fatal(err)
	}
	m.serve(format{"3.8.0", "v1.38.0"}, func(c *clientv3.Client) {
		if !m.has(c, "next") {
			t.Error("the data were removed")
		}
	})
}

// TestRollbackCut cuts the power after each step by which a rollback restores the savepoint.
func TestRollbackCut(t *testing.T) {
	for name, named := range map[string][]netip.Addr{
		"a single machine": nil,
		// the other machines are configured, but are not etcd members yet
		"several machines": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
	} {
		t.Run(name, func(t *testing.T) { testRollbackCut(t, named) })
	}
}

func testRollbackCut(t *testing.T, named []netip.Addr) {
	old, next := format{"3.7.8", "v1.37.3"}, format{"3.8.0", "v1.38.0"}
	for name, cut := range map[string]func(k localMember) error{
		"during the copy":       func(k localMember) error { return os.Mkdir(k.at(restoringDir), 0o700) },
		"after the copy":        func(k localMember) error { return k.savepoints().restore(next, old) },
		"after the first move":  func(k localMember) error { return restoreUntil(k, next, old, 1) },
		"after the second move": func(k localMember) error { return restoreUntil(k, next, old, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			if m.local.spec.ControlPlanes = named; len(named) > 0 {
				m.local.spec.Node.IPs = named[:1]
			}
			m.serve(old, func(c *clientv3.Client) {
				m.put(c, "before", 3)
				if _, err := m.local.savepoints().take(t.Context(), reserve); err != nil {
					t.Fatal(err)
				}
			})
			m.serve(next, func(c *clientv3.Client) { m.put(c, "next", 2) })
			if err := cut(m.local); err != nil {
				t.Fatal(err)
			}
			m.serve(old, func(c *clientv3.Client) {
				if !m.has(c, "before") || m.has(c, "next") {
					t.Error("the data are not those of the savepoint")
				}
			})
			if r := m.restored(); r.LostRevisions != 2 {
				t.Errorf("%+v", r)
			}
			for _, left := range []string{restoringDir, droppedDir} {
				if exists(m.local.at(left)) {
					t.Errorf("the file %s remains", left)
				}
			}
		})
	}
}

// restoreUntil does what ensureFormat does, but stops after the given number of its two moves.
func restoreUntil(k localMember, last, own format, moves int) error {
	if err := k.savepoints().restore(last, own); err != nil {
		return err
	}
	live := filepath.Join(k.dirs.EtcdData, member)
	if err := move(live, k.at(droppedDir)); err != nil || moves == 1 {
		return err
	}
	return move(k.at(restoringDir+"/"+member), live)
}
