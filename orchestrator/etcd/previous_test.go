package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// released is the format of release 0.1.0.
var released = format{"3.6.8", "v1.36.3"}

// buildPrevious builds the etcd of release 0.1.0 from its modules, and returns the path of the
// program.
func buildPrevious(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "previous")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, ".")
	build.Dir, build.Env = "testdata/previous", append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the etcd of 0.1.0: %v\n%s", err, out)
	}
	return program
}

// previousMachine is a machine that can also run the etcd of release 0.1.0, as a process of its
// own.
type previousMachine struct {
	*testMachine
	program string
	all     []*previousMachine
	process *exec.Cmd
	exited  chan error
}

// startPrevious starts the etcd of release 0.1.0, and records the format of the release, as the
// release does.
func (p *previousMachine) startPrevious() {
	p.t.Helper()
	p.execPrevious()
	p.waitServing()
	p.withClient(func(ctx context.Context, c *clientv3.Client) {
		if err := recordFormat(ctx, c, released); err != nil {
			p.t.Fatal(err)
		}
	})
}

// execPrevious starts the process of the etcd of release 0.1.0.
func (p *previousMachine) execPrevious() {
	p.t.Helper()
	if err := p.local().writeJSON(formatFile, released); err != nil {
		p.t.Fatal(err)
	}
	file := Component(p.spec, p.dirs).Files[0]
	var cluster []string
	for _, m := range p.all {
		cluster = append(cluster, m.spec.Node.Name+"="+etcdjoin.PeerURL(m.spec.OwnAddress()))
	}
	own := "initial-cluster: " + p.spec.Node.Name + "="
	var lines []string
	for line := range strings.Lines(file.Content) {
		if strings.HasPrefix(line, own) {
			line = "initial-cluster: " + strings.Join(cluster, ",") + "\n"
		}
		lines = append(lines, line)
	}
	content := smaller(strings.Join(lines, ""))
	if err := os.WriteFile(file.Path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(p.dirs.API, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.process, p.exited = exec.Command(p.program, file.Path), make(chan error, 1)
	p.process.Stderr = log
	p.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.process.Start(); err != nil {
		p.t.Fatal(err)
	}
	process, exited := p.process, p.exited
	go func() { exited <- process.Wait() }()
}

// The function smaller changes the configuration: etcd takes a snapshot after a few writes and
// drops its log. So members get snapshots from members of the other version.
func smaller(config string) string {
	return strings.NewReplacer("snapshot-count: 5000", "snapshot-count: 50", "snapshot-catchup-entries: 1000", "snapshot-catchup-entries: 10").Replace(config)
}

// stopPrevious stops the process of the etcd of release 0.1.0.
func (p *previousMachine) stopPrevious() {
	p.t.Helper()
	if p.process == nil {
		return
	}
	_ = p.process.Process.Signal(syscall.SIGTERM) // the process may have ended before
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		_ = p.process.Process.Kill()
		<-p.exited
		p.t.Errorf("%s: the etcd of 0.1.0 does not stop\n%s", p.spec.Node.Name, p.log())
	}
	p.process = nil
}

// waitServing waits until the etcd of the machine answers with a quorum.
func (p *previousMachine) waitServing() {
	p.t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		select {
		case err := <-p.exited:
			p.exited <- err
			p.t.Fatalf("%s: the etcd of 0.1.0 has ended: %v\n%s", p.spec.Node.Name, err, p.log())
		default:
		}
		if err = p.read(); err == nil {
			return
		}
	}
	p.t.Fatalf("%s does not serve: %v\n%s", p.spec.Node.Name, err, p.log())
}

func (p *previousMachine) read() error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	c, err := connect(ctx, p.dirs)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Get(ctx, "/x")
	return err
}

// startPresent starts the etcd of the present version at the level that StartLevel returns, as
// process "api" does.
func (p *previousMachine) startPresent() {
	p.t.Helper()
	first, err := StartLevel(p.spec, p.dirs)
	if err != nil {
		p.t.Fatal(err)
	}
	p.spec.Level = first
	p.start()
	p.waitVoting()
}

// status returns the status of the machine's etcd.
func (p *previousMachine) status() (out *clientv3.StatusResponse) {
	p.t.Helper()
	p.withClient(func(ctx context.Context, c *clientv3.Client) {
		var err error
		if out, err = fetchStatus(ctx, c, p.dirs); err != nil {
			p.t.Fatalf("%s: %v", p.spec.Node.Name, err)
		}
	})
	return out
}

// waitStorage waits until the machine's etcd stores its data in the version that begins with want.
func (p *previousMachine) waitStorage(want string) {
	p.t.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if got = p.status().StorageVersion; strings.HasPrefix(got, want) {
			return
		}
	}
	p.t.Fatalf("%s stores its data in version %s, want %s\n%s", p.spec.Node.Name, got, want, p.log())
}

// newPreviousMachines makes n machines, and starts the etcd of release 0.1.0 on them.
func newPreviousMachines(t *testing.T, test byte, n int) []*previousMachine {
	t.Helper()
	program := buildPrevious(t)
	var all []*previousMachine
	for _, m := range newMachines(t, test, n) {
		m.config = smaller
		all = append(all, &previousMachine{testMachine: m, program: program})
	}
	for _, p := range all {
		p.all = all
		t.Cleanup(p.stopPrevious)
		p.execPrevious()
	}
	for _, p := range all {
		p.waitServing()
		p.withClient(func(ctx context.Context, c *clientv3.Client) {
			if err := recordFormat(ctx, c, released); err != nil {
				t.Fatal(err)
			}
		})
	}
	return all
}

// writer writes keys until it is stopped, and remembers the acknowledged keys.
type writer struct {
	stop func()
	mu   sync.Mutex
	keys []string
}

// writePace is the shortest time between two writes of a writer. It limits the load, because other
// tests use the same disk.
const writePace = 10 * time.Millisecond

// startWriter starts a writer that uses all machines.
func startWriter(t *testing.T, name string, all []*previousMachine) *writer {
	t.Helper()
	var urls []string
	for _, p := range all {
		urls = append(urls, clientURL(p.spec.OwnAddress()))
	}
	c, err := connectTo(all[0].dirs, urls...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w, ended := &writer{}, make(chan struct{})
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		c.Close()
	})
	t.Cleanup(w.stop)
	go func() {
		defer close(ended)
		pace := time.NewTicker(writePace)
		defer pace.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			w.put(ctx, c, fmt.Sprintf("/writes/%s/%d", name, n))
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
	}()
	return w
}

// put writes a key, and remembers it if etcd acknowledges the write.
func (w *writer) put(ctx context.Context, c *clientv3.Client, key string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := c.Put(ctx, key, "written"); err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, key)
}

// acknowledged returns the keys of the acknowledged writes so far.
func (w *writer) acknowledged() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.keys...)
}

// waitWrites waits until etcd has acknowledged count further writes. After 100 writes, each member
// has taken a snapshot.
func (w *writer) waitWrites(t *testing.T, count int) {
	t.Helper()
	before := len(w.acknowledged())
	for end := time.Now().Add(2 * time.Minute); len(w.acknowledged()) < before+count; <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d writes of %d in two minutes", len(w.acknowledged())-before, count)
		}
	}
}

// checkWrites checks that a machine has each acknowledged write.
func (p *previousMachine) checkWrites(writers ...*writer) {
	p.t.Helper()
	p.withClient(func(ctx context.Context, c *clientv3.Client) {
		r, err := c.Get(ctx, "/writes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			p.t.Fatal(err)
		}
		has := map[string]bool{}
		for _, kv := range r.Kvs {
			has[string(kv.Key)] = true
		}
		for _, w := range writers {
			keys := w.acknowledged()
			if len(keys) < 500 {
				p.t.Errorf("only %d acknowledged writes", len(keys))
			}
			for _, key := range keys {
				if !has[key] {
					p.t.Fatalf("%s: the acknowledged write %s is lost", p.spec.Node.Name, key)
				}
			}
		}
	})
}

// serveAPIs runs a fake API server on each machine, which reports that it is ready.
func serveAPIs(t *testing.T, all []*previousMachine) {
	t.Helper()
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: "localhost", DNS: []string{"localhost"}, Usage: pki.Server, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if err := os.WriteFile(filepath.Join(p.dirs.API, nodespec.CA), ca.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		listener, err := tls.Listen("tcp", netip.AddrPortFrom(p.spec.OwnAddress(), paths.PortKubernetes).String(), &tls.Config{Certificates: []tls.Certificate{cert}})
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }() // ends with Close
		t.Cleanup(func() { server.Close() })
	}
}

// The method refuse checks that raising the level returns an error that contains part.
func (p *previousMachine) refuse(part string) {
	p.t.Helper()
	raised, err := p.turns().raise(context.Background(), nodespec.RaiseLevel{By: "dora"})
	for end := time.Now().Add(time.Minute); err != nil && strings.Contains(err.Error(), "cannot be observed") && time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		// the raise is repeated while etcd has no leader
		raised, err = p.turns().raise(context.Background(), nodespec.RaiseLevel{By: "dora"})
	}
	if err == nil || !strings.Contains(err.Error(), part) {
		p.t.Errorf("%s: raised %+v: %v; want %q", p.spec.Node.Name, raised, err, part)
	}
}

func (p *previousMachine) turns() turns { return turns{p.local().members()} }

// TestTwoPhases upgrades three machines from the etcd of release 0.1.0 to the present etcd under
// writes, machine by machine. It rolls them back in the same way, upgrades again, and raises the
// level. No acknowledged write is lost. At the old level, a machine with an empty disk can join.
// After the raise, the old etcd does not start.
func TestTwoPhases(t *testing.T) {
	t.Parallel()
	all := newPreviousMachines(t, 92, 3)
	a, c := all[0], all[2]
	serveAPIs(t, all)
	writers := []*writer{startWriter(t, "1", all), startWriter(t, "2", all)}
	writes := writers[0]
	for round := range 2 {
		writes.waitWrites(t, 100)
		for i, p := range all {
			p.stopPrevious()
			if i > 0 {
				a.refuse("control-plane machine " + p.spec.Node.Name + " is away: ")
			}
			writes.waitWrites(t, 100) // after these, the machine needs a snapshot
			p.startPresent()
			writes.waitWrites(t, 100)
			if i < len(all)-1 {
				a.refuse(" Kubernetes 1.36; upgrade all of them, or go back on the others (`orlopctl rollback`)")
			}
		}
		for _, p := range all {
			if s := p.status(); !strings.HasPrefix(s.Version, "3.7.") || !strings.HasPrefix(s.StorageVersion, "3.6") || !s.DowngradeInfo.GetEnabled() {
				t.Errorf("%s: version %s, storage %s, downgrade %v", p.spec.Node.Name, s.Version, s.StorageVersion, s.DowngradeInfo)
			}
			if p.spec.Level != emulation.BeforeLevels {
				t.Errorf("%s has level %s", p.spec.Node.Name, p.spec.Level)
			}
		}
		if round == 1 {
			break
		}
		for _, p := range all {
			p.stop()
			writes.waitWrites(t, 100)
			p.startPrevious()
			writes.waitWrites(t, 100)
		}
	}

	// A machine with an empty disk replaces the lost machine, at the old level. The process of
	// the new machine gets the level from etcd.
	c.stop()
	c.wipe()
	first, err := StartLevel(c.spec, c.dirs)
	if err != nil || first != level.Own() {
		t.Fatalf("a machine without data starts with level %v: %v", first, err)
	}
	c.spec.Level = first
	c.start()
	select {
	case err := <-c.ended:
		c.ended <- err
		if err == nil || !strings.Contains(err.Error(), "the level of the cluster is 1.36 instead of") {
			t.Fatalf("the process has ended: %v\n%s", err, c.log())
		}
	case <-time.After(2 * time.Minute):
		t.Fatalf("the process does not end, to start at the old level; its last report: %s\n%s", c.said(), c.log())
	}
	c.stop()
	c.startPresent()
	c.waitStorage("3.6")

	raiseLevel(t, all)
	for _, p := range all {
		p.waitStorage("3.7")
	}
	writes.waitWrites(t, 100)
	for _, w := range writers {
		w.stop()
	}
	for _, p := range all {
		p.checkWrites(writers...)
	}
	a.stop()
	a.execPrevious()
	select {
	case err := <-a.exited:
		a.exited <- err
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(a.log(), `version "3.7.0" is not supported`) {
			t.Errorf("the etcd of 0.1.0 has ended: %v\n%s", err, a.log())
		}
	case <-time.After(time.Minute):
		t.Error("the etcd of 0.1.0 serves the data of the present version")
	}
}

// raiseLevel raises the level of machines at the old level. It checks that their processes start
// again one after the other.
func raiseLevel(t *testing.T, all []*previousMachine) {
	t.Helper()
	ctx := context.Background()
	a, b := all[0], all[1]
	if detail := describeLevel(t, a); !strings.Contains(detail, "level 1.36, finalize possible") {
		t.Error(detail)
	}
	turn := turnOf(b.testMachine, false)
	if seen := b.turns().take(ctx, turn); seen.Turn.Machine != "b" {
		t.Fatalf("b did not get the turn: %+v", seen)
	}
	a.refuse("control-plane machine b reboots since")
	if err := b.turns().giveBack(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	raised, err := a.turns().raise(ctx, nodespec.RaiseLevel{By: "dora"})
	if err != nil || raised.From != emulation.BeforeLevels || raised.To != level.Own() {
		t.Fatalf("raised %+v: %v", raised, err)
	}
	if again, err := b.turns().raise(ctx, nodespec.RaiseLevel{By: "eve"}); err != nil || again.From != level.Own() || again.To != level.Own() {
		t.Errorf("second raise %+v: %v", again, err)
	}
	var details []string
	runner := func(p *previousMachine) *levelRunner {
		return &levelRunner{turns: p.turns(), announce: func(detail string) { details = append(details, detail) }}
	}
	first, second := runner(a), runner(b)
	if err := first.pass(ctx); err == nil || !strings.Contains(err.Error(), "the process starts again") {
		t.Errorf("a: %v", err)
	}
	if now, err := level.Read(a.dirs); err != nil || now != level.Own() {
		t.Errorf("a starts at level %v: %v", now, err)
	}
	if err := second.pass(ctx); err != nil || len(details) != 1 || !strings.Contains(details[0], "this machine still emulates 1.36 and waits: control-plane machine a starts at the new level") {
		t.Errorf("b: %v, %q", err, details)
	}
	if err := first.returnTurn(ctx); err != nil {
		t.Fatal(err)
	}
	if err := second.pass(ctx); err == nil {
		t.Error("b does not end, to start again at the new level")
	}
	if err := second.returnTurn(ctx); err != nil {
		t.Fatal(err)
	}
}

// describeLevel returns the detail of component "level".
func describeLevel(t *testing.T, p *previousMachine) (detail string) {
	t.Helper()
	r := &levelRunner{turns: p.turns(), announce: func(text string) { detail = text }}
	if err := r.pass(context.Background()); err != nil {
		t.Fatal(err)
	}
	return detail
}

// TestStartLevel checks the level at which a process starts before etcd answers. A file has the
// level of the last start. If the file is missing or damaged, the level is that of the version that
// has written the data. Without data, it is the level of this executable.
func TestStartLevel(t *testing.T) {
	m := newMember(t).local
	file := filepath.Join(m.dirs.Level, "level")
	starts := func(want emulation.Minor) {
		t.Helper()
		for range 2 { // the second reads the file of the first
			if got, err := StartLevel(m.spec, m.dirs); err != nil || got != want {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		}
	}
	starts(level.Own())
	if err := os.WriteFile(file, []byte("1.3"), 0o644); err != nil {
		t.Fatal(err)
	}
	starts(emulation.Minor{Major: 1, Minor: 3})
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(m.dirs.EtcdData, logDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.writeJSON(formatFile, released); err != nil {
		t.Fatal(err)
	}
	starts(emulation.BeforeLevels)

	// The only control-plane machine has rolled back to a version below the level: it starts with
	// its own level, and restores its savepoint.
	newer := emulation.Minor{Major: level.Own().Major, Minor: level.Own().Minor + 1}
	if err := level.Write(m.dirs, newer); err != nil {
		t.Fatal(err)
	}
	starts(level.Own())
	// A rollback does not replace the data of several members, so the level stays.
	if err := level.Write(m.dirs, newer); err != nil {
		t.Fatal(err)
	}
	m.spec.Node.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	m.spec.ControlPlanes = []netip.Addr{m.spec.Node.IPs[0], netip.MustParseAddr("10.0.0.2")}
	starts(newer)
}
