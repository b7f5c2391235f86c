package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
)

const healthTimeout = 10 * time.Minute

func healthCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:         "health",
		Annotations: calls(api.Cluster_Health_FullMethodName),
		Short:       "Wait until the cluster is healthy, and show the failed checks",
		Long:        "Wait until the cluster is healthy, and show the failed checks. The command also waits for a machine that is not reachable yet.\nThe exit status is 0 when it is healthy and 4 when it does not become healthy in time.",
		Args:        cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			endpoint, err := conn.Machine()
			if err != nil {
				return err
			}
			ctx, stop := connect.Interruptible()
			defer stop()
			usual := healthTimeout
			if once {
				usual = connect.DefaultTimeout
			}
			ctx, cancel := context.WithTimeout(ctx, conn.Timeout(usual))
			defer cancel()
			view := newHealthView(ios, conn)
			defer view.end()
			return health.Wait(ctx, endpoint, once, view.show)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "do not wait: show the present health")
	return c
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

func newHealthView(ios *iostreams.Streams, conn *connect.Connector) *healthView {
	_, terminal := ios.Terminal()
	return &healthView{ios: ios, start: time.Now(), redraw: terminal && ios.Human(), told: map[string]string{}}
}

func (v *healthView) show(r health.Report) error {
	if !v.ios.Human() {
		if r.Answer == nil {
			return nil
		}
		return v.ios.PrintNext(r.Answer, nil)
	}
	if v.redraw {
		return v.draw(r)
	}
	if r.Waiting != nil {
		v.printChange("machine", "wait", exit.Message(r.Waiting))
		return nil
	}
	delete(v.told, "machine")
	for _, c := range r.Answer.Checks {
		state := "ok"
		if !c.Ok {
			state = "wait"
		}
		v.printChange(c.Name, state, c.Detail)
	}
	if r.Answer.Healthy {
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
func (v *healthView) draw(r health.Report) error {
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

func healthTable(w io.Writer, r health.Report) {
	iostreams.Row(w, "CHECK", "STATE", "SINCE", "DETAIL")
	if r.Waiting != nil {
		iostreams.Row(w, "machine", "wait", "-", exit.Message(r.Waiting))
		return
	}
	for _, c := range r.Answer.Checks {
		state := "ok"
		if !c.Ok {
			state = "wait"
		}
		iostreams.Row(w, c.Name, state, format.Age(c.Since), c.Detail)
	}
}
