package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func (t *tool) confirmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "confirm-config",
		Short: "Keep the configuration that is tried",
		Long: "Keep the configuration that was applied with --mode try. Without this the one before comes back by itself, when the time of the\n" +
			"trial is up or when the machine starts anew.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := interruptible()
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, t.timeout(usualTimeout))
			defer cancel()
			_, _, endpoint, err := t.called()
			if err != nil {
				return err
			}
			c := t.confirmation("", placesOf(endpoint, nil))
			if err := c.run(ctx); err != nil {
				return err
			}
			if t.human() {
				t.println("confirmed: the configuration stays")
			}
			for _, f := range c.failures {
				t.errorln("failed: " + cleanLines(f))
			}
			if n := len(c.failures); n > 0 {
				return &exitError{code: exitFailure, err: fmt.Errorf("the configuration stays, but for %s that failed; the machine goes on trying", count(n, "operation")), hint: "`orlopctl get drift` shows what is left"}
			}
			return nil
		},
	}
}

func (t *tool) historyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config-history",
		Short: "The configurations that were in force, and what each changed",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return t.call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.History(ctx, &api.ConfigHistoryRequest{})
				if err != nil {
					return err
				}
				if !t.human() {
					return t.print(answer, nil)
				}
				for _, e := range answer.Entries {
					t.printf("%d  %s  by %s\n", e.Number, e.At.AsTime().Format(time.RFC3339), clean(e.By))
					for _, change := range e.Changes {
						t.println("     " + change)
					}
				}
				return nil
			})
		},
	}
}

func (t *tool) showConfigCommand() *cobra.Command {
	var origins bool
	c := &cobra.Command{
		Use:   "show-config [NUMBER]",
		Short: "The configuration in force, or an earlier one, without its secrets",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			numbers, err := configNumbers(args)
			if err != nil {
				return err
			}
			return t.call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Get(ctx, &api.GetConfigRequest{Number: numbers[0], Origins: origins})
				if err != nil {
					return err
				}
				if !t.human() {
					return t.print(answer, nil)
				}
				if origins {
					t.println("# from " + clean(answer.Source))
				}
				t.printf("%s", answer.Documents)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&origins, "origins", false, "say where it came from, and which values nobody has written but are defaults; `orlopctl get network` says what is from DHCP")
	return c
}

func (t *tool) diffConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff-config FROM [TO]",
		Short: "What differs between an earlier configuration and another, or the one in force",
		Long: "What differs between two configurations of the history (`orlopctl config-history`), field by field. Without TO it is the one in force.\n" +
			"Secrets are named, not shown. `orlopctl apply-config --dry-run` compares with a file.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			numbers, err := configNumbers(args)
			if err != nil {
				return err
			}
			return t.call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Compare(ctx, &api.CompareConfigRequest{From: numbers[0], To: numbers[1]})
				if err != nil {
					return err
				}
				return t.print(answer, func(w *tabwriter.Writer) {
					if len(answer.Changes) == 0 {
						row(w, "they are the same")
					}
					for _, change := range answer.Changes {
						row(w, change)
					}
				})
			})
		},
	}
}

func (t *tool) rollbackConfigCommand() *cobra.Command {
	var how applying
	c := &cobra.Command{
		Use:   "rollback-config NUMBER",
		Short: "Apply an earlier configuration again, with its secrets",
		Long: "Apply a configuration of the history (`orlopctl config-history`) again, with the secrets that it had. The machine checks it as\n" +
			"any other. `orlopctl rollback` goes back to an earlier version of the system.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			numbers, err := configNumbers(args)
			if err != nil {
				return err
			}
			return t.apply(&api.ApplyRequest{Number: numbers[0]}, how)
		},
	}
	how.flags(c.Flags())
	return c
}

// configNumbers parses the numbers of up to two configurations; missing numbers are 0.
func configNumbers(args []string) (numbers [2]uint64, err error) {
	for i, a := range args {
		if numbers[i], err = strconv.ParseUint(a, 10, 64); err != nil || numbers[i] == 0 {
			return numbers, usagef("configuration %q: cannot use: expected a number that `orlopctl config-history` lists", a)
		}
	}
	return numbers, nil
}
