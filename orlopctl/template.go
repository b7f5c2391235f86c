package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// templateTTL is the default validity of a template.
const templateTTL = 30 * 24 * time.Hour

func nodesTemplateCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var out, operator, patch string
	var t gen.Template
	var ttl time.Duration
	var marks nodeFlags
	var force bool
	c := &cobra.Command{
		Use:   "template NAME",
		Short: "Make a signed template of workers for a MachineDeployment",
		Long: "Make an OrlopMachineTemplate: the configuration of workers of this cluster, without a secret, signed with the\n" +
			"operator's CA. A MachineDeployment that names the template makes workers of approved machines in the inventory.\n" +
			"The name of such a worker is NAME, a dash, and the first eight digits of its fingerprint. A machine accepts the\n" +
			"template only if its own operator has signed it. A removed worker erases itself and powers off; with --keep it\n" +
			"retains its configuration and its data. --patch adds fields, for example Machine.spec.install.\n\n" +
			"Until the template expires, an administrator of Kubernetes can use it to make workers of all machines of this\n" +
			"operator, or with --rule-only of the machines that an approval rule lists.",
		Example: "  orlopctl nodes template rack7 --match 'host.cpus >= 16' --out rack7.yaml\n  kubectl apply -f rack7.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var err error
			if t.Node, err = marks.node(); err != nil {
				return err
			}
			t.Name, t.Expiry = args[0], time.Now().Add(ttl).Truncate(time.Second)
			if patch != "" {
				if t.Patch, err = os.ReadFile(patch); err != nil {
					return exit.Usagef("--patch: %w", err)
				}
			}
			if err := vacantOutput(out, force); err != nil {
				return err
			}
			return makeTemplate(ios, conn, t, operator, out)
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "-", "file to write; - for the standard output")
	f.StringVar(&operator, "operator", "operator", "directory with the operator's ca.crt and ca.key (orlopctl gen operator)")
	f.StringVar(&patch, "patch", "", "file with a patch of the documents, in the format of orlopctl patch-config")
	f.StringVar(&t.Match, "match", "", "expression in CEL over the inventory of a machine; default: all approved machines")
	f.BoolVar(&t.Rules, "rule-only", false, "accept only machines that a signed rule approves (`orlopctl nodes rule`)")
	f.BoolVar(&t.Keep, "keep", false, "let a removed worker retain its configuration and its data")
	f.DurationVar(&ttl, "ttl", templateTTL, "validity of the template; at most 8784h")
	flags.Positive(f, "ttl", &ttl)
	f.BoolVar(&force, "force", false, "replace an existing file")
	marks.register(f)
	return c
}

// makeTemplate writes a signed template to a file, or to the standard output ("-").
func makeTemplate(ios *iostreams.Streams, conn *connect.Connector, t gen.Template, operator, out string) error {
	if err := gen.Validate(config.New(t.Name, config.RoleWorker).WithNode(t.Node)); err != nil {
		return err
	}
	ca, err := gen.ReadOperator(operator)
	if err != nil {
		return err
	}
	return conn.CallFor(removeTime, func(ctx context.Context, c *client.Client) error {
		documents, err := gen.WorkerTemplate(ctx, c, t)
		if err != nil {
			return err
		}
		text, err := gen.SignTemplate(ca, t, documents, time.Now())
		if err != nil {
			return err
		}
		return writeOutput(ios, out, text, "the template is valid until "+t.Expiry.Format(time.RFC3339))
	})
}
