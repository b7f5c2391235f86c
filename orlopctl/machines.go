package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/health"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func machinesCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var machineTimeout time.Duration
	c := &cobra.Command{
		Use:   "machines",
		Short: "List the machines of the cluster, also while Kubernetes is down",
		Long: "List the machines of the cluster: name, role, release, Kubernetes, whether all checks of the machine pass, and a message. The called\n" +
			"control-plane machine calls each machine, so the list does not depend on Kubernetes. For a machine that does not answer, the list shows\n" +
			"the reason. WANTED is the release that the machine object wants (Cluster.spec.kubernetes.machineObjects), as the machine has read it\n" +
			"last. `orlopctl health --cluster` shows the problems with their remedies.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := health.Ask(ctx, c, machineTimeout)
				if err != nil {
					return err
				}
				if ios.Human() {
					return health.WriteMachines(ios.Out, answer)
				}
				return printMachines(ios, answer)
			})
		},
	}
	registerMachineTimeout(c.Flags(), &machineTimeout)
	return c
}

// printMachines prints the machines in JSON or YAML. It leaves out the rest of the answer.
func printMachines(ios *iostreams.Streams, answer *api.ClusterHealthResponse) error {
	machines := []json.RawMessage{}
	for _, m := range answer.Machines {
		text, err := iostreams.ToJSON(m)
		if err != nil {
			return err
		}
		machines = append(machines, text)
	}
	return ios.PrintPlain(struct {
		Cluster  string            `json:"cluster"`
		Machines []json.RawMessage `json:"machines"`
	}{answer.Cluster, machines})
}
