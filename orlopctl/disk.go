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

// wipeTime bounds the time in which a machine reads its disks and wipes a disk. Slow disks need
// most of this time.
const wipeTime = time.Minute

func diskWipeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var volume string
	var yes bool
	c := &cobra.Command{
		Use:         "wipe [DISK]",
		Annotations: calls(api.Machine_WipeDisk_FullMethodName),
		Short:       "Make a disk blank, or give up the data of a volume",
		Long: "Make a disk blank to create a volume on it. DISK is the path, the serial number or the WWID of the disk\n" +
			"(`orlopctl get disks`). With --volume, give up the data of a volume instead (`orlopctl get volumes`): the machine\n" +
			"wipes the partition of the volume and deletes its record of the volume, even if the disk is lost. Afterwards, a\n" +
			"document with the same name creates a new volume. The machine rejects the system disk, mounted volumes and disks\n" +
			"with volumes: remove the document of a volume first. The machine overwrites only the beginning and the end of the\n" +
			"disk or partition, so other tools can still read most of the data. You must type the machine's name first, unless\n" +
			"--yes is given.",
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
