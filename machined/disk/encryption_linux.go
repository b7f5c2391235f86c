package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// cryptModules are the kernel modules of encrypted volumes. The kernel looks the cipher up by name
// and could not load the modules itself, because the image has no modprobe. aesni_intel is missing
// in the list, because it fails on processors without AES instructions.
var cryptModules = []string{"dm-crypt", "xts"}

// Cryptsetup is a Crypt that runs the program cryptsetup.
type Cryptsetup struct {
	// RunCommand runs a program until it exits (supervise.Reaper).
	RunCommand  func(ctx context.Context, c supervise.Command) ([]byte, error)
	Sealer      diskkey.Sealer
	LoadModules func(names ...string) error
	// MaySeal returns the reason why no key may be sealed in this boot; nil if it may. A key that
	// is sealed without Secure Boot would open for any boot loader.
	MaySeal func() error
	busy    sync.Mutex // locked during a change or an opening of volumes
}

// run runs cryptsetup with its keys on the standard input and in a pipe. libdevmapper makes the
// device files itself, because no udev runs.
func (c *Cryptsetup) run(ctx context.Context, command diskkey.Command) error {
	spec := supervise.Command{Args: command.Args, Env: []string{"LC_ALL=C", "DM_DISABLE_UDEV=1"}, Stdin: command.Stdin}
	if command.Pipe != nil {
		r, err := filled(command.Pipe)
		if err != nil {
			return err
		}
		defer r.Close()
		spec.Files = []*os.File{r}
	}
	_, err := c.RunCommand(ctx, spec)
	if exit := (*supervise.ExitError)(nil); errors.As(err, &exit) && exit.Exit.Code == diskkey.WrongKey {
		err = fmt.Errorf("%w: %w", diskkey.ErrKey, err)
	}
	return err
}

// filled returns a pipe with content. The content fits in the buffer of the pipe.
func filled(content []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.Write(content); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (c *Cryptsetup) loadModules() error {
	if err := c.LoadModules(cryptModules...); err != nil {
		return fmt.Errorf("encryption: cannot load the modules: %w", err)
	}
	// Without the instructions of the processor, encryption is slow, but works.
	_ = c.LoadModules("aesni_intel")
	return nil
}

// Encrypt implements Crypt. A volume that an interrupted attempt has left open is closed first.
func (c *Cryptsetup) Encrypt(ctx context.Context, v diskkey.Volume, recipients []string) error {
	c.busy.Lock()
	defer c.busy.Unlock()
	if err := c.maySeal(v); err != nil {
		return err
	}
	if err := c.loadModules(); err != nil {
		return err
	}
	if v.Label != layout.State {
		b, err := readBinding()
		if err != nil {
			return fmt.Errorf("%s: cannot encrypt %s: %w", v.Device, v.Label, err)
		}
		v.Secret, recipients = b.Secret, b.Recipients
	}
	return v.Format(ctx, c.run, c.Sealer, recipients, func() error {
		if err := c.close(ctx, v); err != nil {
			return err
		}
		device, err := parttable.WipePartition(v.Device)
		if err == nil {
			err = device.Close()
		}
		return err
	})
}

func (c *Cryptsetup) maySeal(v diskkey.Volume) error {
	if err := c.MaySeal(); err != nil {
		return fmt.Errorf("%s: cannot seal a key for %s: %w", v.Device, v.Label, err)
	}
	return nil
}

// Bind implements Crypt.
func (c *Cryptsetup) Bind(_ context.Context, recipients []string) error {
	if _, err := readBinding(); err == nil {
		return nil
	}
	if err := stateIsOpen(); err != nil {
		return err
	}
	return writeBinding(diskkey.NewBinding(recipients))
}

func writeBinding(b diskkey.Binding) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	defer clear(text)
	return safefile.WriteFile(paths.DiskBinding, text, 0o600)
}

// stateIsOpen fails unless the mounted STATE is encrypted. An attacker can have written a STATE
// that is not.
func stateIsOpen() error {
	m, mounted, err := mount.At(paths.State)
	if err == nil && (!mounted || m.Source != diskkey.MappedPath(layout.State)) {
		err = fmt.Errorf("%w: STATE is not open, or not encrypted", diskkey.ErrBinding)
	}
	return err
}

// readBinding reads the binding on the mounted STATE.
func readBinding() (diskkey.Binding, error) {
	if err := stateIsOpen(); err != nil {
		return diskkey.Binding{}, err
	}
	return bindingIn(paths.DiskBinding)
}

// errLost means that an encrypted STATE has no usable file with the binding.
var errLost = fmt.Errorf("%w: its file on STATE is lost or damaged", diskkey.ErrBinding)

// maxBinding is the maximum size of the file with the binding, in bytes.
const maxBinding = 64 << 10

// bindingIn reads a file with a binding. STATE can be that of an attacker.
func bindingIn(file string) (diskkey.Binding, error) {
	text, err := safefile.ReadUntrusted(filepath.Dir(file), filepath.Base(file), maxBinding)
	if err != nil {
		return diskkey.Binding{}, fmt.Errorf("%w: %w", errLost, err)
	}
	defer clear(text)
	b, err := diskkey.ParseBinding(text)
	if err != nil {
		err = fmt.Errorf("%w: %w", errLost, err)
	}
	return b, err
}

// Finish implements Crypt.
func (c *Cryptsetup) Finish(ctx context.Context, v diskkey.Volume) error {
	c.busy.Lock()
	defer c.busy.Unlock()
	return v.Finish(ctx, c.run)
}

// Unlock implements Crypt. It refuses a volume with another file system: an attacker can have
// copied the volume there, or have changed the label in its header.
func (c *Cryptsetup) Unlock(ctx context.Context, v diskkey.Volume) (faults superblock.Errors, err error) {
	c.busy.Lock()
	defer c.busy.Unlock()
	if err := c.loadModules(); err != nil {
		return faults, err
	}
	h, err := readMetadata(v)
	if err != nil {
		return faults, err
	}
	if v.Label != layout.State {
		b, err := readBinding()
		if errors.Is(err, errLost) {
			err = fmt.Errorf("%w; this STATE can be that of an attacker, who could then read DATA (task 136 of the runbook)", err)
		}
		if err != nil {
			return faults, fmt.Errorf("%s: cannot open %s: %w", v.Device, v.Label, err)
		}
		v.Secret = b.Secret
	}
	if err := v.Open(ctx, c.run, c.Sealer, *h.Metadata); err != nil {
		if errors.Is(err, diskkey.ErrKept) {
			err = fmt.Errorf("%w; `orlopctl disk recover` opens it with the recovery key", err)
		}
		return faults, err
	}
	content, faults, err := ownContent(diskkey.MappedPath(v.Label))
	if err == nil {
		err = checkOpened(v, content)
	}
	if err != nil {
		return faults, errors.Join(err, c.close(ctx, v))
	}
	return faults, nil
}

// checkOpened fails if an open volume does not have its own file system.
func checkOpened(v diskkey.Volume, c Content) error {
	if c.Kind == "ext4" && c.Label == v.Label {
		return nil
	}
	return fmt.Errorf("%s: refusing to use %s: after it was opened, it has %s", v.Device, v.Label, c)
}

// DestroyKeys implements Crypt. It destroys the keys while the volume is open, so that no error of
// the closing leaves them. Such an error is no failure, because the keys are destroyed: the wipe of
// a partition that is still open fails.
func (c *Cryptsetup) DestroyKeys(ctx context.Context, v diskkey.Volume) error {
	c.busy.Lock()
	defer c.busy.Unlock()
	destroy := func() error { return v.DestroyKeys(ctx, c.run) }
	if _, err := readHeader(v.Device); errors.Is(err, diskkey.ErrHeader) {
		destroy = func() error { return overwriteHeader(v) }
	}
	if err := destroy(); err != nil {
		return errors.Join(err, c.close(ctx, v))
	}
	_ = c.close(ctx, v)
	return nil
}

// overwriteHeader overwrites a header for which cryptsetup is not started, with its key slots. It
// overwrites the end of the partition first: without it, the partition would count as unknown data.
func overwriteHeader(v diskkey.Volume) error {
	f, err := os.OpenFile(v.Device, os.O_WRONLY, 0)
	if err == nil {
		var size int64
		if size, err = f.Seek(0, io.SeekEnd); err == nil {
			if err = parttable.ZeroEnds(f, 0, uint64(size), diskkey.HeaderSize); err != nil {
				// The keys must not remain, even if the end cannot be written.
				_, second := f.WriteAt(make([]byte, diskkey.HeaderSize), 0)
				err = errors.Join(err, second, f.Sync())
			}
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: cannot destroy the keys of %s: %w", v.Device, v.Label, err)
	}
	return nil
}

// RecoverRequest is the request of an operator to open locked volumes.
type RecoverRequest struct {
	// Volumes are the locked volumes. Of each, the volume, the recovery key and Bound are set.
	Volumes []diskkey.Recovering
	// NewState permits to bind DATA to a STATE other than its own (diskkey.Present).
	NewState bool
	// Recipients are those of the configuration, for DATA beside a STATE without a secret.
	Recipients []string
}

// Recover replaces the unlock keys of locked volumes by new keys, by means of their recovery keys.
// It changes all volumes or none, with one exception: if the locked STATE has no secret for DATA,
// it changes only STATE, and a second call, with STATE open, changes DATA.
func (c *Cryptsetup) Recover(ctx context.Context, r RecoverRequest) error {
	c.busy.Lock()
	defer c.busy.Unlock()
	volumes := slices.Clone(r.Volumes)
	for i := range volumes {
		v := &volumes[i]
		err := c.maySeal(v.Volume)
		if err == nil {
			// Another recovery can have changed the header since the caller read it.
			var h diskkey.Header
			if h, err = readMetadata(v.Volume); err == nil {
				v.Metadata, v.UUID, v.Slots = *h.Metadata, h.UUID, h.Slots
				err = v.Test(ctx, c.run, v.Key)
			}
		}
		if err != nil {
			return fmt.Errorf("%w; nothing was changed", err)
		}
	}
	state := diskkey.Present{New: r.NewState}
	if i := slices.IndexFunc(volumes, isData); i >= 0 {
		var err error
		switch state.Binding, err = c.recoverBinding(ctx, volumes); {
		case errors.Is(err, errLost) && r.NewState && len(volumes) > 1:
			volumes = slices.Delete(volumes, i, i+1)
		case errors.Is(err, errLost) && r.NewState:
			state.Binding = diskkey.NewBinding(r.Recipients)
			state.Store = func() error { return writeBinding(state.Binding) }
		case err != nil:
			return fmt.Errorf("%s: cannot bind %s to its STATE: %w; nothing was changed", volumes[i].Device, volumes[i].Label, err)
		}
	}
	return diskkey.Recover(ctx, c.run, c.Sealer, volumes, state)
}

func isData(v diskkey.Recovering) bool { return v.Label != layout.State }

// The name of the mapped device, and the mount point, of a STATE from which Recover reads the
// binding.
const (
	recoveryName  = "orlop-recovery"
	recoveryMount = paths.Run + "/recovery"
)

// recoverBinding returns the binding on the mounted STATE, or on the locked STATE among volumes.
func (c *Cryptsetup) recoverBinding(ctx context.Context, volumes []diskkey.Recovering) (b diskkey.Binding, err error) {
	i := slices.IndexFunc(volumes, func(v diskkey.Recovering) bool { return v.Label == layout.State })
	if i < 0 {
		return readBinding()
	}
	if err := c.loadModules(); err != nil {
		return b, err
	}
	state := volumes[i]
	if err := state.OpenWith(ctx, c.run, state.Key, recoveryName); err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, state.Close(ctx, c.run, recoveryName)) }()
	content, _, err := ownContent("/dev/mapper/" + recoveryName)
	if err == nil {
		err = checkOpened(state.Volume, content)
	}
	if err == nil {
		err = os.MkdirAll(recoveryMount, 0o700)
	}
	if err != nil {
		return b, err
	}
	m := mount.Mount{Source: "/dev/mapper/" + recoveryName, Target: recoveryMount, Type: "ext4", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev | mount.NoExec}
	if err := m.Do(); err != nil {
		return b, err
	}
	b, err = bindingIn(filepath.Join(recoveryMount, filepath.Base(paths.DiskBinding)))
	return b, errors.Join(err, mount.Unmount(recoveryMount))
}

func (c *Cryptsetup) close(ctx context.Context, v diskkey.Volume) error {
	if !isMapped(v.Label) {
		return nil
	}
	return v.Close(ctx, c.run, diskkey.Mapping(v.Label))
}

// readMetadata reads the header of a volume, which has metadata.
func readMetadata(v diskkey.Volume) (diskkey.Header, error) {
	h, err := readHeader(v.Device)
	if err == nil && h.Metadata == nil {
		err = errors.New("its header has no metadata of Orlop OS")
	}
	if err != nil {
		err = fmt.Errorf("%s: cannot open %s: %w", v.Device, v.Label, err)
	}
	return h, err
}

func readHeader(device string) (diskkey.Header, error) {
	f, err := os.Open(device)
	if err != nil {
		return diskkey.Header{}, err
	}
	defer f.Close()
	return diskkey.ReadHeader(f)
}

// isMapped reports whether the mapped device of a volume exists.
func isMapped(label string) bool {
	_, err := os.Stat(diskkey.MappedPath(label))
	return !errors.Is(err, fs.ErrNotExist)
}

// readEncryption sets the content of a partition with a LUKS header. A header with the label of the
// partition is that of a locked volume, even if it is damaged or was changed: nothing overwrites
// it. A header without such a label is foreign content.
func (p *Partition) readEncryption() error {
	h, err := readHeader(p.Path)
	if err != nil && !errors.Is(err, diskkey.ErrHeader) {
		return nil // unreadable: the content stays foreign
	}
	e := encryptionOf(h, err, p.Label)
	if e == nil {
		return nil
	}
	e.Open = isMapped(p.Label)
	switch {
	case e.New:
		p.Content = Content{}
	case e.Open:
		if p.Content, p.Faults, err = ownContent(diskkey.MappedPath(p.Label)); err != nil {
			return err
		}
	default:
		p.Content = Content{Kind: lockedKind, Label: p.Label, UUID: h.UUID}
	}
	p.Encryption = e
	return nil
}

// Locked is an encrypted volume that is not open.
type Locked struct {
	diskkey.Volume
	UUID     uuid.UUID // of the header
	Metadata diskkey.Metadata
}

// Locked returns the locked volumes of the boot disk with usable headers, in the order of their
// partitions. If no header is usable, it returns the faults of the headers.
func (c *Controller) Locked(ctx context.Context) ([]Locked, error) {
	have, err := Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	all, err := encryptedVolumes(ctx, func(p Partition) bool { return p.locked() })
	if err != nil || len(all) > 0 {
		return all, err
	}
	return nil, have.lockedFaults()
}

// lockedFaults returns the faults of the headers of locked partitions; nil if there is none.
func (h Have) lockedFaults() (err error) {
	for _, d := range h.Disks {
		for _, p := range d.Partitions {
			if d.Boot && p.locked() && p.Encryption != nil && p.Encryption.Fault != "" {
				err = errors.Join(err, fmt.Errorf("%s: cannot open %s: %s", p.Path, p.Label, p.Encryption.Fault))
			}
		}
	}
	return err
}

// SealedKeys returns the sealed keys of the encrypted partitions of the boot disk.
func (c *Controller) SealedKeys(ctx context.Context) (all []diskkey.Sealed, err error) {
	volumes, err := encryptedVolumes(ctx, func(Partition) bool { return true })
	for _, v := range volumes {
		all = append(all, v.Metadata.Sealed)
	}
	return all, err
}

// encryptedVolumes returns the complete encrypted volumes of the boot disk that the function
// selects.
func encryptedVolumes(ctx context.Context, which func(Partition) bool) (all []Locked, err error) {
	have, err := Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, d := range have.Disks {
		for _, p := range d.Partitions {
			if e := p.Encryption; !d.Boot || e == nil || e.New || e.Fault != "" || !which(p) {
				continue
			}
			v := diskkey.Volume{Device: p.Path, Label: p.Label}
			h, err := readMetadata(v)
			if err != nil {
				return nil, err
			}
			all = append(all, Locked{v, h.UUID, *h.Metadata})
		}
	}
	return all, nil
}
