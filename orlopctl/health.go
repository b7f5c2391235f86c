package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

const (
	healthTimeout = 10 * time.Minute
	// dialTimeout bounds one attempt to connect during the wait for a machine that boots.
	dialTimeout = 10 * time.Second
	// dialInterval is the interval between two attempts.
	dialInterval = 500 * time.Millisecond
)

func healthCommand(ios *iostreams.Streams, conn *connector) *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:   "health",
		Short: "Wait until the cluster is healthy, and show the failed checks",
		Long:  "Wait until the cluster is healthy, and show the failed checks. The command also waits for a machine that is not reachable yet.\nThe exit status is 0 when it is healthy and 4 when it does not become healthy in time.",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			endpoint, err := conn.machine()
			if err != nil {
				return err
			}
			ctx, stop := interruptible()
			defer stop()
			usual := healthTimeout
			if once {
				usual = usualTimeout
			}
			ctx, cancel := context.WithTimeout(ctx, conn.timeout(usual))
			defer cancel()
			view := newHealthView(ios, conn)
			defer view.end()
			return waitHealthy(ctx, endpoint, once, view.show)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "do not wait: show the present health")
	return c
}

// healthReport is a report of waitHealthy: an answer of the machine, or the reason why it does not
// answer.
type healthReport struct {
	answer  *api.HealthResponse
	waiting error
}

// waitHealthy watches the health of a machine, across reconnections, until it is healthy. Otherwise
// it returns the reason why it gave up.
func waitHealthy(ctx context.Context, endpoint client.Endpoint, once bool, show func(healthReport) error) error {
	var last *api.HealthResponse
	for {
		err := followHealth(ctx, endpoint, once, func(answer *api.HealthResponse) error {
			last = answer
			return show(healthReport{answer: answer})
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
		if err := show(healthReport{waiting: err}); err != nil {
			return err
		}
		if !sleep(ctx, dialInterval) {
			return gaveUp(ctx, last, err)
		}
	}
}

// sleep waits between two attempts. It returns false if the context ends meanwhile.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt makes one of several attempts to connect, and passes the connection to do. The context
// for do ends with the time limit of the attempt.
func attempt(ctx context.Context, endpoint client.Endpoint, do func(dialing context.Context, c *client.Client) error) error {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return connectedTo(dialing, endpoint, func(c *client.Client) error { return do(dialing, c) })
}

// followHealth connects and passes each answer to show until the machine ends the stream.
func followHealth(ctx context.Context, endpoint client.Endpoint, once bool, show func(*api.HealthResponse) error) error {
	return attempt(ctx, endpoint, func(_ context.Context, c *client.Client) error {
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{Once: once})
		if err != nil {
			return err
		}
		return each(stream.Recv, show)
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

// healthView shows reports: on a terminal as a table that is redrawn, otherwise as a line per
// change.
type healthView struct {
	ios    *iostreams.Streams
	start  time.Time
	redraw bool
	drawn  int               // visible lines of the table
	told   map[string]string // check → last line, without a terminal
}

func newHealthView(ios *iostreams.Streams, conn *connector) *healthView {
	_, terminal := ios.Terminal()
	return &healthView{ios: ios, start: time.Now(), redraw: terminal && ios.Human(), told: map[string]string{}}
}

func (v *healthView) show(r healthReport) error {
	if !v.ios.Human() {
		if r.answer == nil {
			return nil
		}
		return v.ios.PrintNext(r.answer, nil)
	}
	if v.redraw {
		return v.draw(r)
	}
	if r.waiting != nil {
		v.printChange("machine", "wait", exit.Message(r.waiting))
		return nil
	}
	delete(v.told, "machine")
	for _, c := range r.answer.Checks {
		state := "ok"
		if !c.Ok {
			state = "wait"
		}
		v.printChange(c.Name, state, c.Detail)
	}
	if r.answer.Healthy {
		v.printChange("cluster", "ok", "healthy")
	}
	return nil
}

// printChange writes a line if it differs from the last line of this check.
func (v *healthView) printChange(name, state, detail string) {
	line := strings.TrimRight(fmt.Sprintf("%-4s  %-24s  %s", state, name, detail), " ")
	if v.told[name] == line {
		return
	}
	v.told[name] = line
	v.ios.Printf("%6.1fs  %s\n", time.Since(v.start).Seconds(), line)
}

// draw redraws the table on the screen.
func (v *healthView) draw(r healthReport) error {
	var text strings.Builder
	err := iostreams.DrawTable(&text, func(w *tabwriter.Writer) { healthTable(w, r) })
	if err != nil {
		return err
	}
	width, _ := v.ios.Terminal()
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	v.erase()
	for _, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		v.ios.Println(line)
	}
	v.drawn = len(lines)
	return nil
}

// erase moves back to the first line of the table and clears everything below (ECMA-48: CUU, ED).
func (v *healthView) erase() {
	if v.drawn > 0 {
		v.ios.Printf("\x1b[%dA\x1b[J", v.drawn)
	}
}

func (v *healthView) end() {
	if v.redraw && v.drawn > 0 {
		v.ios.Printf("after %s\n", time.Since(v.start).Round(time.Second))
	}
}

func healthTable(w io.Writer, r healthReport) {
	iostreams.Row(w, "CHECK", "STATE", "SINCE", "DETAIL")
	if r.waiting != nil {
		iostreams.Row(w, "machine", "wait", "-", exit.Message(r.waiting))
		return
	}
	for _, c := range r.answer.Checks {
		state := "ok"
		if !c.Ok {
			state = "wait"
		}
		iostreams.Row(w, c.Name, state, format.Age(c.Since), c.Detail)
	}
}
