package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/diskkey"
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
	if err := c.loadModules(); err != nil {
		return err
	}
	if err := c.close(ctx, v); err != nil {
		return err
	}
	device, err := parttable.WipePartition(v.Device)
	if err == nil {
		err = device.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: cannot wipe %s: %w", v.Device, v.Label, err)
	}
	return v.Format(ctx, c.run, c.Sealer, recipients)
}

// Finish implements Crypt.
func (c *Cryptsetup) Finish(ctx context.Context, v diskkey.Volume) error {
	return v.Finish(ctx, c.run)
}

// Unlock implements Crypt.
func (c *Cryptsetup) Unlock(ctx context.Context, v diskkey.Volume) error {
	if err := c.loadModules(); err != nil {
		return err
	}
	m, err := readMetadata(v)
	if err != nil {
		return err
	}
	if err := v.Open(ctx, c.run, c.Sealer, m); err != nil {
		return fmt.Errorf("%w; `orlopctl disk recover` opens it with the recovery key", err)
	}
	return nil
}

// DestroyKeys implements Crypt.
func (c *Cryptsetup) DestroyKeys(ctx context.Context, v diskkey.Volume) error {
	if err := c.close(ctx, v); err != nil {
		return err
	}
	return v.DestroyKeys(ctx, c.run)
}

// Recover replaces the unlock key of a locked volume by a new key, by means of the recovery key.
func (c *Cryptsetup) Recover(ctx context.Context, v diskkey.Volume, key diskkey.RecoveryKey) error {
	m, err := readMetadata(v)
	if err != nil {
		return err
	}
	return v.Recover(ctx, c.run, c.Sealer, m, key)
}

func (c *Cryptsetup) close(ctx context.Context, v diskkey.Volume) error {
	if !isMapped(v.Label) {
		return nil
	}
	return v.Close(ctx, c.run)
}

// readMetadata reads the metadata in the header of a volume.
func readMetadata(v diskkey.Volume) (m diskkey.Metadata, err error) {
	h, err := readHeader(v.Device)
	if err != nil {
		return m, fmt.Errorf("%s: cannot open %s: %w", v.Device, v.Label, err)
	}
	if h.Metadata == nil {
		return m, fmt.Errorf("%s: cannot open %s: its header has no metadata of Orlop OS", v.Device, v.Label)
	}
	return *h.Metadata, nil
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

// readEncryption sets the content of a partition with a LUKS header. A header that is damaged, or
// not of Orlop OS, leaves the content as foreign content, which nothing overwrites.
func (p *Partition) readEncryption() error {
	h, err := readHeader(p.Path)
	if err != nil {
		return nil
	}
	e := &Encryption{Offset: h.Offset, Open: isMapped(p.Label)}
	// Without a key slot, no key opens the partition: an interrupted reset has destroyed the keys.
	e.New = h.Label == diskkey.NewLabel || h.Metadata != nil && len(h.Slots) == 0
	switch {
	case e.New:
		p.Content = Content{}
	case h.Metadata == nil:
		return nil
	case e.Open:
		if p.Content, p.Faults, err = ownContent(diskkey.MappedPath(p.Label)); err != nil {
			return err
		}
	default:
		p.Content = Content{Kind: lockedKind, Label: h.Label, UUID: h.UUID}
	}
	if h.Metadata != nil {
		e.Recipients = h.Metadata.Recovery.Recipients
	}
	p.Encryption = e
	return nil
}

// Locked is an encrypted volume that is not open.
type Locked struct {
	Label    string
	Device   string // path of the partition
	Recovery diskkey.Recovery
}

// Locked returns the locked volumes of the boot disk, in the order of their partitions.
func (c *Controller) Locked(ctx context.Context) (all []Locked, err error) {
	have, err := Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, d := range have.Disks {
		for _, p := range d.Partitions {
			if !d.Boot || p.Content.Kind != lockedKind {
				continue
			}
			m, err := readMetadata(diskkey.Volume{Device: p.Path, Label: p.Label})
			if err != nil {
				return nil, err
			}
			all = append(all, Locked{Label: p.Label, Device: p.Path, Recovery: m.Recovery})
		}
	}
	return all, nil
}

// SealedKeys returns the sealed keys of the encrypted partitions of the boot disk.
func (c *Controller) SealedKeys(ctx context.Context) (all []diskkey.Sealed, err error) {
	have, err := Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, d := range have.Disks {
		for _, p := range d.Partitions {
			if !d.Boot || p.Encryption == nil || p.Encryption.New {
				continue
			}
			m, err := readMetadata(diskkey.Volume{Device: p.Path, Label: p.Label})
			if err != nil {
				return nil, err
			}
			all = append(all, m.Sealed)
		}
	}
	return all, nil
}
