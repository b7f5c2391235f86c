package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// status returns the status of etcd. A missing answer is not an error; it is the Problem of the
// status.
func (l members) status(ctx context.Context) *api.EtcdStatusResponse {
	s := &api.EtcdStatusResponse{Member: l.spec.Node.Name}
	if r, err := readRestored(l.at(nodespec.LastRestoreFile)); err == nil {
		s.Restored = r.Message()
	}
	if info, err := os.Stat(l.at(undoFile)); err == nil {
		s.UndoSize = info.Size()
	}
	if err := l.queryStatus(ctx, s); err != nil {
		s.Problem = err.Error()
		if info, err := os.Stat(l.database()); err == nil {
			s.Size = info.Size()
		}
		s.Revision, _ = lastRevision(l.database()) // 0: not known
		// The operator compares term and index to choose the machine that recovers.
		s.RaftTerm, s.RaftIndex, _ = l.lastCommit()
	}
	return s
}

// errNoAnswer is returned when etcd runs but answers nothing.
var errNoAnswer = errors.New("etcd does not answer")

// queryStatus fills s with the answers of etcd.
func (l members) queryStatus(ctx context.Context, s *api.EtcdStatusResponse) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := connect(ctx, l.dirs)
	if err != nil {
		return err
	}
	defer c.Close()
	now, err := fetchStatus(ctx, c, l.dirs)
	if err != nil {
		var others error
		if s.Members, others = l.listWaiting(ctx); others == nil {
			voters, _, waiting := countVotes(s.Members)
			return fmt.Errorf("etcd waits for a quorum: %d of %d members run, the quorum is %d", waiting, voters, etcdjoin.QuorumSize(voters))
		}
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	s.Id, s.Version, s.Revision = id(now.Header.MemberId), now.Version, now.Header.Revision
	s.Size, s.Used, s.Quota, s.RaftIndex, s.RaftTerm = now.DbSize, now.DbSizeInUse, now.DbSizeQuota, now.RaftIndex, now.RaftTerm
	if now.Leader != 0 {
		s.Leader = id(now.Leader)
	}
	if s.Members, err = l.list(ctx, c); err != nil {
		return err
	}
	if s.Leader == "" {
		return nil // only a quorum can list alarms
	}
	alarms, err := c.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("etcd: cannot list the alarms: %w", err)
	}
	s.Alarms = alarmNames(alarms.Alarms)
	return nil
}
