package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// This file contains the flags and the progress of a drain, and the command that gives up a drain.

func drainCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{
		Use: "drain", Short: "Manage drains: the eviction of pods before a machine is away",
		Long: "Manage drains: the eviction of pods before a machine is away or removed. `orlopctl upgrade`, `rollback`, `reboot`,\n" +
			"`shutdown`, `reset` and `nodes remove` start a drain. `orlopctl get drain` shows the pods that are left, and the\n" +
			"PodDisruptionBudget that blocks each.",
	}
	c.AddCommand(drainCancelCommand(ios, conn))
	return c
}

func drainCancelCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use: "cancel [NODE]", Short: "Give up a running drain and the operation that started it", Args: cobra.MaximumNArgs(1),
		Long: "Give up the drain that runs on the machine: the node is schedulable again, and the operation that started the\n" +
			"drain does not continue. NODE is a worker that the machine drains to remove it (`orlopctl nodes remove`).",
		Annotations: calls(api.Machine_CancelDrain_FullMethodName),
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Machine.CancelDrain(ctx, &api.CancelDrainRequest{Node: first(args)})
				switch {
				case err != nil:
					return err
				case ios.Human():
					ios.Println("the drain is given up")
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
}

// drainFlags are the flags of a command that drains a node.
type drainFlags struct {
	policy  string
	timeout time.Duration
}

// add registers the flags. fallback describes the policy that applies without --drain.
func (f *drainFlags) add(c *cobra.Command, fallback string) {
	c.Flags().StringVar(&f.policy, "drain", "", "how pods are evicted before the operation: "+strings.Join(config.DrainPolicy("").Names(), ", ")+" (default: "+fallback+")")
	c.Flags().DurationVar(&f.timeout, "drain-timeout", 0, "time limit for the eviction of the pods (default: Machine.spec.upgrade.drain.timeout)")
	flags.Limit(c.Flags(), "drain-timeout", &f.timeout, time.Second, time.Hour)
}

// check returns an error if the value of a flag is not valid.
func (f *drainFlags) check() error {
	if names := config.DrainPolicy("").Names(); f.policy != "" && !slices.Contains(names, f.policy) {
		return exit.Usagef("--drain %q is not known; it is %s", f.policy, strings.Join(names, ", "))
	}
	return nil
}

// request returns the policy for a request. It returns nil if no flag is set, and the machine then
// uses its configured policy.
func (f *drainFlags) request() *api.DrainPolicy {
	if f.policy == "" && f.timeout == 0 {
		return nil
	}
	return &api.DrainPolicy{Policy: f.policy, Timeout: connect.DurationOf(f.timeout)}
}

// withDrain makes a call that may drain a node, and shows the progress of the drain until the call
// returns.
func withDrain(ctx context.Context, ios *iostreams.Streams, c *client.Client, call func(context.Context) error) error {
	stop := startShowingDrain(ctx, ios, c)
	err := call(ctx)
	if stop() {
		return drainContinues(err)
	}
	return err
}

// startShowingDrain shows the progress of a drain in the background. The returned function ends
// this output, and reports whether the last drain still runs.
func startShowingDrain(ctx context.Context, ios *iostreams.Streams, c *client.Client) (stop func() (runs bool)) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan bool, 1)
	go func() { ended <- showDrain(ctx, ios, c) }()
	return func() bool {
		cancel()
		return <-ended
	}
}

// drainState is an element of topic "drain".
type drainState struct {
	Node     string    `json:"node"`
	Phase    string    `json:"phase"`
	Deadline time.Time `json:"deadline"`
	nodespec.DrainProgress
}

// showDrain prints each change of the running drain until ctx ends. It reports whether the last
// drain still runs. It hides errors of the watch, because an older machine has no topic "drain".
func showDrain(ctx context.Context, ios *iostreams.Streams, c *client.Client) (runs bool) {
	stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: "drain"})
	if err != nil {
		return false
	}
	for last := ""; ; {
		value, err := stream.Recv()
		if err != nil {
			return last != ""
		}
		text, err := value.Value.MarshalJSON()
		if err != nil {
			return last != ""
		}
		var states []drainState
		if json.Unmarshal(text, &states) != nil || len(states) == 0 {
			continue
		}
		line := drainLine(states[len(states)-1])
		if line != "" && line != last && ios.Human() {
			ios.Errorln(line)
		}
		last = line
	}
}

// drainLine returns the line about a running drain. It returns "" after the end of the drain.
func drainLine(s drainState) string {
	if s.Phase != "running" {
		return ""
	}
	line := fmt.Sprintf("node %s is drained until %s at most: %d pods evicted, %d left", s.Node, s.Deadline.UTC().Format(time.TimeOnly+"Z"), s.Evicted, s.Left)
	for _, p := range s.Blocking() {
		budget := ""
		if p.Budget != "" {
			budget = "PodDisruptionBudget " + p.Budget + ": "
		}
		line += fmt.Sprintf("; pod %s blocks it: %s%s", p.Pod, budget, p.Message)
	}
	if s.Problem != "" && len(s.Blocking()) == 0 {
		line += "; " + s.Problem
	}
	return format.Clean(line)
}
