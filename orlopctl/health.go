package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// healthTimeout is the default time limit of `health` without --once.
const healthTimeout = 10 * time.Minute

// healthOptions are the flags of `health`.
type healthOptions struct {
	once, cluster  bool
	machineTimeout time.Duration
}

func healthCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var o healthOptions
	c := &cobra.Command{
		Use:         "health",
		Annotations: calls(api.Cluster_Health_FullMethodName),
		Short:       "Wait until the cluster is healthy, and show the failed checks",
		Long: "Wait until the cluster is healthy, and show the failed checks. The command also waits for a machine that is not reachable yet.\n" +
			"Without --cluster, it shows only the checks of the called machine. With --cluster, a control-plane machine calls all machines of the\n" +
			"cluster and answers for them, even while Kubernetes is down or machines are missing. It checks their versions, etcd, certificates and\n" +
			"upgrades, and whether their copies of the Cluster document are equal. Each problem has a reason and a remedy.\n" +
			"The exit status is 0 if the cluster is healthy, and 4 if it does not become healthy in time.",
		Example: "  orlopctl health\n  orlopctl health --cluster --once -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.machineTimeout != 0 && !o.cluster {
				return exit.Usagef("--machine-timeout: cannot be used without --cluster: the called machine calls no other")
			}
			endpoint, err := conn.Machine()
			if err != nil {
				return err
			}
			ctx, stop := connect.Interruptible()
			defer stop()
			usual := healthTimeout
			if o.once {
				usual = connect.DefaultTimeout
			}
			ctx, cancel := context.WithTimeout(ctx, conn.Timeout(usual))
			defer cancel()
			if o.cluster {
				return clusterHealth(ctx, ios, endpoint, o)
			}
			view := newHealthView(ios, conn)
			defer view.end()
			return health.Wait(ctx, endpoint, o.once, view.show)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.once, "once", false, "show the present health and do not wait")
	f.BoolVar(&o.cluster, "cluster", false, "check all machines of the cluster; the called machine must be a control-plane machine")
	registerMachineTimeout(f, &o.machineTimeout)
	return c
}

// registerMachineTimeout adds the flag --machine-timeout: the time within which each machine of the
// cluster must answer.
func registerMachineTimeout(f *pflag.FlagSet, to *time.Duration) {
	f.DurationVar(to, "machine-timeout", 0, "time that each machine of the cluster has to answer (default: 4s; at most 20s)")
	flags.Limit(f, "machine-timeout", to, time.Millisecond, 20*time.Second)
}

// clusterHealth waits until the whole cluster is healthy, and prints the last answer. With --once
// it does not wait.
func clusterHealth(ctx context.Context, ios *iostreams.Streams, endpoint client.Endpoint, o healthOptions) error {
	began, told := time.Now(), map[string]bool{}
	say := func(line string) {
		if told[line] {
			return
		}
		told[line] = true
		ios.PrintProgress(fmt.Sprintf("%6.1fs  %s", time.Since(began).Seconds(), line))
	}
	last, err := health.WaitCluster(ctx, endpoint, o.once, o.machineTimeout, func(r health.ClusterReport) {
		if r.Waiting != nil {
			say("wait  " + exit.Message(r.Waiting))
		}
		for _, f := range r.Answer.GetProblems() {
			say("wait  " + health.ClusterProblem(f))
		}
	})
	if last == nil {
		return err
	}
	if !ios.Human() {
		return cmp.Or(err, ios.Print(last, nil)) // the answer is printed in any case
	}
	return cmp.Or(err, health.WriteCluster(ios.Out, last))
}

// healthView prints reports. On a terminal it redraws a table. Elsewhere it prints a line for each
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

// erase moves back to the first line of the table and clears the rest of the screen (ECMA-48: CUU,
// ED).
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
