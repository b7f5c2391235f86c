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

// Report is a report of Wait: an answer of the machine, or the reason why it does not
// answer.
type Report struct {
	Answer  *api.HealthResponse
	Waiting error
}

// Wait watches the health of a machine, across reconnections, until it is healthy. Otherwise
// it returns the reason why it gave up.
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

// watch connects and passes each answer to show until the machine ends the stream.
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
		return err // the machine was never reached; err holds the reason
	}
	return unhealthy(last)
}

// Failed returns the failed checks of an answer, each with its reason.
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
