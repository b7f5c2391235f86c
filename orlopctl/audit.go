package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/client"
)

func auditCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "List or verify the audit log of the machine"}
	c.AddCommand(auditListCommand(ios, conn), auditVerifyCommand(ios, conn))
	return c
}

func auditListCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	l := auditList{ios: ios}
	c := &cobra.Command{
		Use:         "list",
		Annotations: calls(api.Audit_Read_FullMethodName),
		Short:       "List the calls that changed something, and the calls that were rejected",
		Long: "List the calls that changed something or returned a secret, and the calls that were rejected or failed. The\n" +
			"machine has two records, because rejected calls must not displace the others. A number with prefix r belongs to\n" +
			"the record `refused`, which also contains the start of each stream. An unfinished call was running when the\n" +
			"machine stopped. With -o json, each line is the line that the machine recorded.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			names := map[string][]string{"": {"", audit.Refused}, "changes": {""}, audit.Refused: {audit.Refused}}
			var known bool
			if l.records, known = names[l.which]; !known {
				return exit.Usagef("--record %s: expected changes or refused", l.which)
			}
			if l.after > 0 && l.which == "" {
				l.records = []string{""}
			}
			return conn.Stream(l.run)
		},
	}
	c.Flags().BoolVarP(&l.follow, "follow", "f", false, "wait for new calls and print them")
	c.Flags().Uint64Var(&l.after, "after", 0, "only calls with a higher number, of the record that --record names (default: changes)")
	c.Flags().StringVar(&l.which, "record", "", "only this record: changes or refused (default: both)")
	return c
}

// auditList holds the flags of `audit list`, and the names of the records to read.
type auditList struct {
	ios     *iostreams.Streams
	which   string
	records []string
	after   uint64
	follow  bool
}

// auditLine is a line of an audit log. entry is the parsed text, and is set only if the line was
// checked.
type auditLine struct {
	text  []byte
	entry audit.Entry
}

func (l *auditList) run(ctx context.Context, c *client.Client) error {
	if len(l.records) == 1 {
		chain := audit.Chain{Record: l.records[0]}
		return readRecord(ctx, c, &chain, l.after, l.follow, l.ios.Human(), l.print)
	}
	chains := [2]audit.Chain{{}, {Record: audit.Refused}}
	var read [2][]auditLine
	for i := range chains {
		err := readRecord(ctx, c, &chains[i], 0, false, true, func(line auditLine) error { read[i] = append(read[i], line); return nil })
		if err != nil && !errors.Is(err, errNoRefused) {
			return err
		}
	}
	for _, line := range merged(read[0], read[1]) {
		if err := l.print(line); err != nil {
			return err
		}
	}
	if !l.follow {
		return nil
	}
	lines, ended := make(chan auditLine), make(chan error, len(chains))
	for i := range chains {
		go func() {
			ended <- readRecord(ctx, c, &chains[i], chains[i].Last.Number, true, true, func(line auditLine) error {
				select {
				case lines <- line:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	for {
		select {
		case line := <-lines:
			if err := l.print(line); err != nil {
				return err
			}
		case err := <-ended:
			if !errors.Is(err, errNoRefused) {
				return err
			}
			// The stream of record changes continues.
		}
	}
}

// merged merges the lines of two records by time. The order within each record stays.
func merged(a, b []auditLine) []auditLine {
	var out []auditLine
	for len(a) > 0 && len(b) > 0 {
		if b[0].entry.At.Before(a[0].entry.At) {
			out, b = append(out, b[0]), b[1:]
		} else {
			out, a = append(out, a[0]), a[1:]
		}
	}
	return append(append(out, a...), b...)
}

func (l *auditList) print(line auditLine) error {
	if l.ios.Format == "yaml" || l.ios.Node != "" && !l.ios.Human() {
		return l.ios.PrintDocument(line.text, true)
	}
	if !l.ios.Human() {
		l.ios.Println(string(line.text))
		return nil
	}
	e := line.entry
	number := fmt.Sprint(e.Number)
	if e.Record != "" {
		number = "r" + number
	}
	l.ios.Printf("%6s  %s  %-18s %s by %s (%s) from %s", number, e.At.Format("2006-01-02T15:04:05.000Z"), e.Status,
		strings.TrimPrefix(strings.TrimPrefix(e.Method, "/orlop."), "v1alpha1."), format.Clean(e.Subject), e.Role, e.Peer)
	if e.Target != "" {
		l.ios.Printf(", %s", format.Clean(e.Target))
	}
	if e.Approvers != "" {
		l.ios.Printf(", approved by %s", format.Clean(e.Approvers))
	}
	if e.Reason != "" {
		l.ios.Printf(": %s", format.Clean(e.Reason))
	}
	l.ios.Println("")
	return nil
}

func auditVerifyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var since string
	c := &cobra.Command{
		Use:         "verify",
		Annotations: calls(api.Audit_Read_FullMethodName),
		Short:       "Check that no line of the audit log was changed or removed",
		Long: "Check that no line of the audit log was changed or removed: each line contains the digest of the previous line.\n" +
			"The command prints the mark of the last line. Store the mark outside the machine. A later call with --since and\n" +
			"this mark proves that the audit log up to that line was not rewritten.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var want audit.Checkpoint
			if since != "" {
				var err error
				if want, err = audit.ParseCheckpoint(since); err != nil {
					return exit.Usagef("--since: %w", err)
				}
			}
			chain, refused := audit.Chain{Want: want}, audit.Chain{Record: audit.Refused}
			err := conn.Stream(func(ctx context.Context, c *client.Client) error {
				nothing := func(auditLine) error { return nil }
				if err := readRecord(ctx, c, &chain, 0, false, true, nothing); err != nil {
					return err
				}
				if err := chain.End(); err != nil {
					return brokenChain(err)
				}
				if err := readRecord(ctx, c, &refused, 0, false, true, nothing); !errors.Is(err, errNoRefused) {
					return err
				}
				return nil
			})
			if err != nil {
				return err
			}
			if !ios.Human() {
				return ios.PrintPlain(map[string]any{
					"first": chain.First.Number, "last": chain.Last.Number, "mark": chain.Last.String(),
					"refused": map[string]any{"first": refused.First.Number, "last": refused.Last.Number, "mark": refused.Last.String()},
				})
			}
			printVerified(ios, chain, refused)
			return nil
		},
	}
	c.Flags().StringVar(&since, "since", "", "a mark that an earlier call has printed: the audit log must still contain its line, unchanged")
	return c
}

// brokenChain adds an explanation to the error of a broken chain. It returns nil for nil.
func brokenChain(err error) error {
	if err == nil {
		return nil
	}
	return &exit.Error{Code: exit.Failure, Err: fmt.Errorf("audit: the record is incomplete or changed: %w", err), Hint: "the audit log was changed on the machine's disk; compare it with your copies elsewhere"}
}

// printVerified prints the range of the verified calls of each record.
func printVerified(ios *iostreams.Streams, chain, refused audit.Chain) {
	if refused.Last.Number > 0 {
		ios.Printf("rejected calls %d to %d are unchanged\n", refused.First.Number, refused.Last.Number)
	}
	if chain.Last.Number == 0 {
		ios.Println("the record of changes is empty")
		return
	}
	ios.Printf("calls %d to %d are unchanged; the mark of the last call is\n%s\n", chain.First.Number, chain.Last.Number, chain.Last)
}

// errNoRefused is returned for record `refused` of a machine with a version that has only record
// `changes`.
var errNoRefused = &exit.Error{
	Code: exit.Failure, Err: errors.New("audit: the version of the machine has no record `refused`"),
	Hint: "`orlopctl audit list --record changes` also lists the rejected calls of this version",
}

// readRecord calls do for each line of a record with a higher sequence number than `after`. If
// check is set, it first checks that the line continues the chain. A machine of a version that has
// only record `changes` sends record `changes` in place of `refused`; readRecord then returns
// errNoRefused.
func readRecord(ctx context.Context, c *client.Client, chain *audit.Chain, after uint64, follow, check bool, do func(auditLine) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Audit.Read(ctx, &api.ReadAuditRequest{After: after, Follow: follow, Refused: chain.Record != ""})
	if err != nil {
		return err
	}
	begun := false
	return connect.Each(stream.Recv, func(l *api.AuditLine) error {
		if !begun && chain.Record != "" && !bytes.Contains(l.Line, []byte(`"record":`)) {
			return errNoRefused
		}
		begun = true
		line := auditLine{text: l.Line}
		if check {
			var err error
			if line.entry, err = chain.Check(l.Line); err != nil {
				return brokenChain(err)
			}
		}
		return do(line)
	})
}
