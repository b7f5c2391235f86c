// Package health waits until a machine reports that its cluster is healthy.
package health

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
)

// Report is a report of Wait: an answer of the machine, or the reason for a missing answer.
type Report struct {
	Answer  *api.HealthResponse
	Waiting error
}

// Wait watches the health of a machine until it is healthy, and passes each answer or failure to
// show. It connects again after a lost connection. With once it waits for a single answer. It
// returns an error if the machine does not become healthy.
func Wait(ctx context.Context, endpoint client.Endpoint, once bool, show func(Report) error) error {
	var last *api.HealthResponse
	for {
		err := watch(ctx, endpoint, once, func(answer *api.HealthResponse) error {
			last = answer
			return show(Report{Answer: answer})
		})
		switch {
		case last.GetHealthy():
			return nil
		case err == nil && once:
			return unhealthy(last)
		case ctx.Err() != nil, exit.TimedOut(err):
			return gaveUp(ctx, last, err)
		case once || !exit.IsTemporary(err):
			return err
		}
		if err := show(Report{Waiting: err}); err != nil {
			return err
		}
		if backoff.Sleep(ctx, connect.DialInterval) != nil {
			return gaveUp(ctx, last, err)
		}
	}
}

// watch connects and passes each answer to show, until the machine ends the stream. A machine ends
// the stream when it is healthy.
func watch(ctx context.Context, endpoint client.Endpoint, once bool, show func(*api.HealthResponse) error) error {
	return connect.Attempt(ctx, endpoint, func(_ context.Context, c *client.Client) error {
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{Once: once})
		if err != nil {
			return err
		}
		return connect.Each(stream.Recv, show)
	})
}

func gaveUp(ctx context.Context, last *api.HealthResponse, err error) error {
	if context.Cause(ctx) == context.Canceled {
		return &exit.Error{Code: exit.Unhealthy, Err: errors.New("health: stopped before the cluster was healthy")}
	}
	if last == nil && err != nil && !exit.TimedOut(err) {
		return err // no call has succeeded; err has the reason
	}
	return unhealthy(last)
}

// Failed returns a line for each failed check of an answer, with the reason.
func Failed(answer *api.HealthResponse) []string {
	var failed []string
	for _, check := range answer.GetChecks() {
		if !check.Ok {
			failed = append(failed, strings.TrimSuffix(check.Name+": "+check.Detail, ": "))
		}
	}
	return failed
}

func unhealthy(last *api.HealthResponse) error {
	var missing []string
	for _, check := range last.GetChecks() {
		if !check.Ok {
			missing = append(missing, check.Name)
		}
	}
	if len(missing) == 0 {
		missing = []string{"no check has answered"}
	}
	return &exit.Error{
		Code: exit.Unhealthy, Err: fmt.Errorf("the cluster is not healthy: %s", strings.Join(missing, ", ")),
		Hint: "`orlopctl services` and `orlopctl logs SERVICE` show more; --timeout waits longer",
	}
}
