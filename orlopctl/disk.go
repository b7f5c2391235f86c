package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/diskkey"
)

func diskCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "disk", Short: "Erase disks and volumes, and open encrypted partitions"}
	c.AddCommand(diskWipeCommand(ios, conn), diskRecoverCommand(ios, conn))
	return c
}

// recoverTime bounds the time in which a machine seals new keys for its partitions. The TPM needs
// most of this time.
const recoverTime = 2 * time.Minute

func diskRecoverCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var keys []string
	c := &cobra.Command{
		Use:         "recover --identity KEY...",
		Annotations: calls(api.Machine_Recover_FullMethodName),
		Short:       "Open the encrypted partitions of a machine that waits for its recovery keys",
		Long: "Open the encrypted partitions of a machine that waits, because its TPM has not released the keys: for example after\n" +
			"a change of the firmware or of the keys of Secure Boot, or with another mainboard. The machine sends its recovery\n" +
			"keys, which are encrypted to Machine.spec.disk.encryption.recovery. This computer decrypts them with --identity: a\n" +
			"file of `age-keygen`, or an SSH private key. The machine checks them, its TPM seals new keys to the present state of\n" +
			"the firmware, and the machine reboots. Before, verify with `orlopctl attest` that the expected version runs: the\n" +
			"machine gets the recovery keys.",
		Example: "  orlopctl disk recover --identity operator.key",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			readers, err := identities(keys)
			if err != nil {
				return err
			}
			return conn.CallFor(recoverTime, func(ctx context.Context, c *client.Client) error {
				locked, err := c.Machine.GetRecovery(ctx, &api.GetRecoveryRequest{})
				if err != nil {
					return err
				}
				request, labels := &api.RecoverRequest{}, []string(nil)
				for _, v := range locked.Volumes {
					key, err := diskkey.Recovery{Recipients: v.Recipients, Ciphertext: v.RecoveryKey}.Decrypt(readers...)
					if err != nil {
						return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %w", v.Label, err), Hint: "--identity names a file with a key for it; repeatable"}
					}
					request.Keys = append(request.Keys, &api.RecoveryKey{Label: v.Label, Key: string(key)})
					labels = append(labels, v.Label)
				}
				answer, err := c.Machine.Recover(ctx, request)
				if err != nil {
					return err
				}
				if ios.Human() {
					ios.Println(strings.Join(labels, " and ") + ": the TPM has sealed new keys; the machine reboots")
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
	c.Flags().StringArrayVarP(&keys, "identity", "i", nil, "file with a key that decrypts the recovery keys; repeatable")
	must(c.MarkFlagRequired("identity"))
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
