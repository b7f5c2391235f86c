package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Command is an operation on etcd that machined requests. It runs in a separate process as the user
// of process "api". It reads its request and writes its answer as JSON; a message of the API
// has protobuf's JSON form.
type Command func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (answer any, err error)

// Commands are all commands, by the name with which machined starts the orchestrator. A new command
// is registered by its entry here. The comment of an entry says what its command does.
var Commands = map[string]Command{
	// It takes a savepoint before an upgrade and writes a nodespec.Savepoint.
	"take-savepoint": bare(func(ctx context.Context, l localMember) (any, error) {
		return l.savepoints().take(ctx, reserve)
	}),
	// It reads an api.EtcdSnapshotRequest, writes the present data or a stored snapshot to the
	// inherited file, and writes an api.EtcdSnapshotInfo without the size.
	"stream-snapshot": with(func(ctx context.Context, l localMember, order *api.EtcdSnapshotRequest) (any, error) {
		if order.Stored != "" {
			return l.snapshots().copyTo(order.Stored, inheritedFile())
		}
		return Snapshot(ctx, l.dirs, inheritedFile())
	}),
	// It reads a nodespec.EtcdRestore and the inherited file, and writes the nodespec.EtcdRestored
	// that the next start of "api" performs.
	"restore-data": with(func(ctx context.Context, l localMember, order nodespec.EtcdRestore) (any, error) {
		return l.restores().prepare(ctx, order, inheritedFile(), ownFormat())
	}),
	// It reads a nodespec.TakeSnapshotRequest, stores a snapshot on DATA, and writes its
	// api.EtcdStoredSnapshot.
	"take-snapshot": with(func(ctx context.Context, l localMember, order nodespec.TakeSnapshotRequest) (any, error) {
		made, err := l.snapshots().take(ctx, order, minFreePercent)
		return made.message(), err
	}),
	// It reads the field Place of a nodespec.EtcdTarget, and writes an
	// api.EtcdListSnapshotsResponse, in which it sets only the snapshots.
	"list-snapshots": with(func(_ context.Context, l localMember, target string) (any, error) {
		all, err := l.snapshots().list(target)
		out := &api.EtcdListSnapshotsResponse{}
		for _, s := range all {
			out.Snapshots = append(out.Snapshots, s.message())
		}
		return out, err
	}),
	// It reads a nodespec.EtcdTarget, uploads the newest snapshot that the target does not have,
	// and writes a nodespec.UploadResult.
	"upload-snapshot": with(func(ctx context.Context, l localMember, target nodespec.EtcdTarget) (any, error) {
		return l.uploader().next(ctx, target)
	}),
	// It writes an api.EtcdStatusResponse.
	"data-status": bare(func(ctx context.Context, l localMember) (any, error) { return l.members().status(ctx), nil }),
	// It writes an api.EtcdDefragmentResponse.
	"defragment-data": bare(func(ctx context.Context, l localMember) (any, error) { return defragment(ctx, l.dirs) }),
	// It reads an api.EtcdRemoveMemberRequest, and writes the removed api.EtcdMember.
	"remove-member": with(func(ctx context.Context, l localMember, order *api.EtcdRemoveMemberRequest) (any, error) {
		return l.members().remove(ctx, order.Member)
	}),
	// It removes the member of this machine if there are other members, deletes the machine's turn
	// to be away, and writes the removed api.EtcdMember.
	"leave-cluster": bare(func(ctx context.Context, l localMember) (any, error) {
		left, err := l.members().leave(ctx)
		if err == nil && left != nil {
			turns{l.members()}.giveBackElsewhere(ctx, l.spec.Node.Name)
		}
		return left, err
	}),
	// It records that etcd becomes the only member at its next start, and writes a
	// nodespec.EtcdRecovered.
	"recover-data": bare(func(ctx context.Context, l localMember) (any, error) { return l.members().recover(ctx) }),
	// It records that the data are dropped at the next start of etcd, so that the machine joins the
	// cluster again.
	"rejoin-data": bare(func(ctx context.Context, l localMember) (any, error) { return l.members().rejoin(ctx) }),
	// It reads a nodespec.ReencryptRequest, re-encrypts all Secrets with the current key, and
	// writes a nodespec.ReencryptResult.
	"reencrypt-secrets": with(func(ctx context.Context, l localMember, order nodespec.ReencryptRequest) (any, error) {
		return reencrypt(ctx, l, order.CountOnly)
	}),
	// It reads a disruption.TurnRequest, takes the turn to be away, and writes a
	// disruption.ControlPlane. It does not take the turn if another machine has it, or if the
	// absence of this machine does not matter.
	"take-turn": with(func(ctx context.Context, l localMember, order disruption.TurnRequest) (any, error) {
		return turns{l.members()}.take(ctx, order), nil
	}),
	// It reads a disruption.TurnRequest, and deletes the turn of its machine.
	"return-turn": with(func(ctx context.Context, l localMember, order disruption.TurnRequest) (any, error) {
		return struct{}{}, turns{l.members()}.giveBack(ctx, order.Turn.Machine)
	}),
	// It writes a disruption.Level.
	"read-level": bare(func(ctx context.Context, l localMember) (any, error) { return l.presentLevel(ctx) }),
	// It reads a nodespec.RaiseLevel, raises the level of the cluster if all control-plane machines
	// permit it, and writes a nodespec.LevelRaised.
	"raise-level": with(func(ctx context.Context, l localMember, order nodespec.RaiseLevel) (any, error) {
		return turns{l.members()}.raise(ctx, order)
	}),
	// It clears the alarms and writes an api.EtcdDisarmResponse.
	"disarm-data": bare(func(ctx context.Context, l localMember) (any, error) { return disarm(ctx, l.dirs) }),
}

// The function with makes a command of a function with a request.
func with[Q any](do func(context.Context, localMember, Q) (any, error)) Command {
	return func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		order, err := nodespec.ReadRequest[Q](request)
		if err != nil {
			return nil, err
		}
		return do(ctx, localMember{dirs, spec}, order)
	}
}

// bare makes a command of a function without a request.
func bare(do func(context.Context, localMember) (any, error)) Command {
	return func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return do(ctx, localMember{dirs, spec})
	}
}

// inheritedFile returns the file that machined passes to the command as descriptor 3.
func inheritedFile() *os.File { return os.NewFile(3, "snapshot") }

const (
	// answerTimeout bounds requests that etcd answers from memory.
	answerTimeout = 10 * time.Second
	// reserve is the space on DATA, in bytes, that stays free for running components. A new file of
	// etcd's log takes 128 MiB of it.
	reserve = 512 << 20
)

func endpoint(dirs dirs.Dirs) string { return "unix://" + dirs.EtcdSocket() }

// connect returns a client of the etcd on this machine. The client itself would wait forever for a
// server, so connect fails if no server listens.
func connect(ctx context.Context, dirs dirs.Dirs) (*clientv3.Client, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", dirs.EtcdSocket())
	if err != nil {
		return nil, fmt.Errorf("etcd does not run: %w", err)
	}
	c.Close()
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint(dirs)}, Logger: nopLogger})
}

// nopLogger discards the log of clients: the errors of their calls contain all failures.
var nopLogger = zap.NewNop()

// Leads reports whether the member of this machine is the leader of etcd.
func Leads(ctx context.Context, dirs dirs.Dirs) (bool, error) {
	c, err := connect(ctx, dirs)
	if err != nil {
		return false, err
	}
	defer c.Close()
	now, err := fetchStatus(ctx, c, dirs)
	if err != nil {
		return false, fmt.Errorf("etcd: cannot read the leader: %w", err)
	}
	return now.Leader != 0 && now.Leader == now.Header.MemberId, nil
}

// fetchStatus returns etcd's status within requestTimeout. Before its first quorum etcd answers
// nothing, and a client would wait.
func fetchStatus(ctx context.Context, c *clientv3.Client, dirs dirs.Dirs) (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.Status(ctx, endpoint(dirs))
}

func id(number uint64) string { return strconv.FormatUint(number, 16) }

func alarmNames(alarms []*etcdserverpb.AlarmMember) []string {
	all := []string{}
	for _, a := range alarms {
		all = append(all, a.Alarm.String())
	}
	return all
}

// defragment returns unused space of the database to the disk. If the database is full, defragment
// compacts first. The API server compacts every few minutes, but it records each compaction with a
// write, which a full database rejects.
func defragment(ctx context.Context, dirs dirs.Dirs) (done *api.EtcdDefragmentResponse, err error) {
	done = &api.EtcdDefragmentResponse{}
	c, err := connect(ctx, dirs)
	if err != nil {
		return done, err
	}
	defer c.Close()
	before, err := fetchStatus(ctx, c, dirs)
	if err != nil {
		return done, fmt.Errorf("etcd does not answer: %w", err)
	}
	if err := checkSpace(dirs.EtcdData, before.DbSizeInUse, reserve, "etcd: cannot defragment, nothing was changed"); err != nil {
		return done, err
	}
	alarms, err := c.AlarmList(ctx)
	if err != nil {
		return done, fmt.Errorf("etcd: cannot list the alarms: %w", err)
	}
	for _, a := range alarms.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE && done.Compacted == 0 {
			_, err := c.Compact(ctx, before.Header.Revision, clientv3.WithCompactPhysical())
			// ErrCompacted means that an earlier call has compacted the revisions, and that nothing
			// could be written since then.
			if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				return done, fmt.Errorf("etcd: cannot compact old revisions: %w", err)
			}
			done.Compacted = before.Header.Revision
		}
	}
	if _, err := c.Defragment(ctx, endpoint(dirs)); err != nil {
		return done, fmt.Errorf("etcd: cannot defragment: %w", err)
	}
	after, err := fetchStatus(ctx, c, dirs)
	if err != nil {
		return done, fmt.Errorf("etcd does not answer after defragmentation: %w", err)
	}
	done.Before, done.After = before.DbSize, after.DbSize
	return done, nil
}

// disarm clears the raised alarms and returns their names.
func disarm(ctx context.Context, dirs dirs.Dirs) (*api.EtcdDisarmResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, dirs)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raised, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // all alarms
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot clear the alarms: %w", err)
	}
	return &api.EtcdDisarmResponse{Alarms: alarmNames(raised.Alarms)}, nil
}
