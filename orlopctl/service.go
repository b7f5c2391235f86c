package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

func servicesCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use: "services", Short: "List the services and their components", Args: cobra.NoArgs,
		Annotations: calls(api.Service_List_FullMethodName),
		RunE:        func(*cobra.Command, []string) error { return listServices(ios, conn) },
	}
}

func listServices(ios *iostreams.Streams, conn *connect.Connector) error {
	return conn.Call(func(ctx context.Context, c *client.Client) error {
		answer, err := c.Service.List(ctx, &api.ListServicesRequest{})
		if err != nil {
			return err
		}
		return ios.Print(answer, func(w *tabwriter.Writer) { servicesTable(w, answer.Services) })
	})
}

func servicesTable(w *tabwriter.Writer, services []*api.ServiceStatus) {
	iostreams.Row(w, "SERVICE", "STATE", "PID", "RESTARTS", "SINCE", "DETAIL")
	for _, s := range services {
		pid := "-"
		if s.Pid != 0 {
			pid = strconv.Itoa(int(s.Pid))
		}
		iostreams.Row(w, s.Name, s.State, pid, strconv.Itoa(int(s.Restarts)), format.Age(s.Since), s.Detail)
		for _, c := range s.Components {
			if c.Name == "" || c.Name == s.Name {
				continue // the process itself; the row of the service shows it
			}
			state := "ready"
			switch {
			case !c.Ready:
				state = "not ready"
			case strings.HasPrefix(c.Detail, nodespec.ProblemPrefix):
				state = "problem"
			}
			// The marker shows that the component belongs to the service above it. Leading tabs or
			// blanks would be removed.
			iostreams.Row(w, "└ "+c.Name, state, "-", "-", format.Age(c.Since), c.Detail)
		}
	}
}

func serviceCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "service", Short: "Restart a service"}
	var kill bool
	restart := &cobra.Command{
		Use: "restart NAME", Short: "Restart a service", Args: cobra.ExactArgs(1),
		Annotations:       calls(api.Service_Restart_FullMethodName),
		ValidArgsFunction: completed(conn, serviceNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Service.Restart(ctx, &api.RestartServiceRequest{Name: args[0], Kill: kill})
				if err != nil {
					return exit.WithHint(err, "`orlopctl services` lists them")
				}
				if ios.Human() {
					ios.Println(args[0] + " restarts")
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
	restart.Flags().BoolVar(&kill, "kill", false, "end the service with SIGKILL, as a crash would, to rehearse a failure")
	c.AddCommand(restart)
	return c
}

func logsCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var follow bool
	var tail uint32
	c := &cobra.Command{
		Use: "logs [SERVICE]", Short: "Show the log of a service, or the list of services",
		Annotations: calls(api.Log_Service_FullMethodName),
		Long: "Show the log of a service, or without SERVICE the list of services. A component (└ in `orlopctl services`) has no\n" +
			"log of its own. For the name of a component, the command shows the log of its service.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completed(conn, partNames),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listServices(ios, conn)
			}
			return conn.Stream(func(ctx context.Context, c *client.Client) error {
				stream, err := c.Log.Service(ctx, &api.ServiceLogRequest{Service: args[0], Follow: follow, Tail: tail})
				if err != nil {
					return err
				}
				return exit.WithHint(connect.Each(stream.Recv, func(l *api.LogLine) error { return printLine(ios, l) }), "`orlopctl services` lists them")
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for new lines and print them")
	c.Flags().Uint32Var(&tail, "tail", 0, "print only the last lines, at most this number (default: all retained lines)")
	flags.Positive(c.Flags(), "tail", &tail)
	return c
}

func dmesgCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	request := &api.KernelLogRequest{}
	c := &cobra.Command{
		Use: "dmesg", Short: "Show the kernel log",
		Annotations: calls(api.Log_Kernel_FullMethodName),
		Long: "Show the kernel log of this boot, of the previous boot (--before), or of the last crash (--crash). The machine\n" +
			"retains at least the last 256 KiB of the log of the previous boot, but a power cut loses the last five seconds.\n" +
			"The log of a crash is the part that the kernel could save in the firmware; the firmware of some machines does not\n" +
			"support that.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Stream(func(ctx context.Context, c *client.Client) error {
				stream, err := c.Log.Kernel(ctx, request)
				if err != nil {
					return err
				}
				return connect.Each(stream.Recv, func(l *api.LogLine) error { return printKernelLine(ios, l) })
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&request.Follow, "follow", "f", false, "wait for new lines and print them")
	f.Uint32Var(&request.Tail, "tail", 0, "print only the last lines, at most this number (default: all retained lines)")
	flags.Positive(f, "tail", &request.Tail)
	f.BoolVar(&request.PreviousBoot, "before", false, "show the log of the previous boot")
	f.BoolVar(&request.Crash, "crash", false, "show the log that the kernel saved at its last crash")
	c.MarkFlagsMutuallyExclusive("follow", "before", "crash")
	return c
}

func printLine(ios *iostreams.Streams, line *api.LogLine) error {
	return ios.PrintNext(line, func() error {
		ios.Println(logLine(line))
		return nil
	})
}

func logLine(line *api.LogLine) string {
	return format.Stamp(line.Time) + "  " + format.Clean(line.Text)
}

// priorities are the names of syslog's severities, from 0 (RFC 5424, section 6.2.1).
var priorities = [...]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

func printKernelLine(ios *iostreams.Streams, line *api.LogLine) error {
	return ios.PrintNext(line, func() error {
		ios.Println(kernelLine(line))
		return nil
	})
}

func kernelLine(line *api.LogLine) string {
	priority := strconv.Itoa(int(line.Priority))
	if int(line.Priority) < len(priorities) {
		priority = priorities[line.Priority]
	}
	return fmt.Sprintf("%s  %-7s  %s", format.Stamp(line.Time), priority, format.Clean(line.Text))
}
