package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func diskCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "disk", Short: "Erase disks and volumes other than the system disk"}
	c.AddCommand(diskWipeCommand(ios, conn))
	return c
}

// wipeTime bounds the time in which a machine reads its disks, which can be slow, and wipes a disk.
const wipeTime = time.Minute

func diskWipeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var volume string
	var yes bool
	c := &cobra.Command{
		Use:         "wipe [DISK]",
		Annotations: calls(api.Machine_WipeDisk_FullMethodName),
		Short:       "Make a disk blank, or give up the data of a volume",
		Long: "Make a disk blank, so that a volume can be created on it, by its path, serial number or WWID (`orlopctl get\n" +
			"disks`); or with --volume give up the data of a volume (`orlopctl get volumes`): its partition is wiped and\n" +
			"its record dropped, also if its disk is missing for good. Afterwards a document with this name creates a new\n" +
			"volume. The system disk, mounted volumes and disks with volumes are refused: remove the document of a volume\n" +
			"first. Only the ends of the disk or partition are overwritten, so most of the data can still be read with\n" +
			"other tools. You must type the machine's name first, unless --yes is given.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			request, what := &api.WipeDiskRequest{Volume: volume}, "give up the data of volume "+volume
			if len(args) == 1 {
				request.Disk, what = args[0], "erase disk "+args[0]
			}
			if (request.Disk == "") == (volume == "") {
				return exit.Usagef("disk wipe: name either a disk or --volume")
			}
			return conn.CallFor(typingTime+wipeTime, func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := confirm(ctx, ios, c, what); err != nil {
						return err
					}
				}
				answer, err := c.Machine.WipeDisk(ctx, request)
				if err != nil {
					return err
				}
				if ios.Human() {
					ios.Println(answer.Done)
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
	c.Flags().StringVar(&volume, "volume", "", "name of the volume to give up")
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	return c
}
