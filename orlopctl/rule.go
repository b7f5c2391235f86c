package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// ruleTTL is the default validity of a rule. The delivery of machines takes days.
const ruleTTL = 7 * 24 * time.Hour

// ruleFlags are the flags of `orlopctl nodes rule`.
type ruleFlags struct {
	out, operator, machines, match string
	maximum                        int
	ttl                            time.Duration
	force, dry                     bool
}

func nodesRuleCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var r ruleFlags
	c := &cobra.Command{
		Use:   "rule NAME",
		Short: "Make a signed rule that approves waiting machines by serial number",
		Long: "Make an OrlopApprovalRule, signed with the operator's CA. The cluster then approves waiting machines with a listed\n" +
			"serial number or UUID automatically, one machine for each entry of the list. --machines is a file with a list in\n" +
			"YAML. An entry is, for example, `- serial: ABC123` or `- uuid: 4c4c4544-…`, or has both.\n\n" +
			"A serial number proves nothing: until the rule expires, any machine in the network can state it and take the place\n" +
			"of the right machine. Use a network that only your machines reach, a short validity, and a template with\n" +
			"--rule-only. --dry-run writes nothing. It shows the listed machines that wait at present, if a control-plane\n" +
			"machine answers.",
		Example: "  orlopctl nodes rule rack7 --machines rack7.list --match 'host.memory >= 64 * GiB' --out rack7-rule.yaml\n  kubectl apply -f rack7-rule.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return makeRule(ios, conn, args[0], r)
		},
	}
	f := c.Flags()
	f.StringVar(&r.machines, "machines", "", "file with the serial numbers and UUIDs; required")
	f.StringVar(&r.match, "match", "", "expression in CEL over the inventory of a machine; default: all listed machines")
	f.IntVar(&r.maximum, "maximum", 0, "maximum number of approvals; default: the number of listed machines")
	flags.Positive(f, "maximum", &r.maximum)
	f.DurationVar(&r.ttl, "ttl", ruleTTL, "validity of the rule; at most 8784h")
	flags.Positive(f, "ttl", &r.ttl)
	f.StringVar(&r.operator, "operator", "operator", "directory with the operator's ca.crt and ca.key (orlopctl gen operator)")
	f.StringVar(&r.out, "out", "-", "file to write; - for the standard output")
	f.BoolVar(&r.force, "force", false, "replace an existing file")
	f.BoolVar(&r.dry, "dry-run", false, "write nothing; show the listed machines that wait")
	return c
}

// makeRule writes a signed rule to a file, or to the standard output ("-"). With --dry-run it shows
// the listed waiting machines instead.
func makeRule(ios *iostreams.Streams, conn *connect.Connector, name string, f ruleFlags) error {
	if err := gen.CheckObjectName(name); err != nil {
		return exit.Usagef("%w", err)
	}
	if f.machines == "" {
		return exit.Usagef("--machines: missing: expected a file with the serial numbers or UUIDs of the machines")
	}
	text, err := os.ReadFile(f.machines)
	if err != nil {
		return exit.Usagef("--machines: %w", err)
	}
	now := time.Now()
	r := claim.Rule{Match: f.match, Maximum: f.maximum, Expires: now.Add(f.ttl)}
	if r.Machines, err = gen.ParseMachines(text); err != nil {
		return exit.Usagef("--machines: %s: %w", f.machines, err)
	}
	if r.Maximum == 0 {
		r.Maximum = len(r.Machines)
	}
	ca, err := gen.ReadOperator(f.operator)
	if err != nil {
		return err
	}
	if err := vacantOutput(f.out, f.force || f.dry); err != nil {
		return err
	}
	object, err := gen.SignRule(ca, name, r, now)
	if err != nil {
		return err
	}
	about := fmt.Sprintf("it approves %d of %d machines at most, until %s", r.Maximum, len(r.Machines), r.Expires.Format(time.RFC3339))
	if !f.dry {
		return writeOutput(ios, f.out, object, about)
	}
	ios.Printf("the rule is valid, and nothing is written: %s\n", about)
	return showListed(ios, conn, r)
}

// showListed shows the waiting machines that a rule lists. It does not evaluate the expression of
// --match, because only the cluster has the compiler for it.
func showListed(ios *iostreams.Streams, conn *connect.Connector, r claim.Rule) error {
	var waiting []any
	err := conn.Call(func(ctx context.Context, c *client.Client) error {
		answer, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "inventory"})
		if err == nil {
			waiting = answer.Value.GetListValue().AsSlice()
		}
		return err
	})
	if err != nil {
		ios.Errorln(fmt.Sprintf("the waiting machines are unknown: %v", err))
		return nil
	}
	taken := map[claim.Identity]bool{}
	listed := 0
	err = iostreams.DrawTable(ios.Out, func(w *tabwriter.Writer) {
		for _, m := range waiting {
			host, _ := m.(map[string]any)
			text := func(name string) string { s, _ := host[name].(string); return s }
			identity, found := r.Find(text("serial"), text("uuid"))
			if !found {
				continue
			}
			if listed++; listed == 1 {
				fmt.Fprintln(w, "KEY\tADDRESS\tMACHINE\tNOTE")
			}
			note := ""
			if taken[identity] {
				note = "another waiting machine states the same: the first one is approved"
			}
			taken[identity] = true
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", text("key"), text("address"), identity, note)
		}
	})
	if err != nil {
		return err
	}
	ios.Printf("%d of %d waiting machines are listed\n", listed, len(waiting))
	if r.Match != "" && listed > 0 {
		ios.Errorln("the cluster evaluates --match and earlier approvals: `kubectl get orlopapprovalrules,orlophosts -n orlop-machines`")
	}
	return nil
}
