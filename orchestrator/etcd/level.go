package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// levelKey holds the level of the cluster (docs/decisions/0096-two-phases.md). No API server reads
// it.
const levelKey = "/orlop/level"

// levelRecord is the value of levelKey.
type levelRecord struct {
	Kubernetes emulation.Minor `json:"kubernetes"`
	By         string          `json:"by,omitempty"` // the caller that raised the level
	At         time.Time       `json:"at,omitzero"`
}

// StartLevel returns the level with which process "api" starts, before etcd answers. It is the
// level of the last start; if there is none, the version that has written the data of this machine,
// or the own version. StartLevel writes the level to the file for process "controllers".
//
// A machine that is the only member can roll back to a version below the level. It then starts at
// its own version, and restores its savepoint, which has an older level.
func StartLevel(spec nodespec.Spec, dirs dirs.Dirs) (emulation.Minor, error) {
	last, err := level.Read(dirs)
	switch {
	case err == nil && level.Own().OlderThan(last) && !(localMember{dirs, spec}).savepoints().shared():
		return level.Own(), level.Write(dirs, level.Own())
	case err == nil:
		return last, nil
	case !errors.Is(err, fs.ErrNotExist):
		klog.Warningf("%v; etcd has the level", err)
	}
	local, err := localMember{dirs, spec}.localVersion()
	if err != nil {
		return emulation.Minor{}, err
	}
	first := emulation.Initial(nil, local, level.Own())
	return first, level.Write(dirs, first)
}

// localVersion returns the version of Kubernetes that has written the data of this machine; unknown
// if the machine has no data.
func (l localMember) localVersion() (emulation.Minor, error) {
	if !l.hasData() {
		return emulation.Minor{}, nil
	}
	last, err := l.savepoints().lastFormat()
	return emulation.Of(last.Kubernetes), err
}

// ensureLevel returns the level of the cluster. If etcd has no level, ensureLevel stores the first
// level: the oldest version that a member of the cluster has recorded, or own in a new cluster.
func ensureLevel(ctx context.Context, c *clientv3.Client, local, own emulation.Minor) (emulation.Minor, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		have, err := readLevel(ctx, c)
		if errors.Is(err, rpctypes.ErrLeaderChanged) && backoff.Sleep(ctx, retryInterval) == nil {
			continue // the leader changes, for example after the start of another member
		}
		if err != nil || have.level.Known() {
			return have.level, err
		}
		var recorded []emulation.Minor
		for _, f := range have.format.By {
			recorded = append(recorded, emulation.Of(f.Kubernetes))
		}
		first := levelRecord{Kubernetes: emulation.Initial(append(recorded, emulation.Of(have.format.Kubernetes)), local, own)}
		done, err := have.store(ctx, c, first)
		if err != nil { // a full database accepts no writes; the API server must serve nevertheless
			klog.Warningf("etcd: cannot store the level of the cluster: %v", err)
		}
		if err != nil || done {
			return first.Kubernetes, nil
		}
		// another member has stored the level first, or a member has started meanwhile
	}
}

// storedLevel is the level in etcd, with the records on which a change of it depends.
type storedLevel struct {
	level    emulation.Minor // unknown if none is stored
	format   formatRecord
	turn     storedTurn
	revision int64 // of the last change of the level; 0 if none is stored
	formatAt int64 // of the last change of the format
}

// readLevel reads the level with the formats of the members and the turn, all of the same revision.
func readLevel(ctx context.Context, c *clientv3.Client) (storedLevel, error) {
	answer, err := c.Txn(ctx).Then(clientv3.OpGet(levelKey), clientv3.OpGet(formatKey), clientv3.OpGet(turnKey)).Commit()
	if err != nil {
		return storedLevel{}, err
	}
	var out storedLevel
	kvs := func(i int) (value []byte, revision int64) {
		if got := answer.Responses[i].GetResponseRange().GetKvs(); len(got) == 1 {
			return got[0].Value, got[0].ModRevision
		}
		return nil, 0
	}
	text, at := kvs(0)
	if out.revision = at; text != nil {
		var record levelRecord
		if err := json.Unmarshal(text, &record); err != nil {
			return storedLevel{}, fmt.Errorf("etcd: key %s: cannot decode: %w", levelKey, err)
		}
		out.level = record.Kubernetes
	}
	if text, out.formatAt = kvs(1); text != nil {
		_ = json.Unmarshal(text, &out.format) // an unreadable record counts as empty
	}
	out.turn = decodeTurn(answer.Responses[2].GetResponseRange().GetKvs())
	return out, nil
}

// store stores the level next, and reports whether it was stored. It stores nothing if, since s was
// read, a member has changed the level or recorded another version, or a machine has taken the
// turn.
func (s storedLevel) store(ctx context.Context, c *clientv3.Client, next levelRecord) (bool, error) {
	text, err := json.Marshal(next)
	if err != nil {
		return false, err
	}
	done, err := c.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(levelKey), "=", s.revision),
		clientv3.Compare(clientv3.ModRevision(formatKey), "=", s.formatAt),
		s.turn.unchanged(),
	).Then(clientv3.OpPut(levelKey, string(text))).Commit()
	if err != nil {
		return false, err
	}
	return done.Succeeded, nil
}

// startLevel stores the level of the cluster in the file of package level, and returns an error if
// the process has started with another level.
func (l localMember) startLevel(ctx context.Context, c *clientv3.Client, local emulation.Minor) error {
	now, err := ensureLevel(ctx, c, local, level.Own())
	if err != nil {
		return fmt.Errorf("etcd: cannot read the level of the cluster: %w", err)
	}
	if _, err := emulation.Emulated(now, level.Own()); err != nil {
		return fmt.Errorf("level: cannot serve: %w", err)
	}
	if err := level.Write(l.dirs, now); err != nil {
		return err
	}
	if now != l.spec.Level {
		return level.Changed(l.spec.Level, now)
	}
	return nil
}

// observeLevel returns the description of the cluster for package emulation, and the level in etcd.
func (l turns) observeLevel(ctx context.Context) (emulation.Cluster, storedLevel, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return emulation.Cluster{}, storedLevel{}, err
	}
	defer c.Close()
	have, err := readLevel(ctx, c)
	if err != nil {
		return emulation.Cluster{}, storedLevel{}, err
	}
	list, err := c.MemberList(ctx)
	if err != nil {
		return emulation.Cluster{}, storedLevel{}, err
	}
	seen := l.observe(ctx)
	if seen.Problem != "" {
		return emulation.Cluster{}, storedLevel{}, errors.New(seen.Problem)
	}
	out := emulation.Cluster{Level: have.level}
	turn, err := have.turn.present(ctx, c)
	if err != nil {
		return emulation.Cluster{}, storedLevel{}, err
	}
	if turn.Machine != "" {
		out.Turn = turn.String()
	}
	for _, m := range seen.Members {
		member := emulation.Member{Name: m.Name, Problem: m.Problem}
		if i := slices.IndexFunc(list.Members, func(o *etcdserverpb.Member) bool { return o.Name == m.Name }); i >= 0 {
			member.Kubernetes = emulation.Of(have.format.By[id(list.Members[i].ID)].Kubernetes)
		}
		if member.Problem == "" && m.APIServer != "" {
			member.Problem = "its API server is not ready: " + m.APIServer
		}
		out.Members = append(out.Members, member)
	}
	return out, have, nil
}
