package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func versionCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var own bool
	c := &cobra.Command{
		Use: "version", Short: "Show the versions of the machine and of this tool", Args: cobra.NoArgs,
		Annotations: calls(api.Machine_Version_FullMethodName),
		RunE: func(*cobra.Command, []string) error {
			if own {
				ios.Println("orlopctl " + toolVersion())
				return nil
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Machine.Version(ctx, &api.VersionRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) { versionTable(w, answer) })
			})
		},
	}
	c.Flags().BoolVar(&own, "client", false, "show only the version of this tool, without a call to a machine")
	return c
}

func versionTable(w *tabwriter.Writer, v *api.VersionResponse) {
	iostreams.Row(w, "machine", format.OrDash(v.Machine))
	from := "slot " + format.OrDash(v.Slot)
	if v.BootMedium != "" {
		from = "from " + v.BootMedium + ", not installed"
	}
	iostreams.Row(w, "orlop", v.Version+" (profile "+format.OrDash(v.Profile)+", "+from+", built "+format.Stamp(v.Built)+")")
	if v.Epoch > 0 {
		iostreams.Row(w, "epoch", fmt.Sprint(v.Epoch))
	}
	iostreams.Row(w, "kubernetes", v.Kubernetes)
	iostreams.Row(w, "kernel", v.Kernel)
	iostreams.Row(w, "pinned", "Debian archive of "+day(v.DebianArchive)+", newest Go module of "+day(v.NewestModule))
	iostreams.Row(w, "orlopctl", toolVersion())
}

// day returns the date of a time, or "an unknown time" for nil.
func day(t *timestamppb.Timestamp) string {
	if t == nil {
		return "an unknown time"
	}
	return t.AsTime().Format(time.DateOnly)
}

// toolVersion returns the version that the Go toolchain recorded in this build.
func toolVersion() string {
	version := "(unknown)"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	return version + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
