package upgrade

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// ReleaseCheck adds a warning to the health if the version has expired, or if its release epoch is
// lower than the epoch floor. The machine stays healthy, because the services still work.
func ReleaseCheck(health *api.HealthResponse, r buildinfo.Release, floor int, now time.Time) {
	warn := func(detail string, since time.Time) {
		health.Checks = append(health.Checks, &api.HealthCheck{Name: "release", Ok: true, Detail: "warning: " + detail, Since: timestamppb.New(since)})
	}
	if expires := time.Unix(r.Expires, 0).UTC(); r.Expires > 0 && !now.Before(expires) {
		warn(fmt.Sprintf("version %s is not maintained any more since %s; upgrade to a newer one", r.Version, expires.Format(time.DateOnly)), expires)
	}
	if r.Epoch < floor {
		warn(fmt.Sprintf("version %s has epoch %d, and one with epoch %d was committed on this machine; upgrade to a newer one", r.Version, r.Epoch, floor), now)
	}
}

// Status converts a State to the message of the API.
func (c *Controller) Status(s State) *api.UpgradeStatus {
	out := &api.UpgradeStatus{
		Running: c.deps.version(), From: s.From, To: s.To, Phase: string(s.Phase), Tries: uint32(s.Tries), Reason: s.Reason, Log: s.Log,
		Operation: s.Operation, Done: s.Done, Total: s.Total, WaitingFor: s.WaitingFor,
	}
	lost, err := limits.Read(context.Background(), &c.restoredReads, "restored data", limits.StateTimeout, func(context.Context) (nodespec.SavepointRestored, error) {
		return c.savepoints.restored(s.Started), nil
	})
	if err != nil {
		out.Reason = strings.TrimPrefix(out.Reason+"; DATA does not answer, so it is unknown whether etcd data was restored", "; ")
	}
	if !lost.At.IsZero() {
		out.DataRestoredFrom, out.LostRevisions = timestamppb.New(lost.Saved), lost.LostRevisions
	}
	if !s.Started.IsZero() {
		out.Started = timestamppb.New(s.Started)
	}
	if !s.Ended.IsZero() {
		out.Ended = timestamppb.New(s.Ended)
	}
	return out
}
