package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The wiring of the encryption of STATE and DATA.

// encryption is the access to the encrypted partitions and to their keys.
type encryption struct {
	crypt  *disk.Cryptsetup
	sealer *diskkey.Asker
}

// newEncryption makes the access. Before the first use, it starts no process.
func newEncryption(m *machine) encryption {
	start := m.processes.commands.reaper.Parser(supervise.Command{Args: []string{paths.Sealer}, Env: diskkey.Environment, UID: paths.UserProbe})
	sealer := &diskkey.Asker{Device: attest.Device, Log: attest.LogFile, Signatures: paths.PCRSignatures, Signer: paths.PCRKey, Start: start}
	return encryption{
		crypt:  &disk.Cryptsetup{RunCommand: m.processes.commands.reaper.RunCommand, Sealer: sealer, LoadModules: m.system.kernel.LoadModules},
		sealer: sealer,
	}
}

// endPhase ends the time in which the TPM releases the keys of the disks. An image without a key
// for PCR 11 has no such time. An error is severe: then a process with access to the TPM can get
// the keys.
func (e encryption) endPhase(ctx context.Context, console func(string)) {
	if _, err := os.Stat(paths.PCRKey); errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := e.sealer.EndPhase(ctx); err != nil {
		console("encryption: the TPM continues to release the keys of the disks: " + err.Error())
	}
}

// firstDiskConfig returns the disk configuration of a boot. Before STATE is open, only the files of
// the image are known: the recipients of its profile, or its configuration. The configuration on
// STATE does not matter: a formatted partition stays what it is. An invalid configuration of the
// image is reported later, when the machine adopts it.
func firstDiskConfig() (out disk.Config) {
	if text, err := os.ReadFile(paths.DiskRecipients); err == nil {
		out.Recipients = strings.Fields(string(text))
		return out
	}
	text, err := os.ReadFile(paths.EmbeddedConfig)
	if err != nil {
		return out
	}
	c, problems := config.Parse(paths.EmbeddedConfig, text)
	if len(problems) > 0 || !c.EncryptsDisk() {
		return out
	}
	for _, r := range c.Machine.Spec.Disk.Encryption.Recovery.Recipients {
		out.Recipients = append(out.Recipients, string(r))
	}
	return out
}

// recovery opens locked partitions for an operator.
type recovery struct{ m *machine }

// Locked returns the locked partitions, with their recovery keys in encrypted form.
func (r recovery) Locked(ctx context.Context) (all []*api.LockedVolume, err error) {
	locked, err := r.m.domains.disks.Locked(ctx)
	for _, v := range locked {
		all = append(all, &api.LockedVolume{Label: v.Label, Device: v.Device, Recipients: v.Recovery.Recipients, RecoveryKey: v.Recovery.Ciphertext})
	}
	return all, err
}

// Recover seals new keys for all locked partitions, and reboots.
func (r recovery) Recover(ctx context.Context, keys map[string]string, by string) error {
	locked, err := r.m.domains.disks.Locked(ctx)
	if err != nil {
		return err
	}
	if len(locked) == 0 {
		return errors.New("encryption: no partition is locked; nothing was changed")
	}
	parsed := map[string]diskkey.RecoveryKey{}
	for _, v := range locked {
		if parsed[v.Label], err = diskkey.ParseRecoveryKey(keys[v.Label]); err != nil {
			return fmt.Errorf("encryption: %s: %w; nothing was changed", v.Label, err)
		}
	}
	for _, v := range locked {
		if err := r.m.domains.encryption.crypt.Recover(ctx, diskkey.Volume{Device: v.Device, Label: v.Label}, parsed[v.Label]); err != nil {
			return fmt.Errorf("encryption: %w", err)
		}
	}
	return r.m.power.Shutdown(power.Request{To: power.Reboot, Why: "recovery of encrypted partitions, asked by " + by})
}

// checkUnlock returns an error if the TPM would not release the keys of the encrypted partitions
// after the boot of a boot image.
func checkUnlock(ctx context.Context, m *machine, image *os.File) error {
	sealed, err := m.domains.disks.SealedKeys(ctx)
	if err != nil || len(sealed) == 0 {
		return err
	}
	state, err := secureboot.ReadFirmware(bootenv.VariablesDir)
	if err != nil {
		return err
	}
	for _, s := range sealed {
		if err := m.domains.encryption.sealer.Predict(ctx, s, image, state.Enabled, state.DB, state.DBX); err != nil {
			return err
		}
	}
	return nil
}
