package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/uevent"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The wiring of the encryption of STATE and DATA.

// encryption is the access to the encrypted partitions and to their keys.
type encryption struct {
	crypt  *disk.Cryptsetup
	sealer *diskkey.Asker
	// ended is true from the end of the phase on. A TPM that the kernel finds later is closed at
	// once. closed is true after the TPM has confirmed the end of the phase.
	ended, closed *atomic.Bool
	// demanded reports whether the image demands that STATE and DATA are encrypted.
	demanded func() bool
}

// newEncryption makes the access. Before the first use, it starts no process.
func newEncryption(m *machine) encryption {
	start := m.processes.commands.reaper.Parser(supervise.Command{Args: []string{paths.Sealer}, Env: diskkey.Environment, UID: paths.UserProbe})
	sealer := &diskkey.Asker{Device: attest.Device, Log: attest.LogFile, Signatures: paths.PCRSignatures, Signer: paths.PCRKey, Start: start}
	return encryption{
		crypt: &disk.Cryptsetup{
			RunCommand: m.processes.commands.reaper.RunCommand, Sealer: sealer, LoadModules: m.system.kernel.LoadModules,
			MaySeal: func() error { return secureboot.CheckEnforced(bootenv.VariablesDir) },
		},
		sealer: sealer, ended: new(atomic.Bool), closed: new(atomic.Bool),
		demanded: sync.OnceValue(func() bool { return len(imageDiskConfig(paths.EmbeddedConfig, paths.DiskRecipients).Recipients) > 0 }),
	}
}

// endPhase ends the time in which the TPM releases the keys of the disks. An image without a key
// for PCR 11 has no such time. The file with the signatures does not decide, because an attacker
// can prevent that the boot loader passes it on. After an error, no service may start: a process
// with access to the TPM could get the keys. After a success, further calls do nothing.
func (e encryption) endPhase(ctx context.Context) error {
	e.ended.Store(true)
	if e.closed.Load() {
		return nil
	}
	if _, err := os.Stat(e.sealer.Signer); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	switch err := e.sealer.EndPhase(ctx); {
	case errors.Is(err, attest.ErrNone): // the kernel can still find a TPM
		return nil
	case err != nil:
		return fmt.Errorf("encryption: the TPM continues to release the keys of the disks: %w; if the TPM is broken, disable it in the setup of the firmware", err)
	}
	e.closed.Store(true)
	return nil
}

// deviceAdded ends the phase on a TPM that the kernel has found after the end of the phase. It
// calls failed if that fails. A nil event means that events were lost.
func (e encryption) deviceAdded(ctx context.Context, event *uevent.Event, failed func(error)) {
	if event != nil && event.Subsystem != "tpmrm" || !e.ended.Load() {
		return
	}
	if event != nil {
		e.closed.Store(false) // it can be another TPM
	}
	panics.Go("the TPM", func() {
		if err := e.endPhase(ctx); err != nil {
			failed(err)
		}
	})
}

// imageDiskConfig returns the disk configuration of a boot. Before STATE is open, only the files of
// the image are known: its configuration, or the recipients of its profile. A choice in the
// configuration decides. The configuration on STATE does not matter: a formatted partition stays
// what it is. A file that cannot be used is no permission to format partitions without encryption.
func imageDiskConfig(document, recipients string) disk.Config {
	text, err := os.ReadFile(document)
	if err == nil {
		c, problems := config.Parse(document, text)
		if len(problems) > 0 {
			return disk.Config{Undecided: problems.Error()}
		}
		if c.Machine.Spec.Disk.Encryption != nil {
			return configuredDisk(c)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return disk.Config{Undecided: err.Error()}
	}
	text, err = os.ReadFile(recipients)
	switch list := strings.Fields(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		return disk.Config{}
	case err != nil:
		return disk.Config{Undecided: err.Error()}
	case len(list) == 0:
		return disk.Config{Undecided: recipients + " has no recipients"}
	default:
		return disk.Config{Recipients: list}
	}
}

// configuredDisk returns the disk configuration of a configuration with a choice.
func configuredDisk(c *config.Config) (out disk.Config) {
	if !c.EncryptsDisk() {
		return out
	}
	for _, r := range c.Machine.Spec.Disk.Encryption.Recovery.Recipients {
		out.Recipients = append(out.Recipients, string(r))
	}
	return out
}

// diskConfig returns the disk configuration for a configuration that may be nil: its choice, or
// that of the image.
func diskConfig(c *config.Config) disk.Config {
	if c != nil && c.Machine.Spec.Disk.Encryption != nil {
		return configuredDisk(c)
	}
	return imageDiskConfig(paths.EmbeddedConfig, paths.DiskRecipients)
}

// applyDiskConfig returns the disk configuration with which an apply sets up the disk of a machine
// without storage. transition.Check has accepted a wipe.
func applyDiskConfig(next *config.Config) disk.Config {
	out := diskConfig(next)
	out.Wipe = true
	return out
}

// recovery opens locked partitions for an operator. Its functions are those of the machine.
type recovery struct {
	locked  func(ctx context.Context) ([]disk.Locked, error)
	recover func(ctx context.Context, r disk.RecoverRequest) error
	// recipients returns those of the present configuration.
	recipients func() []string
	reboot     func(power.Request) error
}

func newRecovery(m *machine) recovery {
	return recovery{
		locked: m.domains.disks.Locked, recover: m.domains.encryption.crypt.Recover,
		recipients: func() []string { return diskConfig(m.config.active.Current().Config).Recipients },
		reboot:     m.power.Shutdown,
	}
}

// Locked returns the locked partitions, with their recovery keys in encrypted form.
func (r recovery) Locked(ctx context.Context) (all []*api.LockedVolume, err error) {
	locked, err := r.locked(ctx)
	for _, v := range locked {
		all = append(all, &api.LockedVolume{
			Label: v.Label, Device: v.Device, Uuid: v.UUID.String(), Recipients: v.Metadata.Recovery.Recipients, RecoveryKey: v.Metadata.Recovery.Ciphertext,
		})
	}
	return all, err
}

// Recover seals new keys for all locked partitions, and reboots.
func (r recovery) Recover(ctx context.Context, request *api.RecoverRequest, by string) error {
	locked, err := r.locked(ctx)
	if err != nil {
		return err
	}
	if len(locked) == 0 {
		return errors.New("encryption: no partition is locked; nothing was changed")
	}
	out := disk.RecoverRequest{NewState: request.NewState, Recipients: r.recipients()}
	for _, v := range locked {
		sent := &api.RecoveryKey{}
		for _, k := range request.Keys {
			if k.Label == v.Label {
				sent = k
			}
		}
		key, err := diskkey.ParseRecoveryKey(sent.Key)
		if err != nil {
			return fmt.Errorf("encryption: %s: %w; nothing was changed", v.Label, err)
		}
		out.Volumes = append(out.Volumes, diskkey.Recovering{Volume: v.Volume, Key: key, Bound: sent.Binding})
	}
	if err := r.recover(ctx, out); err != nil {
		return fmt.Errorf("encryption: %w", err)
	}
	return r.reboot(power.Request{To: power.Reboot, Why: "recovery of encrypted partitions, asked by " + by})
}

// checkUnlock returns an error if the TPM would not release the keys of the encrypted partitions
// after the boot of a boot image, or if that is not known.
func checkUnlock(ctx context.Context, m *machine, next func() (*os.File, error)) error {
	disks, _ := m.domains.disks.State().Get()
	return unlockCheck{
		protection: disks.Protection(), sealed: m.domains.disks.SealedKeys,
		firmware: func() (secureboot.Firmware, error) { return secureboot.ReadFirmware(bootenv.VariablesDir) },
		running:  func() (*os.File, error) { return m.upgrade.ESP.InMemory(m.system.release.Version) },
		predict:  m.domains.encryption.sealer.Predict,
	}.do(ctx, next)
}

// unlockCheck is what checkUnlock needs to know.
type unlockCheck struct {
	protection disk.Protection
	sealed     func(context.Context) ([]diskkey.Sealed, error)
	firmware   func() (secureboot.Firmware, error)
	running    func() (*os.File, error) // boot image of the running version
	predict    func(_ context.Context, _ diskkey.Sealed, _ diskkey.BootImages, enabled bool, db, dbx []byte) error
}

// do checks a boot image. A machine without encrypted partitions reads no disk and no boot image. A
// partition with a header that the machine does not use is not known to open.
func (c unlockCheck) do(ctx context.Context, next func() (*os.File, error)) error {
	if !c.protection.State && !c.protection.Data {
		return nil
	}
	if len(c.protection.Faults) > 0 {
		return errors.New(strings.Join(c.protection.Faults, "; "))
	}
	sealed, err := c.sealed(ctx)
	if err != nil {
		return err
	}
	state, err := c.firmware()
	if err != nil {
		return err
	}
	image, err := next()
	if err != nil {
		return err
	}
	defer image.Close()
	running, err := c.running()
	if err != nil {
		return err
	}
	defer running.Close()
	for _, s := range sealed {
		if err := c.predict(ctx, s, diskkey.BootImages{Next: image, Running: running}, state.Enabled, state.DB, state.DBX); err != nil {
			return err
		}
	}
	return nil
}

// protection returns how STATE and DATA are encrypted, for the health. demanded is true if the
// image demands the encryption.
func protection(d disk.State, demanded bool) health.Protection {
	p := d.Protection()
	out := health.Protection{State: p.State, Data: p.Data, Plain: p.Plain, Demanded: demanded, Recipients: p.Recipients}
	if !p.State && !p.Data {
		return out
	}
	var err error
	if out.SecureBoot, err = secureboot.ReadMode(bootenv.VariablesDir); err != nil {
		out.SecureBoot = "unknown (" + err.Error() + ")"
	}
	return out
}
