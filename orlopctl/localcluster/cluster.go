// Package localcluster creates, starts and destroys clusters of QEMU machines on this computer, for
// `orlopctl cluster`.
//
// plan.go computes the machines, their names and their ports. The package vm runs the machines.
package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

// qemuTimeout bounds the start or the end of the QEMU processes.
const qemuTimeout = 2 * time.Minute

// defaultCluster is the name of a local cluster if the command line names none.
const defaultCluster = "dev"

// Command returns the command `cluster` with the commands for local clusters.
func Command(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Create local clusters in QEMU; export, copy and compare clusters",
		Long: "Create local clusters in QEMU; export, copy and compare clusters. `create`, `status`, `start` and `destroy` handle local machines in\n" +
			"QEMU. These machines have their own network without access to other networks, and run in the background until `destroy`. `export`\n" +
			"writes any cluster to a file without keys, `create -f` builds the same cluster on other machines, and `diff` compares clusters.",
	}
	c.AddCommand(clusterCreateCommand(ios, conn), clusterStatusCommand(ios, conn), clusterStartCommand(ios, conn), clusterDestroyCommand(ios, conn), clusterRunnerCommand())
	return c
}

// clusterRunnerCommand returns the command of the background process of a local cluster. vm.Launch
// starts this process with the arguments "-dir DIRECTORY".
func clusterRunnerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "runner", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 || args[0] != "-dir" {
				return exit.Usagef("cluster runner: cannot run: expected -dir DIRECTORY")
			}
			ctx, stop := connect.Interruptible()
			defer stop()
			return vm.Run(ctx, args[1])
		},
	}
}

// runnerCommand returns the command line of the background process, without its arguments.
func runnerCommand() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cluster: cannot find this program: %w", err)
	}
	return []string{self, "cluster", "runner"}, nil
}

// clustersDir returns the directory with the local clusters, a directory for each. It is beside the
// file of contexts.
func clustersDir() (string, error) {
	contexts, err := contexts.Path()
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(filepath.Join(filepath.Dir(contexts), "clusters"))
	if err != nil {
		return "", fmt.Errorf("cluster: cannot find its directory: %w", err)
	}
	return dir, nil
}

func clusterDir(args []string) (name, dir string, err error) {
	name = defaultCluster
	if len(args) > 0 {
		name = args[0]
	}
	if name == "" || strings.ContainsAny(name, "/.\\") {
		return "", "", exit.Usagef("cluster %q: cannot use the name: expected letters, digits and -", name)
	}
	all, err := clustersDir()
	return name, filepath.Join(all, name), err
}

func clusterStatusCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "List the local clusters and their machines", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ctx, cancel := context.WithTimeout(context.Background(), conn.Timeout(connect.DefaultTimeout))
			defer cancel()
			all, err := localClusters(ctx)
			if err != nil {
				return err
			}
			if !ios.Human() {
				return ios.PrintPlain(all)
			}
			return iostreams.DrawTable(ios.Out, func(w *tabwriter.Writer) {
				iostreams.Row(w, "CLUSTER", "MACHINE", "STATE", "UP", "API", "KUBERNETES", "CONSOLE")
				for _, c := range all {
					for _, m := range c.Machines {
						iostreams.Row(w, c.Name, m.Name, m.State, m.Up, m.API, m.Kubernetes, m.Console)
					}
				}
			})
		},
	}
}

// localCluster is a local cluster as `cluster status` prints it.
type localCluster struct {
	Name     string         `json:"name"`
	Machines []localMachine `json:"machines"`
}

type localMachine struct {
	Name       string `json:"name"`
	State      string `json:"state"` // "on", "off", or the reason why the machine ended
	Up         string `json:"up"`
	API        string `json:"api"`
	Kubernetes string `json:"kubernetes"`
	Console    string `json:"console"`
}

func localClusters(ctx context.Context) ([]localCluster, error) {
	all, err := clustersDir()
	if err != nil {
		return nil, err
	}
	directories, err := os.ReadDir(all)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("clusters: cannot list: %w", err)
	}
	clusters := []localCluster{}
	for _, directory := range directories {
		c, err := readCluster(ctx, directory.Name(), filepath.Join(all, directory.Name()))
		if err != nil { // list the other clusters nevertheless
			c.Machines = noMachine("unknown: " + exit.Message(err))
		}
		clusters = append(clusters, c)
	}
	return clusters, nil
}

// noMachine returns the row for a cluster with unknown machines. state is the reason.
func noMachine(state string) []localMachine {
	return []localMachine{{Name: "-", State: state, Up: "-", API: "-", Kubernetes: "-", Console: "-"}}
}

func readCluster(ctx context.Context, name, dir string) (localCluster, error) {
	c := localCluster{Name: name}
	running, err := vm.Connect(dir)
	if errors.Is(err, vm.ErrNotRunning) || errors.Is(err, fs.ErrNotExist) {
		spec, err := vm.ReadSpec(dir)
		if err != nil {
			c.Machines = noMachine("incomplete")
			return c, nil
		}
		for _, m := range spec.Machines {
			c.Machines = append(c.Machines, localMachine{Name: m.Name, State: "off", Up: "-", API: "-", Kubernetes: "-", Console: filepath.Join(dir, m.Name, "console.log")})
		}
		return c, nil
	}
	if err != nil {
		return c, err
	}
	status, err := running.Status(ctx)
	if err != nil {
		return c, err
	}
	for _, m := range status.Machines {
		shown := localMachine{
			Name: m.Name, State: "on", Up: format.ShortDuration(time.Since(m.PoweredOn)), Console: m.Console,
			API: format.OrDash(status.Forward(m.Name, paths.PortApid)), Kubernetes: format.OrDash(status.Forward(m.Name, paths.PortKubernetes)),
		}
		if !m.Running {
			shown.State, shown.Up = "off", "-"
			if m.Exit != nil {
				shown.State = m.Exit.String()
			}
		}
		c.Machines = append(c.Machines, shown)
	}
	return c, nil
}

func clusterStartCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use: "start [NAME]", Short: "Switch the machines of a local cluster on again, with their present disks", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name, dir, err := clusterDir(args)
			if err != nil {
				return err
			}
			runner, err := runnerCommand()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), conn.Timeout(qemuTimeout))
			defer cancel()
			running, err := vm.Resume(ctx, dir, runner...)
			if err != nil {
				return exit.WithHint(err, "`orlopctl cluster status` lists the clusters")
			}
			status, err := running.Status(ctx)
			if err != nil {
				return err
			}
			// The first machine keeps its ports. The other machines get new ports, so their
			// contexts must change.
			own, err := gen.ReadSecrets(filepath.Join(dir, "secrets.yaml"))
			if err == nil {
				err = moveContexts(name, own, status)
			}
			if err != nil {
				ios.Errorln("the contexts of " + name + " stay as they are: " + exit.Message(err))
			}
			ios.Println("the machines of " + name + " are on; `orlopctl --context " + name + " health` waits for them")
			return nil
		},
	}
}

func clusterDestroyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use: "destroy [NAME]", Short: "Switch the machines of a local cluster off, and remove their disks, contexts and files", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name, dir, err := clusterDir(args)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), conn.Timeout(qemuTimeout))
			defer cancel()
			if _, err := os.Stat(dir); err != nil {
				return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("cluster %q: cannot destroy: it does not exist", name), Hint: "`orlopctl cluster status` lists them"}
			}
			// secrets.yaml identifies the contexts of the cluster, and is deleted with the
			// cluster's directory. It is written before any context. If it is missing, the cluster
			// has no contexts.
			own, err := gen.ReadSecrets(filepath.Join(dir, "secrets.yaml"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				ios.Errorln("the contexts of " + name + " stay: " + exit.Message(err))
			}
			// The contexts are removed before the directory: if the contexts or the kubeconfig
			// cannot be changed, the command can be repeated.
			if own != nil {
				if err := removeClusterContexts(name, own); err != nil {
					return err
				}
			}
			if err := vm.Destroy(ctx, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			// A creation that failed early has left a directory without a cluster.
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("cluster %s: cannot remove its directory: %w", name, err)
			}
			ios.Println("the cluster " + name + " is gone")
			return nil
		},
	}
}
