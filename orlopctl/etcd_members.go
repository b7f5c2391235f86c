package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
)

func etcdMembersCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "members",
		Annotations: calls(api.Etcd_Status_FullMethodName),
		Short:       "List the etcd members, and whether each of them answers",
		Long: "List the etcd members that the called machine knows, and whether each of them answers the called machine. More\n" +
			"than half of the voting members must answer.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
				if err != nil {
					return err
				}
				if ios.Human() && len(answer.Members) == 0 {
					return fmt.Errorf("etcd: cannot list the members: %s", answer.Problem)
				}
				return ios.Print(answer, func(w *tabwriter.Writer) { etcdMembersTable(w, answer) })
			})
		},
	}
}

func etcdMembersTable(w io.Writer, s *api.EtcdStatusResponse) {
	iostreams.Row(w, "NAME", "ID", "ADDRESS", "STATE")
	voters, answering := 0, 0
	for _, m := range s.Members {
		state := "votes"
		if m.Learner {
			state = "has no vote yet"
		} else {
			voters++
			if m.Problem == "" {
				answering++
			}
		}
		if m.Id == s.Leader {
			state = "leads"
		}
		if m.Problem != "" {
			state += ", does not answer: " + m.Problem
		}
		iostreams.Row(w, format.OrDash(m.Name), m.Id, strings.Join(m.PeerUrls, ", "), state)
	}
	// The last line is no row: it has no columns of the table.
	fmt.Fprintf(w, "voting members reachable: %d of %d; quorum: %d; failures tolerated: %d\n", answering, voters, etcdjoin.QuorumSize(voters), etcdjoin.FailureTolerance(voters))
}

func etcdRemoveCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "remove MEMBER",
		Short: "Remove a permanently lost member from etcd",
		Long: "Remove a member from etcd, by its name or ID. The called machine rejects the removal if the other members would lose\n" +
			"their quorum. A machine with a replaced disk does not need this command: it replaces its own member. To remove a\n" +
			"machine permanently, first remove it from Cluster.spec.controlPlanes on the other machines: the command then also\n" +
			"deletes the Kubernetes node and the pods of the machine, and the tokens of the pods become invalid. A removed\n" +
			"machine still has the cluster's keys: reset it if it still runs, and replace the keys if somebody else has the\n" +
			"machine (`orlopctl docs runbook`, \"Remove a control-plane machine for good\").",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.CallFor(removeTime, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.RemoveMember(ctx, &api.EtcdRemoveMemberRequest{Member: args[0]})
				if err != nil {
					return err
				}
				if !ios.Human() {
					return ios.Print(answer, nil)
				}
				ios.Println("removed: " + answer.Removed.Name + " (" + answer.Removed.Id + ")")
				if answer.NodeError != "" {
					ios.Errorln("its Kubernetes node was not deleted (" + format.Clean(answer.NodeError) + ")")
				}
				return nil
			})
		},
	}
}

func etcdRecoverCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return etcdConsented(ios, conn, &cobra.Command{
		Use:   "recover",
		Short: "Continue with this machine's etcd data alone, if most members are lost for good",
		Long: "Continue with this machine's data as the only member of etcd. Use this command only if most members are lost\n" +
			"permanently, not if they are only unreachable: the machine rejects it while a quorum answers. Select the machine\n" +
			"whose `orlopctl etcd status` shows the highest raft term and index. Other machines with an empty disk join again\n" +
			"automatically. Other machines that still have their data report the problem, and join after\n" +
			"`orlopctl etcd rejoin`. You must type the machine's name first, unless --yes is given.",
	}, "leave out every other member of its cluster's etcd", func(ctx context.Context, c *client.Client) (proto.Message, string, error) {
		answer, err := c.Etcd.Recover(ctx, &api.EtcdRecoverRequest{})
		return answer, "etcd continues with this machine alone; excluded: " + format.OrDash(strings.Join(answer.GetRemovedMembers(), ", ")), err
	})
}

func etcdRejoinCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return etcdConsented(ios, conn, &cobra.Command{
		Use:   "rejoin",
		Short: "Drop the etcd data of a machine that is not a member any more, and join the machine again",
		Long: "Drop the etcd data of a machine that was removed, or excluded by `orlopctl etcd recover`, and join the machine\n" +
			"to the other members again. `orlopctl etcd restore --undo` restores the dropped data. A machine that is a member\n" +
			"with a quorum rejects the command. You must type the machine's name first, unless --yes is given.",
	}, "drop its copy of the cluster's data", func(ctx context.Context, c *client.Client) (proto.Message, string, error) {
		answer, err := c.Etcd.Rejoin(ctx, &api.EtcdRejoinRequest{})
		return answer, "the machine is a member again", err
	})
}

// etcdConsented completes an irreversible command. The command runs do after the operator has typed
// the machine's name, unless --yes is set. The parameter `what` describes the operation in the
// prompt. do returns the answer of the machine, and the line that reports success.
func etcdConsented(ios *iostreams.Streams, conn *connect.Connector, c *cobra.Command, what string, do func(context.Context, *client.Client) (answer proto.Message, done string, err error)) *cobra.Command {
	yes := c.Flags().Bool("yes", false, "do not prompt for confirmation")
	c.Args = cobra.NoArgs
	c.RunE = func(*cobra.Command, []string) error {
		return conn.CallFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
			if !*yes {
				if err := confirm(ctx, ios, c, what); err != nil {
					return err
				}
			}
			answer, done, err := do(ctx, c)
			if err != nil {
				return err
			}
			if !ios.Human() {
				return ios.Print(answer, nil)
			}
			ios.Println(done)
			return nil
		})
	}
	return c
}
