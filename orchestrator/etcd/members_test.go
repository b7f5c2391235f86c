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

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// plane is a control-plane machine as far as etcd goes: Run, as process "api" runs it, on an
// address of its own of the loopback network.
type plane struct {
	t     *testing.T
	spec  nodespec.Spec
	dirs  dirs.Dirs
	stop  func()
	ended chan error
	ready chan struct{}
	why   chan string
}

// turnOn starts them, and waits until each votes.
func turnOn(all []*plane) {
	for _, p := range all {
		p.on()
	}
	for _, p := range all {
		p.votes()
	}
}

// planes makes n of them, which hold the same authority and name each other. Each test has
// addresses of its own.
func planes(t *testing.T, test byte, n int) []*plane {
	t.Helper()
	ca, err := pki.NewCA("etcd", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var list []netip.Addr
	for i := range n {
		// of this process, too
		list = append(list, netip.AddrFrom4([4]byte{127, byte(64 + os.Getpid()%128), test, byte(i + 1)}))
	}
	var all []*plane
	for i, a := range list {
		m := newMember(t)
		spec := m.k.spec
		spec.NodeName, spec.NodeIPs, spec.ControlPlanes, spec.ControlPlane = string(rune('a'+i)), []netip.Addr{a}, list, true
		leaf, err := ca.Issue(pki.Spec{CN: spec.NodeName, Usage: pki.Both, TTL: time.Hour, IPs: []netip.Addr{a}})
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{nodespec.EtcdCA: ca.CertPEM(), nodespec.EtcdPeerCert: leaf.CertPEM(), nodespec.EtcdPeerKey: leaf.KeyPEM()} {
			if err := os.WriteFile(filepath.Join(m.k.dirs.API, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p := &plane{t: t, spec: spec, dirs: m.k.dirs}
		t.Cleanup(func() {
			if p.stop != nil {
				p.off()
			}
		})
		all = append(all, p)
	}
	return all
}

func (p *plane) at() string { return p.spec.NodeIPs[0].String() }

func (p *plane) keeper() keeper { return keeper{p.dirs, p.spec} }

// on starts it as a machine's start would.
func (p *plane) on() {
	p.t.Helper()
	component := Component(p.spec, p.dirs)
	// Etcd says much when members go; its log is of interest when a test fails only.
	component.Files[0].Content = strings.Replace(component.Files[0].Content, "log-outputs: [stderr]", "log-outputs: ["+filepath.Join(p.dirs.API, "log")+"]", 1)
	if err := component.WriteFiles(); err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.ended, p.ready, p.why = stop, make(chan error, 1), make(chan struct{}), make(chan string, 1000)
	ended, ready, why := p.ended, p.ready, p.why
	go func() {
		ended <- Run(ctx, component.Files[0].Path, p.spec, p.dirs, func(text string) { why <- text }, func() { close(ready) })
	}()
}

// off stops it, which for the others is the same as a cut of its power.
func (p *plane) off() {
	p.t.Helper()
	p.stop()
	p.stop = nil
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatalf("%s does not stop", p.spec.NodeName)
	}
}

// listens waits until its etcd listens for clients, which comes after it does for members.
func (p *plane) listens() {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		conn, err := net.Dial("unix", strings.TrimPrefix(endpoint(p.dirs), "unix://"))
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: %v", p.spec.NodeName, err)
		}
	}
}

// wiped is a machine that has lost its disk.
func (p *plane) wiped() {
	p.t.Helper()
	for _, dir := range []string{p.dirs.EtcdData, p.dirs.EtcdSnapshots} {
		if err := os.RemoveAll(dir); err != nil {
			p.t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			p.t.Fatal(err)
		}
	}
}

// votes waits until it is a voting member.
func (p *plane) votes() {
	p.t.Helper()
	select {
	case <-p.ready:
	case err := <-p.ended:
		p.ended <- err
		p.t.Fatalf("%s has ended: %v\n%s", p.spec.NodeName, err, p.log())
	case <-time.After(time.Minute):
		p.t.Fatalf("%s is no member after a minute; said last: %s\n%s", p.spec.NodeName, p.said(), p.log())
	}
}

// says waits until it has said something.
func (p *plane) says(part string) {
	p.t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case why := <-p.why:
			if strings.Contains(why, part) {
				return
			}
		case <-p.ready:
			p.t.Fatalf("%s is a member, and has not said %q", p.spec.NodeName, part)
		case <-late:
			p.t.Fatalf("%s has not said %q", p.spec.NodeName, part)
		}
	}
}

func (p *plane) said() (last string) {
	for {
		select {
		case last = <-p.why:
		default:
			return last
		}
	}
}

func (p *plane) log() string {
	text, err := os.ReadFile(filepath.Join(p.dirs.API, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// with lets do ask its etcd.
func (p *plane) with(do func(ctx context.Context, c *clientv3.Client)) {
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

func (p *plane) put(key, value string) {
	p.t.Helper()
	p.with(func(ctx context.Context, c *clientv3.Client) {
		if _, err := c.Put(ctx, key, value); err != nil {
			p.t.Fatalf("%s: %v", p.spec.NodeName, err)
		}
	})
}

func (p *plane) get(key, want string) {
	p.t.Helper()
	p.with(func(ctx context.Context, c *clientv3.Client) {
		r, err := c.Get(ctx, key)
		if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != want {
			p.t.Fatalf("%s: %s is not %s: %v %v", p.spec.NodeName, key, want, r, err)
		}
	})
}

// members are those that vote, as its etcd says.
func (p *plane) members() (names []string) {
	p.t.Helper()
	s := p.keeper().status(context.Background())
	if s.Problem != "" {
		p.t.Fatalf("%s: %s", p.spec.NodeName, s.Problem)
	}
	for _, m := range s.Members {
		if !m.Learner {
			names = append(names, m.Name)
		}
	}
	return names
}

// TestMembers has three machines found a cluster, lose one with its disk, and get it back without
// anybody doing anything.
func TestMembers(t *testing.T) {
	t.Parallel()
	all := planes(t, 1, 3)
	a, b, c := all[0], all[1], all[2]
	a.on()
	a.says("these may have them: " + b.at() + " (connection refused), " + c.at() + " (connection refused)")
	c.on()
	a.says("these may have them: " + b.at() + " (connection refused);")
	b.on()
	for _, p := range all {
		p.votes()
	}
	for _, p := range all {
		if got := p.members(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("%s knows the members %v", p.spec.NodeName, got)
		}
	}
	a.put("/x", "1")
	c.get("/x", "1")

	// The founder comes back with an empty disk, under its old configuration.
	a.off()
	b.put("/x", "2")
	a.wiped()
	a.on()
	a.says("takes the place of the member")
	a.votes()
	a.get("/x", "2")
	if got := b.members(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatalf("b knows the members %v", got)
	}

	// All lose their power at once.
	for _, p := range all {
		p.off()
	}
	turnOn(all)
	c.get("/x", "2")
}

// TestRemove: a member goes only if the others have a quorum without it, and is told what to do
// when it comes back.
func TestRemove(t *testing.T) {
	t.Parallel()
	all := planes(t, 2, 3)
	a, b, c := all[0], all[1], all[2]
	turnOn(all)
	c.off()
	ctx := context.Background()
	if _, err := a.keeper().removeMember(ctx, "b"); err == nil || !strings.Contains(err.Error(), "2 of 3 members answer; without it there would be 2, of which 2 have to answer, and only 1 would") {
		t.Fatalf("removing b: %v", err)
	}
	if _, err := a.keeper().removeMember(ctx, "x"); err == nil || !strings.Contains(err.Error(), "there is no member") {
		t.Fatalf("removing nobody: %v", err)
	}
	if _, err := a.keeper().rejoin(ctx); err == nil || !strings.Contains(err.Error(), "is a member, and a quorum answers it") {
		t.Fatalf("a member rejoins: %v", err)
	}
	if _, err := a.keeper().recover(ctx); err == nil || !strings.Contains(err.Error(), b.at()+" is a member, and a quorum answers it") {
		t.Fatalf("recovering what works: %v", err)
	}
	if err := a.keeper().alone(ctx, "cannot restore"); err == nil || !strings.Contains(err.Error(), b.at()+" serves the cluster's data") {
		t.Fatalf("restoring one of three: %v", err)
	}
	if _, err := a.keeper().leave(ctx); err == nil || !strings.Contains(err.Error(), "only 1 would") {
		t.Fatalf("a leaves: %v", err)
	}
	if _, err := a.keeper().removeMember(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	c.on()
	select {
	case err := <-c.ended:
		c.ended <- err
		if err == nil || !strings.Contains(err.Error(), "orlopctl etcd rejoin") {
			t.Fatalf("c has ended: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("c does not see that it was removed\n%s", c.log())
	}
	c.off()
	if _, err := c.keeper().rejoin(ctx); err != nil {
		t.Fatal(err)
	}
	b.put("/x", "1")
	c.on()
	c.votes()
	c.get("/x", "1")
	if !exists(c.keeper().at(undo)) {
		t.Error("what c had is gone")
	}

	// One that is reset leaves first.
	if left, err := b.keeper().leave(ctx); err != nil || left.Name != "b" {
		t.Fatalf("b leaves: %v %v", left, err)
	}
	if got := a.members(); !slices.Equal(got, []string{"a", "c"}) {
		t.Fatalf("a knows the members %v", got)
	}
}

// TestRecover: two of three disks are lost. Nothing happens by itself; at an operator's word the
// third goes on alone, with all that was acknowledged, and the others join it.
func TestRecover(t *testing.T) {
	t.Parallel()
	all := planes(t, 3, 3)
	a, b, c := all[0], all[1], all[2]
	turnOn(all)
	for i := range 100 {
		a.put("/x", fmt.Sprint(i))
	}
	a.off()
	b.off()
	a.wiped()
	b.wiped()
	a.on()
	b.on()
	a.says(c.at() + " is a member of etcd, which has no quorum at present: it knows 3 members, and not enough of them answer")
	if _, err := c.keeper().rejoin(context.Background()); err == nil || !strings.Contains(err.Error(), "there is nobody to join") {
		t.Fatalf("the last one that has the data drops them: %v", err)
	}
	if s := c.keeper().status(context.Background()); s.Problem != "" || len(s.Members) != 3 || s.Leader != "" {
		t.Fatalf("without a quorum: %+v", s)
	}
	// It starts anew, so that its etcd has not heard of a quorum at all.
	c.off()
	c.on()
	a.says(c.at() + " is a member of etcd, which has no quorum at present: it knows 3 members, and not enough of them answer since it started")
	c.listens()
	began := time.Now()
	// Whoever decides which one goes on alone has to see how far each is, although etcd answers
	// nothing.
	if s := c.keeper().status(context.Background()); s.Term == 0 || s.Index == 0 {
		t.Errorf("how far it is nobody can see: %+v", s)
	}
	if s := c.keeper().status(context.Background()); s.Problem != "etcd waits for a quorum: 1 of 3 members run, and 2 have to" || len(s.Members) != 3 || s.Members[2].Problem != waits || s.Members[0].Problem == "" {
		t.Errorf("before there was a quorum: %+v", s)
	}
	if _, err := Snapshot(context.Background(), c.dirs, nil); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a snapshot: %v", err)
	}
	if err := c.keeper().alone(context.Background(), "cannot restore"); err == nil || !strings.Contains(err.Error(), "the cluster has 3 members") {
		t.Errorf("restoring one of three: %v", err)
	}
	done, err := c.keeper().recover(context.Background())
	if took := time.Since(began); took > time.Minute {
		t.Errorf("that took %v", took)
	}
	if err != nil || !slices.Equal(done.Dropped, []string{"a", "b"}) {
		t.Fatalf("recovers without %v: %v", done.Dropped, err)
	}
	c.off()
	c.on()
	c.votes()
	c.get("/x", "99")
	a.votes()
	b.votes()
	a.get("/x", "99")
	if got := c.members(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("c knows the members %v", got)
	}
	// It was for once.
	if exists(c.keeper().at(nodespec.ForceNewClusterFile)) {
		t.Error("c would go on alone when it starts next")
	}
}

// TestGrow: a cluster of one machine, which listens for nobody, gets a second one.
func TestGrow(t *testing.T) {
	t.Parallel()
	all := planes(t, 4, 2)
	a, b := all[0], all[1]
	list := a.spec.ControlPlanes
	a.spec.ControlPlanes = nil
	a.on()
	a.votes()
	a.put("/x", "1")
	a.off()
	a.spec.ControlPlanes = list[:1]
	a.on()
	a.votes()
	b.on()
	b.votes()
	b.get("/x", "1")
}

// ends waits until it ends by itself, and says why.
func (p *plane) ends(part string) {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		if err == nil || !strings.Contains(err.Error(), part) {
			p.t.Fatalf("%s has ended: %v; want %q", p.spec.NodeName, err, part)
		}
	case <-p.ready:
		p.t.Fatalf("%s serves", p.spec.NodeName)
	case <-time.After(time.Minute):
		p.t.Fatalf("%s does not end; said last: %s\n%s", p.spec.NodeName, p.said(), p.log())
	}
}

// TestUnbegun: the power goes when the founder's log is made, and says nothing yet. The machine
// begins anew.
func TestUnbegun(t *testing.T) {
	t.Parallel()
	a := planes(t, 5, 1)[0]
	log := newLog(t, a.keeper(), 1, 2)
	if err := a.keeper().note(foundingFile, "a"); err != nil {
		t.Fatal(err)
	}
	a.on()
	a.votes()
	a.put("/x", "1")
	if exists(a.keeper().at(foundingFile)) || exists(log) {
		t.Error("what was not begun is left")
	}
	// What has served is never dropped, whatever is left beside it.
	a.off()
	if err := a.keeper().note(foundingFile, "a"); err != nil {
		t.Fatal(err)
	}
	a.on()
	a.votes()
	a.get("/x", "1")
}

// newLog makes etcd's log without an entry, and returns a file that lies beside it.
func newLog(t *testing.T, k keeper, number, cluster uint64) (beside string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(k.database()), 0o700); err != nil {
		t.Fatal(err)
	}
	begins, err := (&etcdserverpb.Metadata{NodeID: number, ClusterID: cluster}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	log, err := wal.Create(silence, filepath.Join(k.dirs.EtcdData, logFolder), begins)
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

// TestRecoverVote: a machine goes on alone only if its own database says that it votes, also before
// it has told its name.
func TestRecoverVote(t *testing.T) {
	const own, other = 0xa1, 0xb2
	one := func(id types.ID, name string, learner bool) membership.Member {
		return membership.Member{ID: id, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{"https://127.0.0.9:2380"}, IsLearner: learner}, Attributes: membership.Attributes{Name: name}}
	}
	for name, c := range map[string]struct {
		stored []membership.Member
		votes  bool
	}{
		"a voter":             {[]membership.Member{one(own, "n", false), one(other, "b", false)}, true},
		"a voter, no name":    {[]membership.Member{one(own, "", false), one(other, "b", false)}, true},
		"a learner":           {[]membership.Member{one(own, "n", true), one(other, "b", false)}, false},
		"a learner, no name":  {[]membership.Member{one(own, "", true), one(other, "b", false)}, false},
		"nothing yet":         {nil, false},
		"another of its name": {[]membership.Member{one(other, "n", false)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t)
			newLog(t, m.k, own, 1)
			db, err := bolt.Open(m.k.database(), 0o600, nil)
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
			done, err := m.k.recover(t.Context())
			if c.votes {
				if err != nil || !slices.Equal(done.Dropped, []string{"b"}) || !slices.Equal(done.IDs, []string{"b2"}) {
					t.Errorf("%+v, %v", done, err)
				}
			} else if !errors.Is(err, errNoVote) {
				t.Errorf("%+v, %v", done, err)
			}
			// Etcd that runs may have told something else.
			if err := m.k.order(nodespec.ForceNewClusterFile); err != nil {
				t.Fatal(err)
			}
			if alone, err := m.k.goesAlone(t.Context()); alone != c.votes || errors.Is(err, errNoVote) == c.votes || exists(m.k.at(nodespec.ForceNewClusterFile)) != c.votes {
				t.Errorf("starts alone: %t, %v", alone, err)
			}
			// The power went before it was done.
			for _, name := range []string{nodespec.ForceNewClusterFile, nodespec.RejoinFile} {
				if err := os.WriteFile(m.k.at(name), []byte("of another start"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if alone, err := m.k.goesAlone(t.Context()); alone || err == nil || !strings.Contains(err.Error(), "started anew before it did") || exists(m.k.at(nodespec.ForceNewClusterFile)) {
				t.Errorf("starts alone by what was asked before the machine's start: %t, %v", alone, err)
			}
			if err := m.k.drop(); err != nil || !exists(m.k.database()) || exists(m.k.at(nodespec.RejoinFile)) {
				t.Errorf("data are dropped by what was asked before the machine's start: %v", err)
			}
		})
	}
}

// TestLeaveDeaf: that a machine's own etcd does not answer does not say that nobody counts on it.
func TestLeaveDeaf(t *testing.T) {
	t.Parallel()
	all := planes(t, 6, 3)
	a, b, c := all[0], all[1], all[2]
	turnOn(all)
	ctx := context.Background()
	number, cluster, err := c.keeper().whose()
	c.with(func(ctx context.Context, client *clientv3.Client) {
		s, failed := client.Status(ctx, endpoint(c.dirs))
		if err != nil || failed != nil || s.Header.MemberId != number || s.Header.ClusterId != cluster {
			t.Fatalf("its log is of member %x of %x: %v; it is %v, %v", number, cluster, err, s, failed)
		}
	})
	b.off()
	deaf := c.keeper()
	deaf.dirs.API = newMember(t).k.dirs.API // with no socket
	for _, name := range []string{nodespec.EtcdCA, nodespec.EtcdPeerCert, nodespec.EtcdPeerKey} {
		if err := os.Link(filepath.Join(c.dirs.API, name), filepath.Join(deaf.dirs.API, name)); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := deaf.leave(ctx); err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "only 1 would") {
		t.Errorf("c leaves, whose vote counts: %v %v", left, err)
	}
	if _, err := deaf.rejoin(ctx); err == nil || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), "only 1 would") {
		t.Errorf("c drops its data, whose vote counts: %v", err)
	}
	// Its etcd runs and says nothing, and nobody else can be asked: that may be over soon.
	socket, err := net.Listen("unix", deaf.dirs.EtcdSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	cut := deaf
	cut.spec.NodeIPs = b.spec.NodeIPs // at which nothing answers, either
	cut.spec.ControlPlanes = []netip.Addr{b.spec.NodeIPs[0], netip.MustParseAddr("127.0.0.1")}
	if left, err := cut.leave(ctx); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("c leaves, and nothing is known of the others: %v %v", left, err)
	}
	b.on()
	b.votes()
	c.off()
	if left, err := c.keeper().leave(ctx); err != nil || left.Name != "c" {
		t.Fatalf("c, which is off, leaves: %v %v", left, err)
	}
	if got := a.members(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("a knows the members %v", got)
	}
	if left, err := c.keeper().leave(ctx); err != nil || left.ID != "" {
		t.Fatalf("c leaves again: %v %v", left, err)
	}
	b.off()
	a.off()
	if left, err := a.keeper().leave(ctx); err != nil || left.ID != "" {
		t.Fatalf("a leaves where nobody serves: %v %v", left, err)
	}
}

// TestLeftBehind: two of three were left out, and the third one's data have given way to a
// snapshot, which is another cluster to etcd. The two come back, and would be a majority.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	all := planes(t, 7, 3)
	a, b, c := all[0], all[1], all[2]
	turnOn(all)
	ctx := context.Background()
	c.put("/x", "1")
	a.off()
	b.off()
	if _, err := c.keeper().recover(ctx); err != nil {
		t.Fatal(err)
	}
	c.off()
	c.on()
	c.votes()
	f, err := os.Create(filepath.Join(t.TempDir(), "snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Snapshot(ctx, c.dirs, f); err != nil {
		t.Fatal(err)
	}
	if _, err := c.keeper().prepare(ctx, nodespec.EtcdRestore{}, f, ownFormat()); err != nil {
		t.Fatal(err)
	}
	c.off()
	c.on()
	c.votes()
	a.on()
	b.on()
	a.ends("serves the data of another cluster")
	b.ends("orlopctl etcd rejoin")
	a.off()
	b.off()

	// What an upgrade has saved is of the cluster that it leaves.
	if err := a.keeper().note(formatFile, format{"99.0.0", "v99.0.0"}); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"0.9.0", a.spec.Version} {
		if err := os.WriteFile(a.keeper().at(nodespec.SavepointFile(version)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.keeper().rejoin(ctx); err != nil {
		t.Fatal(err)
	}
	a.on()
	a.votes()
	a.get("/x", "1")
	if f, err := a.keeper().lastFormat(); err != nil || f != ownFormat() {
		t.Errorf("%v, %v", f, err)
	}
	if left, _ := filepath.Glob(a.keeper().at("*" + savedSuffix)); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

// TestBackShared: data that were left alone when the version went back, because there were other
// members, are there for good, also when there is nobody else any more.
func TestBackShared(t *testing.T) {
	t.Parallel()
	all := planes(t, 8, 2)
	a, b := all[0], all[1]
	turnOn(all)
	ctx := context.Background()
	if _, err := TakeSavepoint(ctx, a.spec, a.dirs); err != nil {
		t.Fatal(err)
	}
	a.put("/x", "1")
	a.off()
	if err := a.keeper().note(formatFile, format{"99.0.0", "v99.0.0"}); err != nil {
		t.Fatal(err)
	}
	a.on()
	a.votes()
	if f, err := a.keeper().lastFormat(); err != nil || f != ownFormat() || exists(a.keeper().saved()) {
		t.Errorf("%v, %v; saved data: %t", f, err, exists(a.keeper().saved()))
	}
	a.put("/x", "2")
	if _, err := b.keeper().leave(ctx); err != nil {
		t.Fatal(err)
	}
	b.off()
	a.off()
	a.on()
	a.votes()
	a.get("/x", "2")
}
