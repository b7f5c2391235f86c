package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// testMachine runs the etcd of a control-plane machine. It calls Run as process "api" does, on a
// separate address of the loopback network.
type testMachine struct {
	t      *testing.T
	spec   nodespec.Spec
	dirs   dirs.Dirs
	cancel func()
	ended  chan error
	ready  chan struct{}
	why    chan string
	config func(string) string // changes the configuration of etcd, unless it is nil
}

// startAll starts the machines and waits until each votes.
func startAll(all []*testMachine) {
	for _, p := range all {
		p.start()
	}
	for _, p := range all {
		p.waitVoting()
	}
}

// newMachines makes n machines with the same etcd CA. The configuration of each machine names the
// others. test is a number that differs between tests, so each test has its own addresses.
func newMachines(t *testing.T, test byte, n int) []*testMachine {
	t.Helper()
	ca, err := pki.NewCA("etcd", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var list []netip.Addr
	for i := range n {
		// the process ID separates the addresses of parallel test runs
		list = append(list, netip.AddrFrom4([4]byte{127, byte(64 + os.Getpid()%128), test, byte(i + 1)}))
	}
	var all []*testMachine
	for i, a := range list {
		m := newMember(t)
		spec := m.local.spec
		spec.Node.Name, spec.Node.IPs, spec.ControlPlanes, spec.Node.ControlPlane = string(rune('a'+i)), []netip.Addr{a}, list, true
		leaf, err := ca.Issue(pki.Spec{CN: spec.Node.Name, Usage: pki.Both, TTL: time.Hour, IPs: []netip.Addr{a}})
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{nodespec.EtcdCA: ca.CertPEM(), nodespec.EtcdPeerCert: leaf.CertPEM(), nodespec.EtcdPeerKey: leaf.KeyPEM()} {
			if err := os.WriteFile(filepath.Join(m.local.dirs.API, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p := &testMachine{t: t, spec: spec, dirs: m.local.dirs}
		t.Cleanup(func() {
			if p.cancel != nil {
				p.stop()
			}
		})
		all = append(all, p)
	}
	return all
}

func (p *testMachine) at() string { return p.spec.Node.IPs[0].String() }

func (p *testMachine) local() localMember { return localMember{p.dirs, p.spec} }

// start starts the machine as a boot does.
func (p *testMachine) start() {
	p.t.Helper()
	component := Component(p.spec, p.dirs)
	// When members are removed, etcd logs many lines. They are of interest only when a test fails,
	// so they go to a file.
	component.Files[0].Content = strings.Replace(component.Files[0].Content, "log-outputs: [stderr]", "log-outputs: ["+filepath.Join(p.dirs.API, "log")+"]", 1)
	if p.config != nil {
		component.Files[0].Content = p.config(component.Files[0].Content)
	}
	if err := component.WriteFiles(); err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.cancel, p.ended, p.ready, p.why = stop, make(chan error, 1), make(chan struct{}), make(chan string, 1000)
	ended, ready, why := p.ended, p.ready, p.why
	go func() {
		ended <- Run(ctx, component.Files[0].Path, p.spec, p.dirs, func(text string) { why <- text }, func() { close(ready) })
	}()
}

// stop stops the machine. The other machines see no difference to a power cut.
func (p *testMachine) stop() {
	p.t.Helper()
	p.cancel()
	p.cancel = nil
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatalf("%s does not stop", p.spec.Node.Name)
	}
}

// waitListening waits until etcd listens for clients, which comes after it listens for peers.
func (p *testMachine) waitListening() {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		conn, err := net.Dial("unix", strings.TrimPrefix(endpoint(p.dirs), "unix://"))
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: %v", p.spec.Node.Name, err)
		}
	}
}

// wipe deletes the etcd data of the machine, as if it had a new disk.
func (p *testMachine) wipe() {
	p.t.Helper()
	for _, dir := range []string{p.dirs.EtcdData, p.dirs.EtcdSnapshots, p.dirs.Level} {
		if err := os.RemoveAll(dir); err != nil {
			p.t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			p.t.Fatal(err)
		}
	}
}

// waitVoting waits until the machine is a voting member.
func (p *testMachine) waitVoting() {
	p.t.Helper()
	select {
	case <-p.ready:
	case err := <-p.ended:
		p.ended <- err
		p.t.Fatalf("%s has ended: %v\n%s", p.spec.Node.Name, err, p.log())
	case <-time.After(time.Minute):
		p.t.Fatalf("%s is no voting member after a minute; its last report: %s\n%s", p.spec.Node.Name, p.said(), p.log())
	}
}

// waitReport waits until the machine has reported a text that contains part.
func (p *testMachine) waitReport(part string) {
	p.t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case why := <-p.why:
			if strings.Contains(why, part) {
				return
			}
		case <-p.ready:
			p.t.Fatalf("%s is a member, and has not reported %q", p.spec.Node.Name, part)
		case <-late:
			p.t.Fatalf("%s has not reported %q within a minute", p.spec.Node.Name, part)
		}
	}
}

// said returns the last report of the machine.
func (p *testMachine) said() (last string) {
	for {
		select {
		case last = <-p.why:
		default:
			return last
		}
	}
}

func (p *testMachine) log() string {
	text, err := os.ReadFile(filepath.Join(p.dirs.API, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// withClient calls the function do with a client of the machine's etcd.
func (p *testMachine) withClient(do func(ctx context.Context, c *clientv3.Client)) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := connect(ctx, p.dirs)
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	do(ctx, c)
}

func (p *testMachine) put(key, value string) {
	p.t.Helper()
	p.withClient(func(ctx context.Context, c *clientv3.Client) {
		if _, err := c.Put(ctx, key, value); err != nil {
			p.t.Fatalf("%s: %v", p.spec.Node.Name, err)
		}
	})
}

func (p *testMachine) get(key, want string) {
	p.t.Helper()
	p.withClient(func(ctx context.Context, c *clientv3.Client) {
		r, err := c.Get(ctx, key)
		if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != want {
			p.t.Fatalf("%s: %s is not %s: %v %v", p.spec.Node.Name, key, want, r, err)
		}
	})
}

// members returns the names of the voting members, according to the etcd of the machine.
func (p *testMachine) members() (names []string) {
	p.t.Helper()
	s := p.local().members().status(context.Background())
	if s.Problem != "" {
		p.t.Fatalf("%s: %s", p.spec.Node.Name, s.Problem)
	}
	for _, m := range s.Members {
		if !m.Learner {
			names = append(names, m.Name)
		}
	}
	return names
}

// TestMembers checks that three machines bootstrap a cluster, and that a machine that lost its disk
// joins again without an operator.
func TestMembers(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 1, 3)
	a, b, c := all[0], all[1], all[2]
	a.start()
	a.waitReport("unreachable machines may have it: " + b.at() + " (connection refused), " + c.at() + " (connection refused)")
	c.start()
	a.waitReport("unreachable machines may have it: " + b.at() + " (connection refused);")
	b.start()
	for _, p := range all {
		p.waitVoting()
	}
	for _, p := range all {
		if got := p.members(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("%s knows the members %v", p.spec.Node.Name, got)
		}
	}
	a.put("/x", "1")
	c.get("/x", "1")

	// The machine that bootstrapped returns with an empty disk and its old configuration.
	a.stop()
	b.put("/x", "2")
	a.wipe()
	a.start()
	a.waitReport("replaces the member")
	a.waitVoting()
	a.get("/x", "2")
	if got := b.members(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatalf("b knows the members %v", got)
	}

	// All lose their power at once.
	for _, p := range all {
		p.stop()
	}
	startAll(all)
	c.get("/x", "2")
}

// TestRemove checks that a member can be removed only if enough of the other members answer for a
// quorum without it. A removed member that starts again ends with an error that names the next
// step.
func TestRemove(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 2, 3)
	a, b, c := all[0], all[1], all[2]
	startAll(all)
	c.stop()
	ctx := context.Background()
	if _, err := a.local().members().remove(ctx, "b"); err == nil || !strings.Contains(err.Error(), "2 of 3 members answer; without it there would be 2 members, of which 2 are required, and only 1 would") {
		t.Fatalf("remove of b, without which there is no quorum: %v", err)
	}
	if _, err := a.local().members().remove(ctx, "x"); err == nil || !strings.Contains(err.Error(), "no member") {
		t.Fatalf("remove of an unknown member: %v", err)
	}
	if _, err := a.local().members().rejoin(ctx); err == nil || !strings.Contains(err.Error(), "is a member with a quorum") {
		t.Fatalf("rejoin of a member with a quorum: %v", err)
	}
	if _, err := a.local().members().recover(ctx); err == nil || !strings.Contains(err.Error(), b.at()+" has a quorum") {
		t.Fatalf("recover in a cluster with a quorum: %v", err)
	}
	if err := a.local().members().checkSole(ctx, "cannot restore"); err == nil || !strings.Contains(err.Error(), b.at()+" serves the cluster's data") {
		t.Fatalf("restore on one of three machines: %v", err)
	}
	if _, err := a.local().members().leave(ctx); err == nil || !strings.Contains(err.Error(), "only 1 would") {
		t.Fatalf("leave of a, without which there is no quorum: %v", err)
	}
	if _, err := a.local().members().remove(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	c.start()
	select {
	case err := <-c.ended:
		c.ended <- err
		if err == nil || !strings.Contains(err.Error(), "orlopctl etcd rejoin") {
			t.Fatalf("c has ended without the next step: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("c does not end after its removal\n%s", c.log())
	}
	c.stop()
	if _, err := c.local().members().rejoin(ctx); err != nil {
		t.Fatal(err)
	}
	b.put("/x", "1")
	c.start()
	c.waitVoting()
	c.get("/x", "1")
	if !exists(c.local().at(undoFile)) {
		t.Error("the replaced data of c are missing")
	}

	// A machine that is reset leaves first.
	if left, err := b.local().members().leave(ctx); err != nil || left.Name != "b" {
		t.Fatalf("b leaves: %v %v", left, err)
	}
	if got := a.members(); !slices.Equal(got, []string{"a", "c"}) {
		t.Fatalf("a knows the members %v", got)
	}
}

// TestRecover deletes the data of two of three machines. Without an operator, no machine serves.
// After `recover`, the third machine continues alone with all acknowledged writes, and the others
// join it.
func TestRecover(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 3, 3)
	a, b, c := all[0], all[1], all[2]
	startAll(all)
	for i := range 100 {
		a.put("/x", fmt.Sprint(i))
	}
	a.stop()
	b.stop()
	a.wipe()
	b.wipe()
	a.start()
	b.start()
	a.waitReport(c.at() + " is an etcd member without quorum: it knows 3 members, but too few of them answer")
	if _, err := c.local().members().rejoin(context.Background()); err == nil || !strings.Contains(err.Error(), "there is no member to join") {
		t.Fatalf("rejoin of c, which has the only copy of the data: %v", err)
	}
	if s := c.local().members().status(context.Background()); s.Problem != "" || len(s.Members) != 3 || s.Leader != "" {
		t.Fatalf("the status of c without a quorum: %+v", s)
	}
	// Machine c restarts. Its etcd has then had no quorum since its start.
	c.stop()
	c.start()
	a.waitReport(c.at() + " is an etcd member without quorum: it knows 3 members, but too few of them have answered since its start")
	c.waitListening()
	began := time.Now()
	// The operator must see how recent the data of each machine are, although etcd answers nothing.
	if s := c.local().members().status(context.Background()); s.RaftTerm == 0 || s.RaftIndex == 0 {
		t.Errorf("the status of c has no Raft term or index: %+v", s)
	}
	if s := c.local().members().status(context.Background()); s.Problem != "etcd waits for a quorum: 1 of 3 members run, the quorum is 2" || len(s.Members) != 3 || s.Members[2].Problem != waitsForQuorum || s.Members[0].Problem == "" {
		t.Errorf("the status of c, whose etcd has had no quorum since its start: %+v", s)
	}
	if _, err := Snapshot(context.Background(), c.dirs, nil); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a snapshot without a quorum: %v", err)
	}
	if err := c.local().members().checkSole(context.Background(), "cannot restore"); err == nil || !strings.Contains(err.Error(), "the cluster has 3 members") {
		t.Errorf("restore on one of three machines: %v", err)
	}
	done, err := c.local().members().recover(context.Background())
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the requests to c without a quorum took %v", took)
	}
	if err != nil || !slices.Equal(done.RemovedMembers, []string{"a", "b"}) {
		t.Fatalf("recover removed %v: %v", done.RemovedMembers, err)
	}
	c.stop()
	c.start()
	c.waitVoting()
	c.get("/x", "99")
	a.waitVoting()
	b.waitVoting()
	a.get("/x", "99")
	if got := c.members(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("c knows the members %v", got)
	}
	// The request to recover is valid only once.
	if exists(c.local().at(nodespec.ForceNewClusterFile)) {
		t.Error("the request to recover still exists")
	}
}

// TestGrow adds a second machine to a cluster of one machine. At first, the configuration of the
// first machine names no control-plane machines, so its etcd does not listen for peers.
func TestGrow(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 4, 2)
	a, b := all[0], all[1]
	list := a.spec.ControlPlanes
	a.spec.ControlPlanes = nil
	a.start()
	a.waitVoting()
	a.put("/x", "1")
	a.stop()
	a.spec.ControlPlanes = list[:1]
	a.start()
	a.waitVoting()
	b.start()
	b.waitVoting()
	b.get("/x", "1")
}

// waitEnd waits until Run ends by itself with an error that contains part.
func (p *testMachine) waitEnd(part string) {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		if err == nil || !strings.Contains(err.Error(), part) {
			p.t.Fatalf("%s has ended: %v; want %q", p.spec.Node.Name, err, part)
		}
	case <-p.ready:
		p.t.Fatalf("%s serves, want the end of Run", p.spec.Node.Name)
	case <-time.After(time.Minute):
		p.t.Fatalf("%s does not end; its last report: %s\n%s", p.spec.Node.Name, p.said(), p.log())
	}
}

// TestUncommittedBootstrap cuts the power when the first member has created its log, and the log is
// still empty. After that, the machine bootstraps again.
func TestUncommittedBootstrap(t *testing.T) {
	t.Parallel()
	a := newMachines(t, 5, 1)[0]
	log := newLog(t, a.local(), 1, 2)
	if err := a.local().writeJSON(bootstrapFile, "a"); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.waitVoting()
	a.put("/x", "1")
	if exists(a.local().at(bootstrapFile)) || exists(log) {
		t.Error("the data of the interrupted bootstrap, or its marker, are left")
	}
	// Data that etcd has served are never dropped, even if the marker is left beside them.
	a.stop()
	if err := a.local().writeJSON(bootstrapFile, "a"); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.waitVoting()
	a.get("/x", "1")
}

// newLog makes a log of etcd without an entry. number is the ID of the member, and cluster the ID
// of the cluster. It also makes an empty file in the data directory, and returns the path of this
// file.
func newLog(t *testing.T, k localMember, number, cluster uint64) (beside string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(k.database()), 0o700); err != nil {
		t.Fatal(err)
	}
	begins, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: &number, ClusterID: &cluster})
	if err != nil {
		t.Fatal(err)
	}
	log, err := wal.Create(nopLogger, filepath.Join(k.dirs.EtcdData, logDir), begins)
	if err == nil {
		err = log.Close()
	}
	beside = filepath.Join(k.dirs.EtcdData, member, "beside")
	if err == nil {
		err = os.WriteFile(beside, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return beside
}

// TestRecoverVote checks that a machine recovers alone only if its own database records its vote.
// The name of the member does not matter, because a new member has not published it yet.
func TestRecoverVote(t *testing.T) {
	const own, other = 0xa1, 0xb2
	one := func(id types.ID, name string, learner bool) membership.Member {
		return membership.Member{ID: id, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{"https://127.0.0.9:2380"}, IsLearner: learner}, Attributes: membership.Attributes{Name: name}}
	}
	for name, c := range map[string]struct {
		stored []membership.Member
		votes  bool
	}{
		"a voter":                          {[]membership.Member{one(own, "n", false), one(other, "b", false)}, true},
		"a voter without a name":           {[]membership.Member{one(own, "", false), one(other, "b", false)}, true},
		"a learner":                        {[]membership.Member{one(own, "n", true), one(other, "b", false)}, false},
		"a learner without a name":         {[]membership.Member{one(own, "", true), one(other, "b", false)}, false},
		"no stored member":                 {nil, false},
		"only a member with the same name": {[]membership.Member{one(other, "n", false)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			newLog(t, m.local, own, 1)
			db, err := bolt.Open(m.local.database(), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error {
				b, err := tx.CreateBucket(schema.Members.Name())
				for _, m := range c.stored {
					text, _ := json.Marshal(m)
					err = errors.Join(err, b.Put([]byte(m.ID.String()), text))
				}
				return err
			})
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			done, err := m.local.members().recover(t.Context())
			if c.votes {
				if err != nil || !slices.Equal(done.RemovedMembers, []string{"b"}) || !slices.Equal(done.IDs, []string{"b2"}) {
					t.Errorf("%+v, %v", done, err)
				}
			} else if !errors.Is(err, errNoVote) {
				t.Errorf("%+v, %v", done, err)
			}
			// forcesNewCluster checks the database again, because etcd may have written
			// to it after the method recover.
			if err := m.local.writeOrder(nodespec.ForceNewClusterFile); err != nil {
				t.Fatal(err)
			}
			if alone, err := m.local.members().forcesNewCluster(t.Context()); alone != c.votes || errors.Is(err, errNoVote) == c.votes || exists(m.local.at(nodespec.ForceNewClusterFile)) != c.votes {
				t.Errorf("forcesNewCluster: %t, %v", alone, err)
			}
			// The machine has rebooted before it carried out the two requests.
			for _, name := range []string{nodespec.ForceNewClusterFile, nodespec.RejoinFile} {
				if err := os.WriteFile(m.local.at(name), []byte("of another start"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if alone, err := m.local.members().forcesNewCluster(t.Context()); alone || err == nil || !strings.Contains(err.Error(), "rebooted first") || exists(m.local.at(nodespec.ForceNewClusterFile)) {
				t.Errorf("a request from before the reboot makes the machine start alone: %t, %v", alone, err)
			}
			if err := m.local.members().dropForRejoin(); err != nil || !exists(m.local.database()) || exists(m.local.at(nodespec.RejoinFile)) {
				t.Errorf("a request from before the reboot drops the data, or stays: %v", err)
			}
		})
	}
}

// TestLeaveNoAnswer checks that a machine checks the quorum before it leaves, even if its own etcd
// does not answer.
func TestLeaveNoAnswer(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 6, 3)
	a, b, c := all[0], all[1], all[2]
	startAll(all)
	ctx := context.Background()
	number, cluster, err := c.local().memberID()
	c.withClient(func(ctx context.Context, client *clientv3.Client) {
		s, failed := client.Status(ctx, endpoint(c.dirs))
		if err != nil || failed != nil || s.Header.MemberId != number || s.Header.ClusterId != cluster {
			t.Fatalf("the log of c names member %x of cluster %x: %v; its etcd states %v, %v", number, cluster, err, s, failed)
		}
	})
	b.stop()
	deaf := c.local()
	deaf.dirs.API = newMember(t).local.dirs.API // without a socket
	for _, name := range []string{nodespec.EtcdCA, nodespec.EtcdPeerCert, nodespec.EtcdPeerKey} {
		if err := os.Link(filepath.Join(c.dirs.API, name), filepath.Join(deaf.dirs.API, name)); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := deaf.members().leave(ctx); err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "only 1 would") {
		t.Errorf("leave of c, without which there is no quorum: %v %v", left, err)
	}
	if _, err := deaf.members().rejoin(ctx); err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "only 1 would") {
		t.Errorf("rejoin of c, without which there is no quorum: %v", err)
	}
	// Now a program listens on the socket of etcd but does not answer, and no other machine
	// answers. Both states may be temporary, so the caller has to try again.
	socket, err := net.Listen("unix", deaf.dirs.EtcdSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	cut := deaf
	cut.spec.Node.IPs = b.spec.Node.IPs // b is stopped, so nothing answers there
	cut.spec.ControlPlanes = []netip.Addr{b.spec.Node.IPs[0], netip.MustParseAddr("127.0.0.1")}
	if left, err := cut.members().leave(ctx); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("leave of c, which reaches no other machine: %v %v", left, err)
	}
	b.start()
	b.waitVoting()
	c.stop()
	// While the others have no leader, no member serves, and leave changes nothing. On a busy
	// computer, the others can be without a leader for a short time here.
	left, err := c.local().members().leave(ctx)
	for late := time.Now().Add(time.Minute); err == nil && left == nil && time.Now().Before(late); {
		left, err = c.local().members().leave(ctx)
	}
	if err != nil || left.GetName() != "c" {
		t.Fatalf("leave of c, which is stopped: %v %v", left, err)
	}
	if got := a.members(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("a knows the members %v", got)
	}
	if left, err := c.local().members().leave(ctx); err != nil || left.GetId() != "" {
		t.Fatalf("second leave of c: %v %v", left, err)
	}
	b.stop()
	a.stop()
	if left, err := a.local().members().leave(ctx); err != nil || left.GetId() != "" {
		t.Fatalf("leave of a, while no member serves: %v %v", left, err)
	}
}

// TestOtherCluster stops two of three machines. The third recovers alone and restores a snapshot,
// so for etcd it is another cluster. When the two return, they would have a quorum of the old
// cluster, but they must not form it.
func TestOtherCluster(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 7, 3)
	a, b, c := all[0], all[1], all[2]
	startAll(all)
	ctx := context.Background()
	c.put("/x", "1")
	a.stop()
	b.stop()
	if _, err := c.local().members().recover(ctx); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.start()
	c.waitVoting()
	f, err := os.Create(filepath.Join(t.TempDir(), "snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Snapshot(ctx, c.dirs, f); err != nil {
		t.Fatal(err)
	}
	if _, err := c.local().restores().prepare(ctx, nodespec.EtcdRestore{}, f, ownFormat()); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.start()
	c.waitVoting()
	a.start()
	b.start()
	a.waitEnd("serves the data of another cluster")
	b.waitEnd("orlopctl etcd rejoin")
	a.stop()
	b.stop()

	// The savepoints and the format belong to the cluster that the machine leaves, so they are
	// removed, too.
	if err := a.local().writeJSON(formatFile, format{"99.0.0", "v99.0.0"}); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"0.9.0", a.spec.Version} {
		if err := os.WriteFile(a.local().at(nodespec.SavepointFile(version)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.local().members().rejoin(ctx); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.waitVoting()
	a.get("/x", "1")
	if f, err := a.local().savepoints().lastFormat(); err != nil || f != ownFormat() {
		t.Errorf("the format after rejoin: %v, %v", f, err)
	}
	if left, _ := filepath.Glob(a.local().at("*" + savepointSuffix)); len(left) > 0 {
		t.Errorf("rejoin left the savepoints %q", left)
	}
}

// TestServedStaysServed checks data that a rollback did not replace by the savepoint, because the
// cluster had another member. Later the machine is the only member, and must still serve these
// data.
func TestServedStaysServed(t *testing.T) {
	t.Parallel()
	all := newMachines(t, 8, 2)
	a, b := all[0], all[1]
	startAll(all)
	ctx := context.Background()
	if _, err := a.local().savepoints().take(ctx, reserve); err != nil {
		t.Fatal(err)
	}
	a.put("/x", "1")
	a.stop()
	if err := a.local().writeJSON(formatFile, format{"99.0.0", "v99.0.0"}); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.waitVoting()
	if f, err := a.local().savepoints().lastFormat(); err != nil || f != ownFormat() || exists(a.local().savepoints().file()) {
		t.Errorf("%v, %v; the savepoint exists: %t", f, err, exists(a.local().savepoints().file()))
	}
	a.put("/x", "2")
	if _, err := b.local().members().leave(ctx); err != nil {
		t.Fatal(err)
	}
	b.stop()
	a.stop()
	a.start()
	a.waitVoting()
	a.get("/x", "2")
}
