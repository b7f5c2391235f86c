package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

func nodesCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{
		Use:   "nodes",
		Short: "Add, approve, list and remove workers of the cluster",
		Long: "Add, approve, list and remove workers of the cluster.\n\n" +
			"A worker joins with a ticket, which is for one machine, can be used once, and expires. Or the worker sends a join\n" +
			"request, and an operator approves the key fingerprint on its console. A worker holds no key of the cluster. Call\n" +
			"any control-plane machine; more than half of the control-plane machines must answer before a worker joins.",
	}
	c.AddCommand(nodesAddCommand(ios, conn), nodesTemplateCommand(ios, conn), nodesRuleCommand(ios, conn), nodesPendingCommand(ios, conn), nodesApproveCommand(ios, conn), nodesDenyCommand(ios, conn), nodesListCommand(ios, conn), nodesRemoveCommand(ios, conn))
	return c
}

func nodesAddCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var out string
	var ttl time.Duration
	var marks nodeFlags
	var force, noTicket bool
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Make the configuration of a worker, with a ticket",
		Long: "Make the configuration of a worker called NAME, with a ticket with which it joins the cluster. Apply the\n" +
			"configuration to the machine before the ticket expires. The first machine that presents the ticket joins: until\n" +
			"then, any machine with the file can take the place of the worker. With --no-ticket the file contains no secret:\n" +
			"the machine sends a join request, and waits for `orlopctl nodes approve`. Labels and taints of the Kubernetes\n" +
			"node can be changed later, in the configuration of the machine (Machine.spec.node).",
		Example: "  orlopctl nodes add w1 --out w1.yaml\n  orlopctl apply-config -f w1.yaml -e 10.0.0.21 --fingerprint sha256:…",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			node, err := marks.node()
			if err != nil {
				return err
			}
			if err := gen.Validate(config.New(args[0], config.RoleWorker).WithNode(node)); err != nil {
				return err // check before a ticket is created
			}
			if noTicket && ttl != 0 {
				return exit.Usagef("--ttl: cannot use with --no-ticket; `orlopctl nodes approve --ttl` bounds the time in which the machine must join")
			}
			key, request, err := gen.NewRequest()
			if err != nil {
				return err
			}
			if noTicket {
				key, request = nil, nil
			}
			if err := vacantOutput(out, force); err != nil {
				return err
			}
			// The called machine may first have to remove an earlier machine with this name.
			return conn.CallFor(removeTime, func(ctx context.Context, c *client.Client) error {
				text, err := gen.WorkerConfig(ctx, c, &api.CreateTicketRequest{Name: args[0], Csr: request, Ttl: connect.DurationOf(ttl)}, key, node)
				if err != nil {
					return err
				}
				what := "the machine sends a join request; then `orlopctl nodes pending` lists it"
				if !noTicket {
					what = "its ticket is valid once, until " + key.Cert.NotAfter.Format(time.RFC3339)
				}
				return writeOutput(ios, out, text, what)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "-", "file to write; - for the standard output")
	f.DurationVar(&ttl, "ttl", 0, "validity of the ticket (default: 1h; at most 168h)")
	flags.Positive(f, "ttl", &ttl)
	f.BoolVar(&noTicket, "no-ticket", false, "write no ticket: the machine sends a join request, and an operator approves it (Cluster.spec.joinRequests)")
	f.BoolVar(&force, "force", false, "replace an existing file")
	marks.register(f)
	return c
}

func nodesPendingCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "pending",
		Short: "List the join requests",
		Long: "List the join requests that the called control-plane machine has received from machines without a ticket\n" +
			"(`orlopctl nodes add --no-ticket`). Any computer in the network can send a join request with any name: compare\n" +
			"the fingerprint with the fingerprint on the machine's console before you approve a request.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.ListPending(ctx, &api.ListPendingRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintln(w, "NAME\tADDRESS\tSINCE\tKEY")
					for _, m := range answer.Machines {
						_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", format.Clean(m.Name), format.Clean(m.Address), m.Since.AsTime().Format(time.RFC3339), format.Clean(m.Fingerprint))
					}
				})
			})
		},
	}
}

func nodesApproveCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var ttl time.Duration
	c := &cobra.Command{
		Use:   "approve NAME FINGERPRINT",
		Short: "Approve a join request",
		Long: "Approve a join request. FINGERPRINT is the key fingerprint on the console of the machine: only the machine with\n" +
			"this key is admitted. It joins with its next request, within seconds. The called control-plane machine must have\n" +
			"received the join request (`orlopctl nodes pending`).",
		Example: "  orlopctl nodes approve w1 sha256:…",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := consoleFingerprint(args[1]); err != nil {
				return err
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				if _, err := c.Cluster.Approve(ctx, &api.ApproveRequest{Name: args[0], Fingerprint: args[1], Ttl: connect.DurationOf(ttl)}); err != nil {
					return err
				}
				ios.Printf("approved: %s joins with its next request; then `orlopctl nodes list` lists it\n", args[0])
				return nil
			})
		},
	}
	c.Flags().DurationVar(&ttl, "ttl", 0, "time in which the machine must join (default: 1h; at most 168h)")
	flags.Positive(c.Flags(), "ttl", &ttl)
	return c
}

func nodesDenyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "deny NAME FINGERPRINT",
		Short: "Deny a join request",
		Long: "Deny a join request. The request is not listed again until the machine has sent no request for a day.\n" +
			"`orlopctl nodes approve` undoes the denial.",
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := consoleFingerprint(args[1]); err != nil {
				return err
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.Deny(ctx, &api.DenyRequest{Name: args[0], Fingerprint: args[1]})
				if err != nil {
					return err
				}
				ios.Printf("denied: %s\n", args[0])
				for _, machine := range answer.Unreached {
					ios.Errorln("a control-plane machine did not answer, and continues to list it (" + format.Clean(machine) + ")")
				}
				return nil
			})
		},
	}
}

// consoleFingerprint validates the key fingerprint of a join request.
func consoleFingerprint(text string) error {
	if _, err := pki.ParseFingerprint(text); err != nil {
		return exit.Usagef("%w; the machine's console shows it (orlop: machine identity sha256:…)", err)
	}
	return nil
}

func nodesListCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "list",
		Annotations: calls(api.Cluster_ListMembers_FullMethodName),
		Short:       "List workers and unused join tickets",
		Args:        cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.ListMembers(ctx, &api.ListMembersRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) { membersTable(w, answer) })
			})
		},
	}
}

func membersTable(w *tabwriter.Writer, list *api.ListMembersResponse) {
	day := func(at time.Time) string { return at.Format(time.RFC3339) }
	_, _ = fmt.Fprintln(w, "NAME\tADDRESS\tJOINED\tRENEWED\tEXPIRES\tKEY")
	for _, m := range list.Members {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", format.Clean(m.Name), format.Clean(m.Address), day(m.Joined.AsTime()), day(m.Renewed.AsTime()), day(m.Expires.AsTime()), format.Clean(m.Fingerprint))
	}
	for _, o := range list.Tickets {
		_, _ = fmt.Fprintf(w, "unused ticket for %s until %s, created by %s: certificate %s\n", format.Clean(o.Name), day(o.Expires.AsTime()), format.Clean(o.By), format.Clean(o.Serial))
	}
}

func nodesRemoveCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var drain drainFlags
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a worker from the cluster, and revoke its certificates and its pods' tokens",
		Long: "Remove a worker from the cluster, with all unused tickets for its name. When the command returns, all\n" +
			"control-plane machines that answer, and their API servers, reject the worker and have ended its running requests.\n" +
			"The command deletes the Kubernetes node with its pods. Other nodes run new pods in their place, and the tokens of\n" +
			"the deleted pods are invalid at all API servers. With --drain, the called machine first evicts the pods, so that\n" +
			"their replacements run earlier; the drain continues if you disconnect. Do not use --drain for a stolen machine,\n" +
			"because it delays the revocation.\n\n" +
			"A machine that learns of its removal ends its pods and its node, and retains its data until it is reset. A stolen\n" +
			"machine may ignore the removal, and its thief can read the Secrets of its pods: change these Secrets.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := drain.check(); err != nil {
				return err
			}
			work := removeTime
			if drain.request() != nil {
				work += drainTime
			}
			return conn.CallFor(work, func(ctx context.Context, c *client.Client) error {
				var answer *api.RemoveMemberResponse
				err := withDrain(ctx, ios, c, func(ctx context.Context) (err error) {
					answer, err = c.Cluster.RemoveMember(ctx, &api.RemoveMemberRequest{Name: args[0], Drain: drain.request()})
					return err
				})
				switch {
				case err != nil:
					return err
				case !ios.Human():
					return ios.Print(answer, nil)
				}
				ios.Printf("removed: %s\n", args[0])
				for _, machine := range answer.Unreached {
					ios.Errorln("a control-plane machine did not answer, and admits it until the revocation reaches it (" + format.Clean(machine) + "): it syncs with the others when it is reachable")
				}
				if answer.NodeError != "" {
					ios.Errorln("its Kubernetes node is still there (" + format.Clean(answer.NodeError) + "): the control-plane machines go on looking for it, and delete it where the API server answers; `kubectl get node " + args[0] + "` shows whether it is gone")
				}
				return nil
			})
		},
	}
	drain.add(c, "none")
	return c
}

// removeTime bounds the time in which a machine replicates a removal and deletes a Node.
const removeTime = 75 * time.Second
