package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/slot"
)

// upgradeTimeout bounds sending, writing, rebooting and proving; a machine gives a new version five minutes a try.
const upgradeTimeout = 30 * time.Minute

func (t *tool) upgradeCommand() *cobra.Command {
	var file string
	var noWait bool
	c := &cobra.Command{
		Use:   "upgrade -f BUNDLE",
		Short: "Replace the machine's system by another version",
		Long: "Replace the machine's system by another version, and wait for the outcome. The new version is written beside the one that\n" +
			"runs; if it does not prove itself after the reboot, the machine comes back to the one that runs now, by itself and with its\n" +
			"configuration. The exit status is 0 when the new version is committed and 1 when the machine went back.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if file == "" {
				return usagef("upgrade: -f with the upgrade bundle is needed")
			}
			return t.upgrade(file, !noWait)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the upgrade bundle")
	c.Flags().BoolVar(&noWait, "no-wait", false, "return when the new version is written; `orlopctl upgrade status --wait` waits")
	c.AddCommand(t.upgradeStatusCommand())
	return c
}

func (t *tool) upgradeStatusCommand() *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "status", Short: "Show the last upgrade, how far it is, and why it was taken back", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if wait {
				return t.awaitUpgrade("")
			}
			return t.call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
				if err != nil {
					return err
				}
				return t.print(answer, func(w *tabwriter.Writer) { upgradeTable(w, answer) })
			})
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait for the outcome, also while the machine reboots")
	return c
}

func (t *tool) rollbackCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Go back to the version before",
		Long: "Reboot into the version before the one that runs, with the configuration that it was good with, and wait for it.\n" +
			"The machine's name must be typed first, unless --yes is given.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if t.flags.timeout == 0 {
				t.flags.timeout = upgradeTimeout
			}
			var to string
			err := t.call(func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := t.confirm(ctx, c, "go back to the version before"); err != nil {
						return err
					}
				}
				answer, err := c.Upgrade.Rollback(ctx, &api.RollbackRequest{})
				to = answer.GetTo()
				return err
			})
			if err != nil {
				return err
			}
			return t.awaitUpgrade(to)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (t *tool) upgrade(name string, wait bool) error {
	file, total, err := t.input("upgrade", name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	if t.flags.timeout == 0 {
		t.flags.timeout = upgradeTimeout
	}
	var to string
	err = t.call(func(ctx context.Context, c *client.Client) error {
		stream, err := c.Upgrade.Start(ctx)
		if err != nil {
			return err
		}
		err = send(file, t.progress(total), func(chunk []byte) error { return stream.Send(&api.StartUpgradeRequest{Chunk: chunk}) })
		if err != nil {
			return err
		}
		answer, err := stream.CloseAndRecv()
		if err != nil {
			return err
		}
		to = answer.To
		if t.human() {
			t.println(fmt.Sprintf("version %s is written beside %s; the machine reboots into it", answer.To, answer.From))
		}
		return nil
	})
	if err != nil || !wait {
		return err
	}
	return t.awaitUpgrade(to)
}

// awaitUpgrade waits for an upgrade's outcome, across reboots. It is good when the version wanted runs; with no version
// wanted, when the upgrade was committed.
func (t *tool) awaitUpgrade(wanted string) error {
	endpoint, err := t.machine()
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, t.timeout(upgradeTimeout))
	defer cancel()
	var last *api.UpgradeStatus
	told := ""
	for {
		now, err := upgradeStatus(ctx, endpoint)
		if err == nil {
			last = now
			if slot.Phase(now.Phase).Done() {
				return t.outcome(now, wanted)
			}
		} else if ctx.Err() == nil && !passing(err) {
			return err
		}
		if line := strings.TrimSuffix(last.GetPhase()+": "+last.GetWaits(), ": "); t.human() && err == nil && line != told {
			t.errorln(line)
			told = line
		}
		pause := time.NewTimer(dialPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return &exitError{code: exitUnhealthy, err: fmt.Errorf("upgrade: no outcome in time; it is %q", last.GetPhase()), hint: "`orlopctl upgrade status` shows how it goes on"}
		}
	}
}

func upgradeStatus(ctx context.Context, endpoint client.Endpoint) (*api.UpgradeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTry)
	defer cancel()
	c, err := client.Dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // a new connection is made for the next attempt
	return c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
}

func (t *tool) outcome(s *api.UpgradeStatus, wanted string) error {
	if err := t.print(s, func(w *tabwriter.Writer) { upgradeTable(w, s) }); err != nil {
		return err
	}
	if s.Running == wanted || wanted == "" && slot.Phase(s.Phase) == slot.Committed {
		return nil
	}
	return fmt.Errorf("upgrade to %s: %s: %s", s.To, s.Phase, s.Reason)
}

func upgradeTable(w *tabwriter.Writer, s *api.UpgradeStatus) {
	row(w, "RUNNING", s.Running)
	if s.Phase == "" {
		row(w, "UPGRADE", "none yet")
		return
	}
	row(w, "FROM", s.From)
	row(w, "TO", s.To)
	row(w, "PHASE", s.Phase)
	if s.Operation != "" {
		text := s.Operation
		if s.Total > 0 {
			text += fmt.Sprintf(" (%s of %s)", size(s.Done), size(s.Total))
		}
		row(w, "NOW", text)
	}
	if s.Waits != "" {
		row(w, "WAITS FOR", s.Waits)
	}
	if s.Tries > 0 {
		row(w, "TRIES", fmt.Sprint(s.Tries))
	}
	if s.Reason != "" {
		row(w, "REASON", s.Reason)
	}
	if s.Began != nil {
		row(w, "BEGAN", s.Began.AsTime().Format(time.RFC3339))
	}
	if s.Ended != nil {
		row(w, "ENDED", s.Ended.AsTime().Format(time.RFC3339))
	}
}
