package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// resetTimeout leaves a person time to find and type the machine's name.
const resetTimeout = 5 * time.Minute

func (t *tool) rebootCommand() *cobra.Command {
	return t.powerCommand("reboot", "Reboot the machine in good order", "the machine reboots",
		func(ctx context.Context, c *client.Client, r *api.PowerRequest) (*api.PowerResponse, error) {
			return c.Machine.Reboot(ctx, r)
		})
}

func (t *tool) shutdownCommand() *cobra.Command {
	return t.powerCommand("shutdown", "Switch the machine off in good order", "the machine goes down",
		func(ctx context.Context, c *client.Client, r *api.PowerRequest) (*api.PowerResponse, error) {
			return c.Machine.Shutdown(ctx, r)
		})
}

type powerCall func(context.Context, *client.Client, *api.PowerRequest) (*api.PowerResponse, error)

func (t *tool) powerCommand(name, short, done string, do powerCall) *cobra.Command {
	var grace time.Duration
	c := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return t.call(func(ctx context.Context, c *client.Client) error {
				request := &api.PowerRequest{}
				if grace > 0 {
					request.Grace = durationpb.New(grace)
				}
				answer, err := do(ctx, c, request)
				if err != nil {
					return err
				}
				if t.human() {
					t.println(done)
					return nil
				}
				return t.print(answer, nil)
			})
		},
	}
	c.Flags().DurationVar(&grace, "grace", 0, "how long services and pods may take to end (default: 60s)")
	return c
}

func (t *tool) resetCommand() *cobra.Command {
	var wipe, yes bool
	c := &cobra.Command{
		Use:   "reset",
		Short: "Make the machine forget its configuration and start anew",
		Long: "Make the machine forget its configuration and start anew. With --wipe-data it also forgets etcd, images and volumes.\n" +
			"The machine's name must be typed first, unless --yes is given.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if t.flags.timeout == 0 {
				t.flags.timeout = resetTimeout
			}
			return t.call(func(ctx context.Context, c *client.Client) error {
				if !yes {
					what := "forget its configuration"
					if wipe {
						what = "forget its configuration and all its data"
					}
					if err := t.confirm(ctx, c, what); err != nil {
						return err
					}
				}
				answer, err := c.Machine.Reset(ctx, &api.ResetRequest{WipeData: wipe})
				if err != nil {
					return err
				}
				if t.human() {
					t.println("the machine is reset and starts anew")
					return nil
				}
				return t.print(answer, nil)
			})
		},
	}
	c.Flags().BoolVar(&wipe, "wipe-data", false, "also forget etcd, images and volumes")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// confirm lets the operator type the machine's name, so that it is not the wrong machine that does what cannot be taken back.
func (t *tool) confirm(ctx context.Context, c *client.Client, what string) error {
	version, err := c.Machine.Version(ctx, &api.VersionRequest{})
	if err != nil {
		return err
	}
	name := version.Machine
	if name == "" {
		return usagef("cannot ask for confirmation: the machine has no name yet; pass --yes")
	}
	t.errorln(fmt.Sprintf("This makes the machine %s %s.", name, what))
	_, _ = fmt.Fprint(t.stderr, "Type its name to go on: ")
	typed, err := readLine(ctx, t)
	if err != nil {
		return err
	}
	if typed != name {
		return usagef("not done: you typed %q, and the machine is called %q", typed, name)
	}
	return nil
}

// readLine reads what is typed, until the context ends.
func readLine(ctx context.Context, t *tool) (string, error) {
	line := make(chan string, 1)
	go func() {
		// At the end of the input the text so far counts, which may be none.
		text, _ := bufio.NewReader(t.stdin).ReadString('\n')
		line <- strings.TrimSpace(text)
	}()
	select {
	case text := <-line:
		return text, nil
	case <-ctx.Done():
		return "", fmt.Errorf("confirmation: nothing was typed: %w", context.Cause(ctx))
	}
}
