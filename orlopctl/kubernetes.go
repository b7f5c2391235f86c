package main

import (
	"context"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// suspendTimeout bounds a call for which the machine performs several steps. Each step has up to a
// minute.
const suspendTimeout = 4 * time.Minute

func kubernetesCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{
		Use:   "kubernetes",
		Short: "Repair a cluster whose API rejects requests",
		Long: "Repair a cluster whose API rejects requests: suspend the webhook, API service, converter or policy that\n" +
			"rejects them, and resume it when its backend works. `orlopctl health` names the object (extensions). These\n" +
			"commands work even while webhooks and policies reject all requests, and the audit log records them. The called\n" +
			"machine, a control-plane machine, stores the suspended object.",
	}
	c.AddCommand(suspendCommand(ios, conn), resumeCommand(ios, conn), suspendedCommand(ios, conn))
	return c
}

func suspendCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "suspend KIND NAME",
		Short: "Suspend an object that makes the API reject requests",
		Long: "Suspend an object of Kubernetes that makes the API reject requests: delete the object, and store it on the machine. KIND is one of\n" + suspendKinds() + ".\n" +
			"Of a customresourcedefinition only the converter is suspended. Write no custom resource of the definition until you resume it, because\n" +
			"fields of other versions would be lost.",
		Example:           "  orlopctl kubernetes suspend validatingwebhookconfiguration policy\n  orlopctl kubernetes suspend apiservice v1beta1.custom.metrics.k8s.io",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeSuspendKinds,
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.CallFor(suspendTimeout, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.Suspend(ctx, &api.SuspendRequest{Kind: args[0], Name: args[1]})
				if err != nil {
					return err
				}
				return ios.PrintNext(answer, func() error {
					o := answer.Object
					ios.Println(o.Kind + " " + o.Name + " is suspended; `orlopctl kubernetes resume " + o.Kind + " " + o.Name + "` restores it")
					return nil
				})
			})
		},
	}
}

func resumeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var discard bool
	c := &cobra.Command{
		Use:               "resume KIND NAME",
		Short:             "Resume a suspended object: create it again from the stored copy",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeSuspendKinds,
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.CallFor(suspendTimeout, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.Resume(ctx, &api.ResumeRequest{Kind: args[0], Name: args[1], Discard: discard})
				if err != nil {
					return err
				}
				return ios.PrintNext(answer, func() error {
					did := map[bool]string{true: "the stored copy is deleted", false: "is back"}[discard]
					ios.Println(answer.Object.Kind + " " + answer.Object.Name + ": " + did)
					return nil
				})
			})
		},
	}
	c.Flags().BoolVar(&discard, "discard", false, "delete the stored copy of the object, and do not create the object again")
	return c
}

func suspendedCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:         "suspended",
		Annotations: calls(api.Cluster_ListSuspended_FullMethodName),
		Short:       "List the suspended objects on this machine",
		Args:        cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.ListSuspended(ctx, &api.ListSuspendedRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) {
					iostreams.Row(w, "KIND", "NAME", "SINCE", "BY")
					for _, o := range answer.Objects {
						iostreams.Row(w, o.Kind, o.Name, format.Stamp(o.At), o.By)
					}
				})
			})
		},
	}
}

func suspendKinds() string {
	text := ""
	for i, k := range nodespec.SuspendKinds() {
		switch {
		case i == len(nodespec.SuspendKinds())-1:
			text += " and "
		case i > 0:
			text += ", "
		}
		text += k.Name
	}
	return text
}

func completeSuspendKinds(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var kinds []cobra.Completion
	if len(args) == 0 {
		for _, k := range nodespec.SuspendKinds() {
			kinds = append(kinds, k.Name)
		}
	}
	return kinds, cobra.ShellCompDirectiveNoFileComp
}
