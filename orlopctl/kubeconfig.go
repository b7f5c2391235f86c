package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/kubeconfig"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func kubeconfigCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var out, server string
	var ttl time.Duration
	var force bool
	c := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Get a certificate for the Kubernetes API and merge it into ~/.kube/config",
		Long: "Get a client certificate of a cluster administrator and merge it into $KUBECONFIG or ~/.kube/config, as the\n" +
			"current context. Other clusters in that file do not change. With --out, the command does not merge: it writes a\n" +
			"separate file, or with --out - to the standard output.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Cluster.Kubeconfig(ctx, &api.KubeconfigRequest{Server: server, Ttl: connect.DurationOf(ttl)})
				if err != nil {
					return err
				}
				return storeKubeconfig(ios, answer.Kubeconfig, out, force)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "write to this file instead of merging; - for the standard output")
	f.StringVar(&server, "server", "", "URL of the Kubernetes API in the kubeconfig (default: the first virtual address, or the endpoint if there is none)")
	f.DurationVar(&ttl, "ttl", 0, "how long the certificate is valid (default 24h, at most 720h)")
	flags.Positive(f, "ttl", &ttl)
	f.BoolVar(&force, "force", false, "replace the existing file of --out, or a cluster with the same name and another CA")
	return c
}

func storeKubeconfig(ios *iostreams.Streams, fresh []byte, out string, force bool) error {
	switch out {
	case "-":
		ios.Printf("%s", fresh)
		return nil
	case "":
		path, err := kubeconfig.Path()
		if err != nil {
			return err
		}
		current, err := kubeconfig.MergeFile(path, fresh, force)
		if err != nil {
			return err
		}
		ios.Printf("merged into %s; the current context is %s\n", path, current)
		return nil
	}
	if err := secretfile.Write(out, fresh, force); err != nil {
		return err
	}
	ios.Println("wrote " + out)
	return nil
}
