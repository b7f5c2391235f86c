package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/etcdjoin"
)

func (t *tool) etcdMembersCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "members",
		Short: "List the machines that hold the cluster's data, and whether each answers",
		Long: "List the machines that hold the cluster's data, as the machine that is asked knows them, and whether each answers it. More than half of\n" +
			"those that vote have to.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return t.call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
				if err != nil {
					return err
				}
				if t.human() && len(answer.Members) == 0 {
					return fmt.Errorf("etcd: does not tell its members: %s", answer.Problem)
				}
				return t.print(answer, func(w *tabwriter.Writer) { etcdMembersTable(w, answer) })
			})
		},
	}
}

func etcdMembersTable(w io.Writer, s *api.EtcdStatusResponse) {
	row(w, "NAME", "ID", "ADDRESS", "STATE")
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
		row(w, orDash(m.Name), m.Id, strings.Join(m.PeerUrls, ", "), state)
	}
	// A separate line, without the columns of the table.
	fmt.Fprintf(w, "%d of %d that vote answer; %d have to, so %d may be away\n", answering, voters, etcdjoin.QuorumSize(voters), etcdjoin.FailureTolerance(voters))
}

func (t *tool) etcdRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove MEMBER",
		Short: "Have etcd forget a member that will not come back",
		Long: "Have etcd forget a member, by its name or its id, unless the others would lose their quorum by it. A machine whose disk was replaced\n" +
			"needs none of this: it takes its own place. For good, take it out of Cluster.spec.controlPlanes on the others first: its Kubernetes node\n" +
			"and its pods go with the member then, and the tokens of those pods count no more. It holds the cluster's keys: reset it if it lives, and\n" +
			"replace them if it is in other hands (`orlopctl docs runbook`, \"Remove a control-plane machine for good\").",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return t.callFor(removeTime, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.RemoveMember(ctx, &api.EtcdRemoveMemberRequest{Member: args[0]})
				if err != nil {
					return err
				}
				if !t.human() {
					return t.print(answer, nil)
				}
				t.println("removed: " + answer.Removed.Name + " (" + answer.Removed.Id + ")")
				if answer.NodeError != "" {
					t.errorln("its Kubernetes node was left alone (" + clean(answer.NodeError) + ")")
				}
				return nil
			})
		},
	}
}

func (t *tool) etcdRecoverCommand() *cobra.Command {
	return t.etcdConsented(&cobra.Command{
		Use:   "recover",
		Short: "Go on with this machine's data alone, when most members are lost for good",
		Long: "Go on with this machine's data as the only member of etcd. It is for a cluster whose members are lost, and not only away: while a quorum\n" +
			"answers, it is refused. Choose the machine whose `orlopctl etcd status` shows the highest raft term and index. The lost machines join\n" +
			"again when they come with an empty disk; one that still has its data is told, and joins by `orlopctl etcd rejoin`. The machine's name\n" +
			"must be typed first, unless --yes is given.",
	}, "leave out every other member of its cluster's etcd", func(ctx context.Context, c *client.Client) (proto.Message, string, error) {
		answer, err := c.Etcd.Recover(ctx, &api.EtcdRecoverRequest{})
		return answer, "etcd goes on with this machine alone; left out: " + orDash(strings.Join(answer.GetRemovedMembers(), ", ")), err
	})
}

func (t *tool) etcdRejoinCommand() *cobra.Command {
	return t.etcdConsented(&cobra.Command{
		Use:   "rejoin",
		Short: "Drop the data of a machine that is no member any more, and have it join again",
		Long: "Drop the etcd data of a machine that was removed, or left out by `orlopctl etcd recover`, and have it join the others again. What it had\n" +
			"can be put back by `orlopctl etcd restore --undo`. A member that a quorum answers is refused. The machine's name must be typed first,\n" +
			"unless --yes is given.",
	}, "drop its copy of the cluster's data", func(ctx context.Context, c *client.Client) (proto.Message, string, error) {
		answer, err := c.Etcd.Rejoin(ctx, &api.EtcdRejoinRequest{})
		return answer, "the machine is a member again", err
	})
}

// etcdConsented completes an irreversible command: the machine performs it only after the operator
// has typed the machine's name.
func (t *tool) etcdConsented(c *cobra.Command, what string, do func(context.Context, *client.Client) (answer proto.Message, done string, err error)) *cobra.Command {
	yes := c.Flags().Bool("yes", false, "do not ask")
	c.Args = cobra.NoArgs
	c.RunE = func(*cobra.Command, []string) error {
		return t.callFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
			if !*yes {
				if err := t.confirm(ctx, c, what); err != nil {
					return err
				}
			}
			answer, done, err := do(ctx, c)
			if err != nil {
				return err
			}
			if !t.human() {
				return t.print(answer, nil)
			}
			t.println(done)
			return nil
		})
	}
	return c
}
