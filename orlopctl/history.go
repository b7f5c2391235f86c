package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/trial"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func confirmCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "confirm-config",
		Annotations: calls(api.Config_Confirm_FullMethodName),
		Short:       "Confirm the configuration that is on trial",
		Long: "Confirm the configuration that is on trial. A configuration is on trial if it was applied with --mode try, or if the\n" +
			"command that applied it could not confirm it. Without a confirmation, the previous configuration becomes active\n" +
			"again when the trial ends or when the machine reboots.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := connect.Interruptible()
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, conn.Timeout(connect.DefaultTimeout))
			defer cancel()
			endpoint, err := conn.Machine()
			if err != nil {
				return err
			}
			c := trial.New(conn, "", trial.EndpointsOf(endpoint, nil))
			if err := c.Run(ctx); err != nil {
				return err
			}
			if ios.Human() {
				ios.Println("confirmed: the configuration stays")
			}
			for _, f := range c.Failures {
				ios.Errorln("failed: " + format.CleanLines(f))
			}
			if n := len(c.Failures); n > 0 {
				return &exit.Error{Code: exit.Failure, Err: fmt.Errorf("the configuration is confirmed, but %s failed; the machine retries", format.Count(n, "operation")), Hint: "`orlopctl get drift` lists the remaining operations"}
			}
			return nil
		},
	}
}

func historyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "config-history",
		Annotations: calls(api.Config_History_FullMethodName),
		Short:       "List the configurations that were active, and the changes of each",
		Args:        cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.History(ctx, &api.ConfigHistoryRequest{})
				if err != nil {
					return err
				}
				if !ios.Human() {
					return ios.Print(answer, nil)
				}
				for _, e := range answer.Entries {
					ios.Printf("%d  %s  by %s\n", e.Number, e.At.AsTime().Format(time.RFC3339), format.Clean(e.By))
					for _, change := range e.Changes {
						ios.Println("     " + change)
					}
				}
				return nil
			})
		},
	}
}

func showConfigCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var origins bool
	c := &cobra.Command{
		Use:         "show-config [NUMBER]",
		Annotations: calls(api.Config_Get_FullMethodName),
		Short:       "Show the active configuration, or an earlier configuration, without its secrets",
		Args:        cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			numbers, err := configNumbers(args)
			if err != nil {
				return err
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Get(ctx, &api.GetConfigRequest{Number: numbers[0], Origins: origins})
				if err != nil {
					return err
				}
				if !ios.Human() {
					return ios.Print(answer, nil)
				}
				if origins {
					ios.Println("# from " + format.Clean(answer.Source))
				}
				ios.Printf("%s", answer.Documents)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&origins, "origins", false, "also show the origin of the configuration, and which values are defaults; `orlopctl get network` shows the values from DHCP")
	return c
}

func diffConfigCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "diff-config FROM [TO]",
		Short: "Compare an earlier configuration with the active configuration, or with another earlier one",
		Long: "Show the differences between two configurations of the history (`orlopctl config-history`), field by field. Without TO, the command\n" +
			"compares with the active configuration. It names changed secrets, but does not show them. `orlopctl apply-config --dry-run` compares\n" +
			"the active configuration with a file.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			numbers, err := configNumbers(args)
			if err != nil {
				return err
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Compare(ctx, &api.CompareConfigRequest{From: numbers[0], To: numbers[1]})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) {
					if len(answer.Changes) == 0 {
						iostreams.Row(w, "they are the same")
					}
					for _, change := range answer.Changes {
						iostreams.Row(w, change)
					}
				})
			})
		},
	}
}

func rollbackConfigCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var how applying
	c := &cobra.Command{
		Use:   "rollback-config NUMBER",
		Short: "Apply an earlier configuration again, with its secrets",
		Long: "Apply a configuration of the history (`orlopctl config-history`) again, with its secrets. The machine\n" +
			"validates it like any other configuration. `orlopctl rollback` returns to an earlier version of the system.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			numbers, err := configNumbers(args)
			if err != nil {
				return err
			}
			return apply(ios, conn, &api.ApplyRequest{Number: numbers[0]}, how)
		},
	}
	how.flags(c.Flags())
	return c
}

// configNumbers parses the numbers of up to two configurations. A missing number is 0, which means
// the active configuration.
func configNumbers(args []string) (numbers [2]uint64, err error) {
	for i, a := range args {
		if numbers[i], err = strconv.ParseUint(a, 10, 64); err != nil || numbers[i] == 0 {
			return numbers, exit.Usagef("configuration %q: cannot use: expected a number that `orlopctl config-history` lists", a)
		}
	}
	return numbers, nil
}
