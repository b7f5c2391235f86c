package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// drainTime bounds the time in which a machine drains its node and leaves the cluster. The limit of
// Machine.spec.upgrade.drain.timeout is one hour.
const drainTime = 65 * time.Minute

// typingTime is the time for the operator to find and type the machine's name.
const typingTime = 5 * time.Minute

// drainContinues adds a hint to the error of a canceled call: the machine continues with the drain.
func drainContinues(err error) error {
	return mayContinue(err, "the machine continues: it drains the node first; `orlopctl get drain` shows the progress, and `orlopctl drain cancel` gives it up")
}

// mayContinue adds a hint to the error of a canceled or broken call, because the machine may
// continue. It returns other errors without a change.
func mayContinue(err error, hint string) error {
	if s, ok := exit.StatusOf(err); ok && (s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled || s.Code() == codes.Unavailable) {
		code, _ := exit.Code(err)
		return &exit.Error{Code: code, Err: err, Hint: hint}
	}
	return err
}

func rebootCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return powerCommand(ios, conn, "reboot", api.Machine_Reboot_FullMethodName, "Reboot the machine in good order", "the machine reboots",
		func(ctx context.Context, c *client.Client, r *api.PowerRequest) (*api.PowerResponse, error) {
			return c.Machine.Reboot(ctx, r)
		})
}

func shutdownCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return powerCommand(ios, conn, "shutdown", api.Machine_Shutdown_FullMethodName, "Switch the machine off in good order", "the machine shuts down",
		func(ctx context.Context, c *client.Client, r *api.PowerRequest) (*api.PowerResponse, error) {
			return c.Machine.Shutdown(ctx, r)
		})
}

// askTime bounds the time in which a machine asks the other machines whether the cluster needs it.
const askTime = time.Minute

// forceFlag adds the flag --force, which overrides a rejection because of the state of the cluster.
func forceFlag(c *cobra.Command, force *bool) {
	c.Flags().BoolVar(force, "force", false, "proceed although the cluster needs the machine at present; the audit log and the events record it")
}

type powerCall func(context.Context, *client.Client, *api.PowerRequest) (*api.PowerResponse, error)

func powerCommand(ios *iostreams.Streams, conn *connect.Connector, name, method, short, done string, do powerCall) *cobra.Command {
	var grace time.Duration
	var force bool
	var drain drainFlags
	c := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		Long: short + ". A control-plane machine first asks the other control-plane machines. It rejects the command, with\nthe reason, while they need it or another of them is away. " +
			"Then the machine evicts its pods if --drain or its\nconfiguration (Machine.spec.upgrade.drain) says so. The eviction continues if you disconnect; `orlopctl drain cancel` gives it up.",
		Annotations: calls(method),
		RunE: func(*cobra.Command, []string) error {
			if err := drain.check(); err != nil {
				return err
			}
			return conn.CallFor(askTime+drainTime, func(ctx context.Context, c *client.Client) error {
				var answer *api.PowerResponse
				err := withDrain(ctx, ios, c, func(ctx context.Context) (err error) {
					answer, err = do(ctx, c, &api.PowerRequest{GracePeriod: connect.DurationOf(grace), Force: force, Drain: drain.request()})
					return err
				})
				if err != nil {
					return err
				}
				if ios.Human() {
					ios.Println(done)
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
	c.Flags().DurationVar(&grace, "grace", 0, "time limit for the end of services and pods (default: 60s)")
	flags.Positive(c.Flags(), "grace", &grace)
	forceFlag(c, &force)
	drain.add(c, "Machine.spec.upgrade.drain.policy")
	return c
}

// wipes maps the values of --wipe to the data that they delete. forget is the text for the prompt.
var wipes = map[string]struct {
	wipe   api.ResetRequest_Wipe
	forget string
}{
	"state": {api.ResetRequest_WIPE_STATE, "forget its configuration"},
	"data":  {api.ResetRequest_WIPE_DATA, "forget all its data"},
	"all":   {api.ResetRequest_WIPE_ALL, "forget its configuration and all its data"},
}

func resetCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var wipe string
	var yes, force bool
	var drain drainFlags
	c := &cobra.Command{
		Use:         "reset",
		Annotations: calls(api.Machine_Reset_FullMethodName),
		Short:       "Delete the machine's configuration or data and reboot it",
		Long: "Delete data of the machine and reboot it. --wipe state deletes its configuration and its key: the machine then\n" +
			"waits for a configuration. --wipe data deletes etcd, images, volumes and logs: the machine then boots with its\n" +
			"configuration alone. The machine joins the cluster again if other machines have the cluster's data. Otherwise it\n" +
			"starts an empty cluster. --wipe all deletes both. You must type the machine's name first, unless --yes is given.\n\n" +
			"A control-plane machine first asks the other control-plane machines. It rejects the command, with the reason,\n" +
			"while they need it or another of them is away. With --force, the data are deleted even if the machine cannot\n" +
			"leave etcd.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			what, known := wipes[wipe]
			if !known {
				return exit.Usagef("reset: --wipe %q is not known; it is state, data or all", wipe)
			}
			if err := drain.check(); err != nil {
				return err
			}
			return conn.CallFor(typingTime+askTime+drainTime, func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := confirm(ctx, ios, c, what.forget); err != nil {
						return err
					}
				}
				var answer *api.PowerResponse
				err := withDrain(ctx, ios, c, func(ctx context.Context) (err error) {
					answer, err = c.Machine.Reset(ctx, &api.ResetRequest{Wipe: what.wipe, Force: force, Drain: drain.request()})
					return err
				})
				if err != nil {
					return err
				}
				if ios.Human() {
					ios.Println("the machine is reset and reboots")
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
	c.Flags().StringVar(&wipe, "wipe", "state", "what to delete: state, data or all")
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	forceFlag(c, &force)
	drain.add(c, "Machine.spec.upgrade.drain.policy")
	return c
}

// confirm prompts for the machine's name, to prevent an irreversible operation on the wrong
// machine. The parameter `what` completes the sentence "This makes the machine NAME …". The error
// is nil only if the typed name is correct.
func confirm(ctx context.Context, ios *iostreams.Streams, c *client.Client, what string) error {
	if ios.Node != "" {
		return exit.Usagef("cannot prompt for confirmation for several machines; pass --yes")
	}
	version, err := c.Machine.Version(ctx, &api.VersionRequest{})
	if err != nil {
		return err
	}
	name := version.Machine
	if name == "" {
		return exit.Usagef("cannot prompt for confirmation: the machine has no name yet; pass --yes")
	}
	ios.Errorln(fmt.Sprintf("This makes the machine %s %s.", name, what))
	_, _ = fmt.Fprint(ios.Err, "Type its name to go on: ")
	typed, err := readLine(ctx, ios.In)
	if err != nil {
		return err
	}
	if typed != name {
		return exit.Usagef("not done: you typed %q, and the machine is called %q", typed, name)
	}
	return nil
}

// readLine returns a typed line without surrounding blanks. It returns an error if the context ends
// first.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	line := make(chan string, 1)
	go func() {
		// At the end of the input, readLine returns the text so far, which may be empty.
		text, _ := bufio.NewReader(in).ReadString('\n')
		line <- strings.TrimSpace(text)
	}()
	select {
	case text := <-line:
		return text, nil
	case <-ctx.Done():
		return "", fmt.Errorf("nothing was typed: %w", context.Cause(ctx))
	}
}
