package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// etcdTimeout bounds calls that transfer all data of the cluster: 4 GiB at most.
const etcdTimeout = 30 * time.Minute

func etcdCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "etcd", Short: "Show, back up, restore and repair etcd, which stores the cluster's data"}
	alarm := &cobra.Command{Use: "alarm", Short: "List or disarm the alarms of etcd"}
	alarm.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the alarms that are raised", Args: cobra.NoArgs,
			Annotations: calls(api.Etcd_Status_FullMethodName),
			RunE:        func(*cobra.Command, []string) error { return etcdAlarms(ios, conn) },
		},
		&cobra.Command{
			Use: "disarm", Short: "Disarm all alarms, so that etcd accepts writes again", Args: cobra.NoArgs,
			Annotations: calls(api.Etcd_Disarm_FullMethodName),
			RunE: func(*cobra.Command, []string) error {
				return conn.Call(func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.Disarm(ctx, &api.EtcdDisarmRequest{})
					if err != nil {
						return err
					}
					return printAlarms(ios, answer.Alarms, "disarmed: ")
				})
			},
		},
	)
	c.AddCommand(etcdSnapshotCommand(ios, conn), etcdSnapshotsCommand(ios, conn), etcdTakeCommand(ios, conn), etcdRestoreCommand(ios, conn), etcdMembersCommand(ios, conn), etcdRemoveCommand(ios, conn), etcdRecoverCommand(ios, conn), etcdRejoinCommand(ios, conn), etcdReencryptCommand(ios, conn), alarm,
		&cobra.Command{
			Use: "status", Short: "Show the state of etcd, also when etcd does not run", Args: cobra.NoArgs,
			Annotations: calls(api.Etcd_Status_FullMethodName),
			RunE: func(*cobra.Command, []string) error {
				return conn.Call(func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
					if err != nil {
						return err
					}
					return ios.Print(answer, func(w *tabwriter.Writer) { etcdTable(w, answer) })
				})
			},
		},
		&cobra.Command{
			Use:         "defrag",
			Annotations: calls(api.Etcd_Defragment_FullMethodName),
			Short:       "Return the unused space of the database to the disk",
			Long: "Return the unused space of the database to the disk. During this, etcd does not answer for some seconds. If the alarm NOSPACE\n" +
				"is raised, the command first removes old revisions. Each control-plane machine has its own database, and the largest database raises\n" +
				"the alarm: run the command on all control-plane machines, and then `orlopctl etcd alarm disarm`, so that etcd accepts writes again.",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				return conn.CallFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.Defragment(ctx, &api.EtcdDefragmentRequest{})
					if err != nil {
						return err
					}
					if ios.Human() {
						ios.Println("the database had " + format.Size(answer.Before) + ", and has " + format.Size(answer.After))
						return nil
					}
					return ios.Print(answer, nil)
				})
			},
		},
	)
	return c
}

func etcdReencryptCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var count bool
	c := &cobra.Command{
		Use:         "reencrypt",
		Annotations: calls(api.Etcd_Reencrypt_FullMethodName),
		Short:       "Encrypt all Secrets with the present key",
		Long: "Rewrite all Secrets that are not encrypted with the present key: the key of the configuration, or the present version of the key of a\n" +
			"key manager (Cluster.spec.kubernetes.apiServer.kms). One control-plane machine rewrites them for the whole cluster. First make sure\n" +
			"that all control-plane machines run with the same keys (`orlopctl health --cluster`), because another machine may still encrypt new\n" +
			"Secrets with a former key.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.CallFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.Reencrypt(ctx, &api.EtcdReencryptRequest{CountOnly: count})
				if err != nil {
					return err
				}
				if !ios.Human() {
					return ios.Print(answer, nil)
				}
				what := "were encrypted with another key, and are rewritten"
				if count {
					what = "are encrypted with another key than the present one"
				}
				ios.Printf("%d of %d Secrets %s\n", answer.Reencrypted, answer.Secrets, what)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&count, "count", false, "only count the Secrets with another key")
	return c
}

func etcdTable(w io.Writer, s *api.EtcdStatusResponse) {
	number := func(name string, n int64, text string) {
		if n != 0 {
			iostreams.Row(w, name, text)
		}
	}
	iostreams.Row(w, "MEMBER", s.Member)
	if s.Problem == "" {
		leader := "there is none"
		switch s.Leader {
		case s.Id:
			leader = "this member"
		case "":
		default:
			leader = s.Leader
		}
		iostreams.Row(w, "LEADER", leader)
		iostreams.Row(w, "VERSION", s.Version)
	} else {
		iostreams.Row(w, "PROBLEM", s.Problem)
	}
	number("REVISION", s.Revision, strconv.FormatInt(s.Revision, 10))
	number("RAFT", int64(s.RaftIndex), fmt.Sprintf("index %d, term %d", s.RaftIndex, s.RaftTerm))
	number("SIZE", s.Size, format.Size(s.Size))
	number("IN USE", s.Used, format.Size(s.Used)+", `orlopctl etcd defrag` returns "+format.Size(s.Size-s.Used))
	number("QUOTA", s.Quota, format.Size(s.Quota))
	if s.Leader != "" { // alarms are known only with a quorum
		iostreams.Row(w, "ALARMS", format.OrDash(strings.Join(s.Alarms, ", ")))
	}
	if s.Restored != nil {
		iostreams.Row(w, "RESTORED", s.Restored.At.AsTime().Format(time.RFC3339), restoredText(s.Restored)+", by "+s.Restored.By)
	}
	number("UNDO", s.UndoSize, "the data before the restore, "+format.Size(s.UndoSize)+": `orlopctl etcd restore --undo`")
}

// restoredText describes the restored data, and names the revision that it replaced.
func restoredText(r *api.EtcdRestored) string {
	text := fmt.Sprintf("revision %d, %s", r.Revision, format.Count(int(r.Keys), "key"))
	if r.Replaced != 0 {
		text += fmt.Sprintf(", in place of revision %d", r.Replaced)
	}
	return text
}

func etcdAlarms(ios *iostreams.Streams, conn *connect.Connector) error {
	return conn.Call(func(ctx context.Context, c *client.Client) error {
		answer, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
		if err != nil {
			return err
		}
		if answer.Problem != "" {
			return &exit.Error{Code: exit.Failure, Err: errors.New(answer.Problem), Hint: "`orlopctl services` and `orlopctl logs orchestrator-api` show more"}
		}
		if answer.Leader == "" {
			return &exit.Error{
				Code: exit.Failure, Err: errors.New("etcd: cannot list the alarms: etcd has no leader, and so no quorum"),
				Hint: "see `orlopctl etcd status`",
			}
		}
		return printAlarms(ios, answer.Alarms, "")
	})
}

func printAlarms(ios *iostreams.Streams, alarms []string, prefix string) error {
	if !ios.Human() {
		return ios.PrintPlain(struct {
			Alarms []string `json:"alarms"`
		}{append([]string{}, alarms...)})
	}
	for _, a := range alarms {
		ios.Println(prefix + a)
	}
	if len(alarms) == 0 {
		ios.Println("no alarm is raised")
	}
	return nil
}
