package etcd

import (
	"context"
	"encoding/json"
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
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Command is an operation on etcd that machined requests. It runs in a separate process as the user
// of process "api". It reads its request as JSON and writes its answer as JSON.
type Command func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (answer any, err error)

// Commands are all commands, by the name with which machined starts the orchestrator.
var Commands = map[string]Command{
	"take-savepoint": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return TakeSavepoint(ctx, spec, dirs)
	},
	"stream-snapshot": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		order, err := decode[nodespec.SendSnapshotRequest](request)
		if err != nil {
			return nil, err
		}
		if order.Stored != "" {
			return localMember{dirs, spec}.snapshots().copyTo(order.Stored, inheritedFile())
		}
		return Snapshot(ctx, dirs, inheritedFile())
	},
	"restore-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		order, err := decode[nodespec.EtcdRestore](request)
		if err != nil {
			return nil, err
		}
		return localMember{dirs, spec}.restores().prepare(ctx, order, inheritedFile(), ownFormat())
	},
	"take-snapshot": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		order, err := decode[nodespec.TakeSnapshotRequest](request)
		if err != nil {
			return nil, err
		}
		return localMember{dirs, spec}.snapshots().take(ctx, order, minFreePercent)
	},
	"list-snapshots": func(_ context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		target, err := decode[string](request)
		if err != nil {
			return nil, err
		}
		return localMember{dirs, spec}.snapshots().list(target)
	},
	"upload-snapshot": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		target, err := decode[nodespec.EtcdTarget](request)
		if err != nil {
			return nil, err
		}
		return localMember{dirs, spec}.uploader().next(ctx, target)
	},
	"data-status": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return localMember{dirs, spec}.members().status(ctx), nil
	},
	"defragment-data": func(ctx context.Context, _ nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return defragment(ctx, dirs)
	},
	"remove-member": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		name, err := decode[string](request)
		if err != nil {
			return nil, err
		}
		return localMember{dirs, spec}.members().remove(ctx, name)
	},
	"leave-cluster": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return localMember{dirs, spec}.members().leave(ctx)
	},
	"recover-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return localMember{dirs, spec}.members().recover(ctx)
	},
	"rejoin-data": func(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return localMember{dirs, spec}.members().rejoin(ctx)
	},
	"reencrypt-secrets": func(ctx context.Context, _ nodespec.Spec, dirs dirs.Dirs, request io.Reader) (any, error) {
		order, err := decode[nodespec.ReencryptRequest](request)
		if err != nil {
			return nil, err
		}
		return reencrypt(ctx, dirs, order.Count)
	},
	"disarm-data": func(ctx context.Context, _ nodespec.Spec, dirs dirs.Dirs, _ io.Reader) (any, error) {
		return disarm(ctx, dirs)
	},
}

// decode reads a request.
func decode[Q any](from io.Reader) (request Q, err error) {
	if err := json.NewDecoder(from).Decode(&request); err != nil {
		return request, fmt.Errorf("cannot decode the request: %w", err)
	}
	return request, nil
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

// nopLogger discards the log of clients: their errors contain all failures.
var nopLogger = zap.NewNop()

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

// defragment returns unused space of the database to the disk. If the database is full, it compacts
// first: the API server compacts every few minutes, but records each compaction with a write, which
// a full database rejects.
func defragment(ctx context.Context, dirs dirs.Dirs) (done nodespec.EtcdDefragmented, err error) {
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
			// They were compacted before, and nothing could be written since.
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
func disarm(ctx context.Context, dirs dirs.Dirs) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, dirs)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raised, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}) // all
	if err != nil {
		return nil, fmt.Errorf("etcd: cannot clear the alarms: %w", err)
	}
	all := []string{}
	for _, a := range raised.Alarms {
		all = append(all, a.Alarm.String())
	}
	return all, nil
}
