package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/printable"
)

func (t *tool) auditCommand() *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "Who called what on the machine"}
	c.AddCommand(t.auditListCommand(), t.auditVerifyCommand())
	return c
}

func (t *tool) auditListCommand() *cobra.Command {
	var follow bool
	var after uint64
	c := &cobra.Command{
		Use:   "list",
		Short: "List the calls that changed something, and those that were refused",
		Long: "List the calls that changed something or gave away a secret, and those that were refused. With -o json each line is as the\n" +
			"machine has recorded it.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var chain audit.Chain
			return t.audit(after, follow, func(line []byte) error {
				if t.flags.output == "yaml" || t.node != "" && !t.human() {
					return t.printDocument(line, true)
				}
				if !t.human() {
					t.println(string(line))
					return nil
				}
				e, err := chain.Check(line)
				if err != nil {
					return notWhole(err)
				}
				t.printf("%6d  %s  %-18s %s by %s (%s) from %s", e.Number, e.At.Format("2006-01-02T15:04:05.000Z"), e.Outcome,
					strings.TrimPrefix(strings.TrimPrefix(e.Method, "/orlop."), "v1alpha1."), clean(e.Subject), e.Role, e.Peer)
				if e.Target != "" {
					t.printf(", %s", clean(e.Target))
				}
				if e.Reason != "" {
					t.printf(": %s", clean(e.Reason))
				}
				t.println("")
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with each new call")
	c.Flags().Uint64Var(&after, "after", 0, "only calls after this number")
	return c
}

func (t *tool) auditVerifyCommand() *cobra.Command {
	var since string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that nothing in the record of calls was changed or taken out",
		Long: "Check that nothing in the record of calls was changed or taken out: each line holds the digest of the one before. What is printed\n" +
			"at the end is the mark of the last line. Note it where the machine is not: with --since it shows later that the record was not\n" +
			"written anew, either.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var want audit.Mark
			if since != "" {
				var err error
				if want, err = audit.ParseMark(since); err != nil {
					return usagef("--since: %w", err)
				}
			}
			chain := audit.Chain{Want: want}
			err := t.audit(0, false, func(line []byte) error {
				_, err := chain.Check(line)
				return notWhole(err)
			})
			if err == nil {
				err = notWhole(chain.End())
			}
			if err != nil {
				return err
			}
			if !t.human() {
				return t.printPlain(map[string]any{"first": chain.First.Number, "last": chain.Last.Number, "mark": chain.Last.String()})
			}
			if chain.Last.Number == 0 {
				t.println("nothing is recorded yet")
				return nil
			}
			t.printf("calls %d to %d are as they were recorded; the mark of the last one is\n%s\n", chain.First.Number, chain.Last.Number, chain.Last)
			return nil
		},
	}
	c.Flags().StringVar(&since, "since", "", "a mark that was noted: the record must hold this line as it was")
	return c
}

// notWhole says what a broken chain means.
func notWhole(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitFailure, err: fmt.Errorf("audit: the record is not whole: %w", err), hint: "somebody who could write to the machine's disk has; compare with what you keep elsewhere"}
}

// audit reads the record, line by line.
func (t *tool) audit(after uint64, follow bool, do func(line []byte) error) error {
	return t.stream(func(ctx context.Context, c *client.Client) error {
		stream, err := c.Audit.Read(ctx, &api.ReadAuditRequest{After: after, Follow: follow})
		if err != nil {
			return err
		}
		return each(stream.Recv, func(l *api.AuditLine) error { return do(l.Line) })
	})
}

// clean makes a text of a certificate or of somebody's request fit for a terminal.
func clean(text string) string { return printable.Text(text) }

// cleanLines does the same with each line of a text.
func cleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = clean(line)
	}
	return strings.Join(lines, "\n")
}
