package etcd

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/emulation"
)

// TestRestoredTurn checks that a turn without a lease, as in restored data, does not prevent a
// raise of the level. The machine of that turn may no longer exist, and without a lease the turn
// never expires.
func TestRestoredTurn(t *testing.T) {
	m := newMember(t)
	l := turns{m.local.members()}
	text, err := json.Marshal(disruption.Turn{Machine: "lost", Operation: disruption.Upgrade, By: "dora"})
	if err != nil {
		t.Fatal(err)
	}
	m.serve(ownFormat(), func(c *clientv3.Client) {
		for _, lease := range []bool{true, false} {
			var options []clientv3.OpOption
			if lease {
				granted, err := c.Grant(t.Context(), 600)
				if err != nil {
					t.Fatal(err)
				}
				options = append(options, clientv3.WithLease(granted.ID))
			}
			if _, err := c.Put(t.Context(), turnKey, string(text), options...); err != nil {
				t.Fatal(err)
			}
			cluster, _, err := l.observeLevel(t.Context())
			if err != nil || strings.Contains(cluster.Turn, "lost is being upgraded") != lease || !lease && cluster.Turn != "" {
				t.Errorf("lease %v: turn %q, %v", lease, cluster.Turn, err)
			}
		}
	})
}

// TestDescribeWithoutEtcd checks that the component "level" does not report that the level can be
// raised while etcd does not answer.
func TestDescribeWithoutEtcd(t *testing.T) {
	m := newMember(t)
	old := emulation.Minor{Major: level.Own().Major, Minor: level.Own().Minor - 1}
	if err := level.Write(m.local.dirs, old); err != nil {
		t.Fatal(err)
	}
	m.local.spec.Level = old
	var details []string
	r := &levelRunner{turns: turns{m.local.members()}, announce: func(text string) { details = append(details, text) }}
	r.report("level " + old.String() + ", finalize possible")
	for range 2 {
		if err := r.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := "level " + old.String() + ", finalize blocked because the cluster cannot be observed: "; len(details) != 2 || !strings.HasPrefix(details[1], want) {
		t.Errorf("%q", details)
	}
}

// TestHeldVersion checks the version at which etcd is held: that of the stored level, or, if no
// level is stored, that of the level at which the process has started. If the database is full, the
// level cannot be stored, but etcd would still raise its version.
func TestHeldVersion(t *testing.T) {
	old, own := emulation.Minor{Major: 1, Minor: 36}, emulation.Minor{Major: 1, Minor: 37}
	for _, test := range []struct {
		stored, started emulation.Minor
		want            string
	}{
		{old, old, "3.6"}, {own, old, "3.7"}, {emulation.Minor{}, old, "3.6"}, {emulation.Minor{}, own, "3.7"}, {emulation.Minor{}, emulation.Minor{}, ""},
	} {
		if got := (&holder{started: test.started}).wanted(test.stored); got != test.want {
			t.Errorf("stored %v, started at %v: %q, want %q", test.stored, test.started, got, test.want)
		}
	}
}

// electing is a client of an etcd whose first transactions, changes in number, fail because the
// leader changes.
type electing struct {
	clientv3.KV
	changes int
}

func (e *electing) Txn(ctx context.Context) clientv3.Txn { return electingTxn{e.KV.Txn(ctx), e} }

type electingTxn struct {
	clientv3.Txn
	etcd *electing
}

func (t electingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	return electingTxn{t.Txn.Then(ops...), t.etcd}
}

func (t electingTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.etcd.changes > 0 {
		t.etcd.changes--
		return nil, rpctypes.ErrLeaderChanged
	}
	return t.Txn.Commit()
}

// TestLevelDuringElection checks that ensureLevel repeats a transaction that failed because the
// leader changed, so the start of a process continues.
func TestLevelDuringElection(t *testing.T) {
	m := newMember(t)
	m.serve(ownFormat(), func(c *clientv3.Client) {
		etcd := &electing{c.KV, 2}
		if got, err := ensureLevel(t.Context(), &clientv3.Client{KV: etcd}, level.Own(), level.Own()); err != nil || got != level.Own() || etcd.changes != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestNewerLevel checks that a process below the level of the cluster returns an error with the
// remedy. It does not write the level file, because the process would then restart without end.
func TestNewerLevel(t *testing.T) {
	m := newMember(t)
	newer := emulation.Minor{Major: level.Own().Major, Minor: level.Own().Minor + 1}
	text, err := json.Marshal(levelRecord{Kubernetes: newer})
	if err != nil {
		t.Fatal(err)
	}
	m.serve(ownFormat(), func(c *clientv3.Client) {
		if _, err := c.Put(t.Context(), levelKey, string(text)); err != nil {
			t.Fatal(err)
		}
		if err := m.local.startLevel(t.Context(), c, level.Own()); err == nil || !strings.HasSuffix(err.Error(), ": upgrade this machine") {
			t.Error(err)
		}
		if now, err := level.Read(m.local.dirs); err == nil {
			t.Errorf("startLevel has written level %v to the level file", now)
		}
	})
}
