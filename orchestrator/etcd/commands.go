package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Command is what machined asks about etcd, in a process of its own as the user of process "api".
// It reads a question, and its answer is written as JSON.
type Command func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (answer any, err error)

// Commands are all of them, by the name that the orchestrator is started with.
var Commands = map[string]Command{
	"save-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return TakeSavepoint(ctx, spec, dirs)
	},
	"snapshot-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		order, err := decode[nodespec.SendSnapshotRequest](question)
		if err != nil {
			return nil, err
		}
		if order.Kept != "" {
			return keeper{dirs, spec}.giveKept(order.Kept, given())
		}
		return Snapshot(ctx, dirs, given())
	},
	"restore-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		order, err := decode[nodespec.EtcdRestore](question)
		if err != nil {
			return nil, err
		}
		return keeper{dirs, spec}.prepare(ctx, order, given(), ownFormat())
	},
	"keep-snapshot": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		order, err := decode[nodespec.TakeSnapshotRequest](question)
		if err != nil {
			return nil, err
		}
		return keeper{dirs, spec}.keep(ctx, order, untouched)
	},
	"kept-snapshots": func(_ context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		place, err := decode[string](question)
		if err != nil {
			return nil, err
		}
		return keeper{dirs, spec}.kept(place)
	},
	"send-snapshot": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		target, err := decode[nodespec.EtcdTarget](question)
		if err != nil {
			return nil, err
		}
		return keeper{dirs, spec}.send(ctx, target)
	},
	"data-status": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return keeper{dirs, spec}.status(ctx), nil
	},
	"defragment-data": func(ctx context.Context, _ nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return defragment(ctx, dirs)
	},
	"remove-member": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		name, err := decode[string](question)
		if err != nil {
			return nil, err
		}
		return keeper{dirs, spec}.removeMember(ctx, name)
	},
	"leave-members": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return keeper{dirs, spec}.leave(ctx)
	},
	"recover-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return keeper{dirs, spec}.recover(ctx)
	},
	"rejoin-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return keeper{dirs, spec}.rejoin(ctx)
	},
	"reseal-secrets": func(ctx context.Context, _ nodespec.Spec, dirs dirs.Dirs, question io.Reader) (any, error) {
		order, err := decode[nodespec.ReencryptRequest](question)
		if err != nil {
			return nil, err
		}
		return reseal(ctx, dirs, order.Count)
	},
	"disarm-data": func(ctx context.Context, _ nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return disarm(ctx, dirs)
	},
}

// decode reads a question.
func decode[Q any](from io.Reader) (question Q, err error) {
	if err := json.NewDecoder(from).Decode(&question); err != nil {
		return question, fmt.Errorf("the question cannot be decoded: %w", err)
	}
	return question, nil
}

// given is the file that machined has left open for the command.
func given() *os.File { return os.NewFile(3, "snapshot") }

const (
	// answerTime is how long etcd has for what it answers from memory.
	answerTime = 10 * time.Second
	// reserve is what is left free on DATA, in bytes, for what runs there; a new log of etcd's
	// takes 128 MiB of it.
	reserve = 512 << 20
)

func endpoint(dirs dirs.Dirs) string { return "unix://" + dirs.EtcdSocket() }

// connect connects with the etcd that runs on this machine. The client would wait for a server for
// ever; one that does not listen is an answer.
func connect(ctx context.Context, dirs dirs.Dirs) (*clientv3.Client, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", dirs.EtcdSocket())
	if err != nil {
		return nil, fmt.Errorf("etcd does not run: %w", err)
	}
	c.Close()
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint(dirs)}, Logger: silence})
}

// silence is the log of clients: what goes wrong is in their answers.
var silence = zap.NewNop()

// answer is what etcd says of itself, within askTime: until there is a quorum for the first time it
// says nothing, and clients would wait for it.
func answer(ctx context.Context, c *clientv3.Client, dirs dirs.Dirs) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return c.Status(ctx, endpoint(dirs))
}

// status is how etcd is. That it does not answer is no error.
func (k keeper) status(ctx context.Context) nodespec.EtcdStatus {
	s := nodespec.EtcdStatus{Member: k.spec.NodeName}
	if now, err := readRestored(k.at(nodespec.LastRestoreFile)); err == nil {
		s.Restored = &now
	}
	if info, err := os.Stat(k.at(undo)); err == nil {
		s.UndoSize = info.Size()
	}
	if err := k.ask(ctx, &s); err != nil {
		s.Problem = err.Error()
		if info, err := os.Stat(k.database()); err == nil {
			s.Size = info.Size()
		}
		s.Revision, _ = lastRevision(k.database()) // 0: not known
		// as well: whoever decides which machine goes on alone compares them
		s.Term, s.Index, _ = k.agreed()
	}
	return s
}

// errMute says that etcd runs, and that nothing is known of it otherwise.
var errMute = errors.New("etcd does not answer")

// ask asks etcd for its status.
func (k keeper) ask(ctx context.Context, s *nodespec.EtcdStatus) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := connect(ctx, k.dirs)
	if err != nil {
		return err
	}
	defer c.Close()
	now, err := answer(ctx, c, k.dirs)
	if err != nil {
		var others error
		if s.Members, others = k.waiting(ctx); others == nil {
			voters, _, waiting := votes(s.Members)
			return fmt.Errorf("etcd waits for a quorum: %d of %d members run, and %d have to", waiting, voters, etcdjoin.QuorumSize(voters))
		}
		return fmt.Errorf("%w: %w", errMute, err)
	}
	s.ID, s.Version, s.Revision = id(now.Header.MemberId), now.Version, now.Header.Revision
	s.Size, s.Used, s.Quota, s.Index, s.Term = now.DbSize, now.DbSizeInUse, now.DbSizeQuota, now.RaftIndex, now.RaftTerm
	if now.Leader != 0 {
		s.Leader = id(now.Leader)
	}
	if s.Members, err = k.members(ctx, c); err != nil {
		return err
	}
	if s.Leader == "" {
		return nil // alarms are told by a quorum
	}
	alarms, err := c.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("etcd does not tell its alarms: %w", err)
	}
	s.Alarms = names(alarms.Alarms)
	return nil
}

func id(number uint64) string { return strconv.FormatUint(number, 16) }

func names(alarms []*etcdserverpb.AlarmMember) []string {
	all := []string{}
	for _, a := range alarms {
		all = append(all, a.Alarm.String())
	}
	return all
}

// defragment gives what the database does not use back to the disk. Without space old revisions are
// dropped first: the API server, which does that every few minutes, writes down when, and cannot
// then.
func defragment(ctx context.Context, dirs dirs.Dirs) (done nodespec.EtcdDefragmented, err error) {
	c, err := connect(ctx, dirs)
	if err != nil {
		return done, err
	}
	defer c.Close()
	before, err := answer(ctx, c, dirs)
	if err != nil {
		return done, fmt.Errorf("etcd: does not answer: %w", err)
	}
	if err := room(dirs.EtcdData, before.DbSizeInUse, reserve, "etcd: cannot defragment, nothing was changed"); err != nil {
		return done, err
	}
	alarms, err := c.AlarmList(ctx)
	if err != nil {
		return done, fmt.Errorf("etcd: does not tell its alarms: %w", err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE && done.Compacted == 0 {
			_, err := c.Compact(ctx, before.Header.Revision, clientv3.WithCompactPhysical())
			// they were dropped before, and nothing could be written since
			if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				return done, fmt.Errorf("etcd: cannot drop old revisions: %w", err)
			}
			done.Compacted = before.Header.Revision
		}
	}
	if _, err := c.Defragment(ctx, endpoint(dirs)); err != nil {
		return done, fmt.Errorf("etcd: cannot defragment: %w", err)
	}
	after, err := answer(ctx, c, dirs)
	if err != nil {
		return done, fmt.Errorf("etcd: does not answer after defragmenting: %w", err)
	}
	done.Before, done.After = before.DbSize, after.DbSize
	return done, nil
}

// disarm takes back the alarms that are raised, and names them.
func disarm(ctx context.Context, dirs dirs.Dirs) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := connect(ctx, dirs)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raised, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // all
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot take back the alarms: %w", err)
	}
	all := []string{}
	for _, a := range raised.Alarms {
		all = append(all, a.Alarm.String())
	}
	return all, nil
}

// database is the file with what etcd holds.
func (k keeper) database() string { return filepath.Join(k.dirs.EtcdData, databaseFile) }

// databaseFile is its place in a data folder.
const databaseFile = member + "/snap/db"
