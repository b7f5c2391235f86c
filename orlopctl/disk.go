package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/sanitize"
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
	var yes, newState bool
	c := &cobra.Command{
		Use:         "recover --identity KEY...",
		Annotations: calls(api.Machine_Recover_FullMethodName),
		Short:       "Open the encrypted partitions of a machine that waits for its recovery keys",
		Long: "Open the encrypted partitions of a machine that waits, because its TPM has not released the keys: for example after\n" +
			"a change of the firmware or of the keys of Secure Boot, or with another mainboard. The machine sends its recovery\n" +
			"keys, which are encrypted to Machine.spec.disk.encryption.recovery. This computer decrypts them with --identity, a\n" +
			"file of `age-keygen`. The machine checks them, its TPM seals new keys to the present state of the firmware, and the\n" +
			"machine reboots. The machine gets the recovery keys, so first verify with `orlopctl attest --ek` that it is the\n" +
			"expected machine with the expected version. Without --ek or --ek-ca, a virtual machine of an attacker passes, too.\n" +
			"You must type \"yes\" first, unless --yes is given.\n\n" +
			"The recovery key of DATA names the STATE of its machine. The machine refuses another STATE, because an attacker can\n" +
			"make one to which the machine would bind DATA. If you yourself have erased STATE, pass --new-state.",
		Example: "  orlopctl disk recover --identity operator.key",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			readers, err := identities(keys)
			if err != nil {
				return err
			}
			return conn.CallFor(typingTime+recoverTime, func(ctx context.Context, c *client.Client) error {
				locked, err := c.Machine.GetRecovery(ctx, &api.GetRecoveryRequest{})
				if err != nil {
					return err
				}
				printable(locked.Volumes)
				request, err := decryptRecovery(locked.Volumes, readers)
				if err == nil && !yes && len(request.Keys) > 0 {
					err = confirmRecovery(ctx, ios, locked.Volumes, newState)
				}
				if err != nil {
					return err
				}
				request.NewState = newState
				answer, err := c.Machine.Recover(ctx, request)
				if err != nil {
					return err
				}
				if ios.Human() {
					ios.Println(labelsOf(locked.Volumes) + ": the TPM has sealed new keys; the machine reboots")
					if newState {
						ios.Println("If DATA stays locked then, repeat this command.")
					}
					return nil
				}
				return ios.Print(answer, nil)
			})
		},
	}
	c.Flags().StringArrayVarP(&keys, "identity", "i", nil, "file with a key that decrypts the recovery keys; repeatable")
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	c.Flags().BoolVar(&newState, "new-state", false, "bind DATA to the present STATE, because you have erased the former one")
	must(c.MarkFlagRequired("identity"))
	return c
}

// printable makes the texts of volumes printable, because the machine is not verified yet.
func printable(volumes []*api.LockedVolume) {
	for _, v := range volumes {
		for _, text := range []*string{&v.Label, &v.Device, &v.Uuid} {
			*text = sanitize.ASCII(*text, maxText)
		}
		for i := range v.Recipients {
			v.Recipients[i] = sanitize.ASCII(v.Recipients[i], maxRecipient)
		}
	}
}

// maxText is the maximum length of a label, a path or a UUID, and maxRecipient that of a public key
// of age, in characters.
const (
	maxText      = 128
	maxRecipient = 4 << 10
)

// decryptRecovery decrypts the recovery keys. It fails if a key is that of another volume: a
// hostile machine can send the encrypted key of another machine to get it decrypted.
func decryptRecovery(volumes []*api.LockedVolume, readers []age.Identity) (*api.RecoverRequest, error) {
	request := &api.RecoverRequest{}
	for _, v := range volumes {
		content, err := diskkey.Recovery{Recipients: v.Recipients, Ciphertext: v.RecoveryKey}.Decrypt(readers...)
		if err != nil {
			return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: %w", v.Label, err), Hint: "--identity names a file with a key for it; repeatable"}
		}
		if content.Label != v.Label || content.UUID.String() != v.Uuid {
			return nil, &exit.Error{
				Code: exit.Failure, Err: fmt.Errorf("the machine calls its volume %s (%s), and has sent the recovery key of %s (%s); nothing was sent", v.Label, v.Uuid, content.Label, content.UUID),
				Hint: "do not trust this machine before you have verified it (`orlopctl attest --ek`)",
			}
		}
		request.Keys = append(request.Keys, &api.RecoveryKey{Label: v.Label, Key: string(content.Key), Binding: content.Binding})
	}
	return request, nil
}

// confirmRecovery shows the volumes, and prompts for "yes".
func confirmRecovery(ctx context.Context, ios *iostreams.Streams, volumes []*api.LockedVolume, newState bool) error {
	if ios.Node != "" {
		return exit.Usagef("cannot prompt for confirmation for several machines; pass --yes")
	}
	for _, v := range volumes {
		ios.Errorln(fmt.Sprintf("The machine gets the recovery key of %s (%s, UUID %s).", v.Label, v.Device, v.Uuid))
	}
	if newState {
		ios.Errorln("It binds DATA to its present STATE. Continue only if you yourself have erased the former STATE.")
	}
	ios.Errorln("First verify the machine: `orlopctl attest --ek` with the recorded fingerprint of its TPM (or --ek-ca). Without it, a virtual\n" +
		"machine of an attacker passes. Only a changed mainboard explains another TPM.")
	_, _ = fmt.Fprint(ios.Err, `Type "yes" to send: `)
	typed, err := readLine(ctx, ios.In)
	if err == nil && typed != "yes" {
		err = exit.Usagef("not sent: you typed %q", typed)
	}
	return err
}

func labelsOf(volumes []*api.LockedVolume) string {
	var labels []string
	for _, v := range volumes {
		labels = append(labels, v.Label)
	}
	return strings.Join(labels, " and ")
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
