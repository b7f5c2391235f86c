package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/clusterfile"
	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/localcluster"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// clusterCommand returns the command `cluster`: the commands for local clusters, and `export` and
// `diff` for all clusters.
func clusterCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := localcluster.Command(ios, conn)
	c.AddCommand(clusterExportCommand(ios, conn), clusterDiffCommand(ios, conn))
	return c
}

func clusterExportCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var out string
	var force bool
	c := &cobra.Command{
		Use:   "export",
		Short: "Write the cluster to a file, without keys",
		Long: "Write the cluster to a file: its machines with their settings, the Cluster document and the add-ons. The file contains no keys. Each\n" +
			"secret of the configuration, such as the password of a registry, is replaced with (redacted), and each address of a machine with\n" +
			"${NAME}. All machines must answer. `orlopctl cluster create -f` builds the same cluster on other machines, and\n" +
			"`orlopctl cluster diff` compares the file with a cluster.",
		Example: "  orlopctl cluster export --out shop.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			file, err := fetchCluster(conn, ios)
			if err != nil {
				return err
			}
			text, err := file.Marshal()
			if err != nil {
				return err
			}
			if redacted := file.Redacted(); len(redacted) > 0 {
				ios.Errorln("the file lacks secrets, which `orlopctl cluster create -f` needs: " + format.Clean(strings.Join(redacted, ", ")))
			}
			if out == "-" {
				ios.Printf("%s", text)
				return nil
			}
			if err := secretfile.Write(out, text, force); err != nil {
				return err
			}
			ios.PrintProgress("wrote " + out + ": " + format.Count(len(file.Machines), "machine"))
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "-", "file to write; - for the standard output")
	c.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return c
}

func clusterDiffCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two clusters, field by field",
		Long: "Compare two clusters, field by field. A and B are contexts, or files of `orlopctl cluster export`; a name with / or . is a file.\n" +
			"A machine of A is compared with the machine of B that has the same name. Addresses and keys are not compared, and secrets are not\n" +
			"shown. The exit status is 0 for equal clusters, 1 for a difference, and greater than 1 for an error.",
		Example:           "  orlopctl cluster diff shop copy\n  orlopctl cluster diff shop.yaml shop",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			var files [2]*clusterfile.File
			for i, name := range args {
				var err error
				if files[i], err = readCluster(conn, ios, name); err != nil {
					return trouble(fmt.Errorf("%s: %w", name, err))
				}
			}
			lines, err := clusterfile.Diff(files[0], files[1])
			if err != nil {
				return trouble(err)
			}
			if err := printDifferences(ios, lines); err != nil {
				return err
			}
			if len(lines) > 0 {
				return &exit.Error{Code: exit.Failure, Err: fmt.Errorf("the clusters differ: %s", format.Count(len(lines), "difference"))}
			}
			return nil
		},
	}
}

// trouble replaces exit status 1 of an error with 2, because 1 means that the clusters differ.
func trouble(err error) error {
	if code, hint := exit.Code(err); code == exit.Failure {
		return &exit.Error{Code: exit.Usage, Err: errors.New(exit.Message(err)), Hint: hint}
	}
	return err
}

// printDifferences prints the lines of a comparison.
func printDifferences(ios *iostreams.Streams, lines []string) error {
	if !ios.Human() {
		return ios.PrintPlain(struct {
			Differences []string `json:"differences"`
		}{append([]string{}, lines...)})
	}
	for _, line := range lines {
		ios.Println(format.Clean(line))
	}
	return nil
}

// readCluster returns the cluster of a context or of a file with this name.
func readCluster(conn *connect.Connector, ios *iostreams.Streams, name string) (*clusterfile.File, error) {
	if !strings.ContainsAny(name, "/.") {
		known, err := contexts.Load()
		if err != nil {
			return nil, err
		}
		if _, exists := known.Contexts[name]; exists {
			return fetchCluster(conn.ForContext(name, ios), ios)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: errors.New("neither a context nor a file"), Hint: "`orlopctl config contexts` lists the contexts"}
	}
	file, err := clusterfile.Parse(text)
	if err != nil {
		return nil, exit.Usagef("cannot use: %w", err)
	}
	return file, nil
}

// fetchCluster reads the configurations of all machines of a cluster, through a relay on the
// machine of the endpoint. It fails if a machine does not answer.
func fetchCluster(conn *connect.Connector, ios *iostreams.Streams) (*clusterfile.File, error) {
	endpoint, err := conn.Machine()
	if err != nil {
		return nil, err
	}
	if endpoint.CA == nil {
		return nil, connect.ErrOnlyFingerprint("cluster")
	}
	var all *api.ClusterHealthResponse
	if err := conn.Call(func(ctx context.Context, c *client.Client) error {
		all, err = health.Ask(ctx, c, 0)
		return err
	}); err != nil {
		return nil, err
	}
	for _, m := range all.Machines {
		if m.Problem != "" {
			return nil, &exit.Error{Code: exit.Unreachable, Err: fmt.Errorf("machine %s: its configuration is unknown: %s", format.Clean(m.Name+" ("+m.Address+")"), format.Clean(m.Problem)), Hint: "start it, or remove it from the cluster (`orlopctl health --cluster`)"}
		}
	}
	relay := connect.NewRelay(endpoint)
	defer relay.Close()
	var machines []clusterfile.Exported
	for _, m := range all.Machines {
		one := clusterfile.Exported{Name: m.Name, Role: m.Role, Address: m.Address}
		if err := connect.NewRelayed(ios, relay, m.Address).Call(func(ctx context.Context, c *client.Client) error {
			answer, err := c.Config.Get(ctx, &api.GetConfigRequest{})
			one.Documents = answer.GetDocuments()
			return err
		}); err != nil {
			return nil, fmt.Errorf("machine %s: %w", m.Name, err)
		}
		machines = append(machines, one)
	}
	return clusterfile.New(machines)
}
