package disk

import (
	"context"
	"slices"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// The kinds of content of an encrypted partition, besides the kinds of its file system.
const (
	luksKind = "LUKS" // superblock.Identify
	// lockedKind is the kind of a partition of Orlop OS that is not open. Its label is that of its
	// complete file system.
	lockedKind = "encrypted"
)

// Crypt formats, opens and destroys encrypted volumes. Each method can be repeated after a power
// cut at any moment.
type Crypt interface {
	// Encrypt makes an encrypted volume in a partition and opens it. The recovery key is encrypted
	// to the recipients.
	Encrypt(ctx context.Context, v diskkey.Volume, recipients []string) error
	// Finish records that the file system in the volume is complete.
	Finish(ctx context.Context, v diskkey.Volume) error
	Unlock(ctx context.Context, v diskkey.Volume) error
	// DestroyKeys closes the volume and destroys its keys.
	DestroyKeys(ctx context.Context, v diskkey.Volume) error
}

// encrypt decides whether a volume is encrypted. A formatted volume stays as it is. A volume that
// will be formatted is encrypted if the configuration says so, or if STATE is encrypted already.
// The configuration is on STATE, so it is unknown when the machine formats DATA.
func (v *Volume) encrypt(config Config, kept []Partition) {
	v.Recipients = config.Recipients
	for _, p := range kept {
		if p.Label == layout.State && p.Encryption != nil && !p.Encryption.New && isSystemPartition(p.Entry) && len(v.Recipients) == 0 {
			v.Recipients = p.Encryption.Recipients
		}
	}
	for _, p := range kept {
		if p.Number == v.Number && v.holds(p.Content) {
			v.Encrypt = p.Encryption != nil
			return
		}
	}
	v.Encrypt = len(v.Recipients) > 0
}

// device returns the device with the file system.
func (v Volume) device() string {
	if v.Encrypt {
		return diskkey.MappedPath(v.Format.Label)
	}
	return v.Partition
}

// format returns the operations that make the file system of a volume.
func (v Volume) format() []reconcile.Op {
	if !v.Encrypt {
		return []reconcile.Op{v.Format}
	}
	return []reconcile.Op{
		Encrypt{Label: v.Format.Label, Device: v.Partition, Recipients: v.Recipients}, v.Format,
		FinishEncryption{Label: v.Format.Label, Device: v.Partition},
	}
}

// Encrypt makes an encrypted volume and opens it. The former content of the partition is lost.
type Encrypt struct {
	Label      string
	Device     string   // path of the partition
	Recipients []string // of the recovery key
	crypt      Crypt
}

func (e Encrypt) String() string { return "encrypt " + e.Label + " (" + e.Device + ")" }

// Do makes the volume.
func (e Encrypt) Do(ctx context.Context) error {
	return e.crypt.Encrypt(ctx, diskkey.Volume{Device: e.Device, Label: e.Label}, e.Recipients)
}

// FinishEncryption records that the file system of an encrypted volume is complete. Before, the
// volume counts as blank.
type FinishEncryption struct {
	Label  string
	Device string
	crypt  Crypt
}

func (f FinishEncryption) String() string {
	return "complete the encryption of " + f.Label + " (" + f.Device + ")"
}

// Do writes the record.
func (f FinishEncryption) Do(ctx context.Context) error {
	return f.crypt.Finish(ctx, diskkey.Volume{Device: f.Device, Label: f.Label})
}

// Unlock opens an encrypted volume.
type Unlock struct {
	Label  string
	Device string
	crypt  Crypt
}

func (u Unlock) String() string { return "open " + u.Label + " (" + u.Device + ")" }

// Do opens the volume.
func (u Unlock) Do(ctx context.Context) error {
	return u.crypt.Unlock(ctx, diskkey.Volume{Device: u.Device, Label: u.Label})
}

// DestroyKeys destroys the keys of an encrypted volume. Afterwards no key opens it.
type DestroyKeys struct {
	Label  string
	Device string
	crypt  Crypt
}

func (d DestroyKeys) String() string {
	return "destroy the keys of " + d.Label + " (" + d.Device + ")"
}

// Do destroys the keys.
func (d DestroyKeys) Do(ctx context.Context) error {
	return d.crypt.DestroyKeys(ctx, diskkey.Volume{Device: d.Device, Label: d.Label})
}

// withCrypt returns the operations with the access to encrypted volumes. Operations that are only
// printed do without.
func withCrypt(ops []reconcile.Op, crypt Crypt) []reconcile.Op {
	out := slices.Clone(ops)
	for i, op := range out {
		switch op := op.(type) {
		case Encrypt:
			op.crypt = crypt
			out[i] = op
		case FinishEncryption:
			op.crypt = crypt
			out[i] = op
		case Unlock:
			op.crypt = crypt
			out[i] = op
		case DestroyKeys:
			op.crypt = crypt
			out[i] = op
		}
	}
	return out
}

// Encrypted reports whether STATE and DATA of the boot disk are encrypted.
func (s State) Encrypted() bool {
	encrypted := 0
	for _, d := range s.Disks {
		for _, p := range d.Partitions {
			if d.Boot && (p.Label == layout.State || p.Label == layout.Data) && isSystemPartition(p.Entry) && p.Encryption != nil {
				encrypted++
			}
		}
	}
	return encrypted == len(systemVolumes())
}
