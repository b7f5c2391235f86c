package disk

import (
	"context"
	"fmt"
	"slices"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
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
	// Encrypt makes an encrypted volume in a partition and opens it. The recovery key of STATE is
	// encrypted to the recipients, that of DATA to the recipients in the binding on STATE.
	Encrypt(ctx context.Context, v diskkey.Volume, recipients []string) error
	// Bind makes the binding of DATA on the mounted STATE, unless it has one.
	Bind(ctx context.Context, recipients []string) error
	// Finish records that the file system in the volume is complete.
	Finish(ctx context.Context, v diskkey.Volume) error
	// Unlock opens a volume. It returns the errors that its file system has recorded.
	Unlock(ctx context.Context, v diskkey.Volume) (superblock.Errors, error)
	// DestroyKeys destroys the keys of the volume, and closes it.
	DestroyKeys(ctx context.Context, v diskkey.Volume) error
}

// locked reports whether the partition is an encrypted one of Orlop OS that is not open.
func (p Partition) locked() bool { return p.Content.Kind == lockedKind }

// encrypt decides whether a volume is encrypted. A formatted STATE stays as it is. A STATE that
// will be formatted is encrypted if there are recipients. DATA follows STATE, because an attacker
// can replace either of them: beside an encrypted STATE, only an encrypted DATA is used, and beside
// another STATE, none that is encrypted.
func (v *Volume) encrypt(config Config, kept []Partition, state bool) {
	if v.Format.Label != layout.State {
		v.Encrypt = state
		return
	}
	v.Recipients = config.Recipients
	v.Encrypt = len(v.Recipients) > 0
	for _, p := range kept {
		if p.Number == v.Number && v.named(p) {
			v.Encrypt = p.Encryption != nil
		}
	}
}

// interrupted reports whether the partition has a STATE whose first format was encrypted and was
// interrupted, although the configuration requests no encryption. An operator has requested it with
// a configuration that is lost, so only an operator decides: with an apply, or with a reset. A
// reset that was interrupted after it had destroyed the keys continues: a complete reset would not
// know of the lost configuration, either.
func (v Volume) interrupted(p Partition) bool {
	return v.Format.Label == layout.State && !v.Encrypt && !v.Wipe && p.Encryption != nil && p.Encryption.New && !p.Encryption.Destroyed
}

// otherState returns the error for a locked partition beside a STATE that is not encrypted, or for
// one with the label of the other volume.
func (v Volume) otherState(p Partition) error {
	if p.Content.Label != v.Format.Label {
		return fmt.Errorf("%s: refusing to use %s: it has the encrypted volume %s; nothing was changed", p.Path, v.Format.Label, p.Content.Label)
	}
	return fmt.Errorf("%s: cannot open %s: it is encrypted, and %s is not, or would not be when it is formatted; nothing was changed. Restore %s, "+
		"or set spec.disk.encryption and spec.disk.wipeForeign and open it with its recovery key, or reset the machine", p.Path, v.Format.Label, layout.State, layout.State)
}

// encryptionOf returns the encryption of a partition from its header, or from the error of reading
// the header; nil if the header is foreign. A header with the label NewLabel is that of an
// interrupted format: it may lack its checksum. Without a key slot, no key opens the partition: an
// interrupted reset has destroyed the keys.
func encryptionOf(h diskkey.Header, err error, label string) *Encryption {
	e := &Encryption{New: h.Label == diskkey.NewLabel}
	switch {
	case e.New:
	case h.Label != label:
		return nil
	case err != nil:
		e.Fault = err.Error()
	case h.Metadata == nil:
		e.Fault = "its header has no metadata of Orlop OS"
	default:
		e.Destroyed = len(h.Slots) == 0
		e.New = e.Destroyed
		e.Recipients = h.Metadata.Recovery.Recipients
	}
	return e
}

// device returns the device with the file system.
func (v Volume) device() string {
	if v.Encrypt {
		return diskkey.MappedPath(v.Format.Label)
	}
	return v.Partition
}

// format returns the operations that make and mount the file system of a volume.
func (v Volume) format(mounts reconcile.Op) []reconcile.Op {
	if !v.Encrypt {
		return []reconcile.Op{v.Format, mounts}
	}
	return append([]reconcile.Op{Encrypt{Label: v.Format.Label, Device: v.Partition, Recipients: v.Recipients}, v.Format, mounts}, v.finish()...)
}

// finish returns the operations after which a new encrypted volume counts as complete.
func (v Volume) finish() (ops []reconcile.Op) {
	if v.Format.Label == layout.State {
		ops = append(ops, Bind{Target: v.Mount.Target, Recipients: v.Recipients})
	}
	return append(ops, FinishEncryption{Label: v.Format.Label, Device: v.Partition})
}

// Encrypt makes an encrypted volume and opens it. The former content of the partition is lost.
type Encrypt struct {
	Label      string
	Device     string   // path of the partition
	Recipients []string // of the recovery key; nil for DATA
	crypt      Crypt
}

func (e Encrypt) String() string { return "encrypt " + e.Label + " (" + e.Device + ")" }

// Do makes the volume.
func (e Encrypt) Do(ctx context.Context) error {
	return e.crypt.Encrypt(ctx, diskkey.Volume{Device: e.Device, Label: e.Label}, e.Recipients)
}

// Bind makes the secret on STATE without which DATA does not open.
type Bind struct {
	Target     string   // mount point of STATE
	Recipients []string // of the recovery key of DATA
	crypt      Crypt
}

func (b Bind) String() string { return "make the secret that binds DATA to STATE (" + b.Target + ")" }

// Do makes the secret.
func (b Bind) Do(ctx context.Context) error { return b.crypt.Bind(ctx, b.Recipients) }

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
	// opened receives the errors that the file system has recorded, before the check clears them.
	opened func(FilesystemErrors)
}

func (u Unlock) String() string { return "open " + u.Label + " (" + u.Device + ")" }

// Do opens the volume.
func (u Unlock) Do(ctx context.Context) error {
	faults, err := u.crypt.Unlock(ctx, diskkey.Volume{Device: u.Device, Label: u.Label})
	if err == nil && faults.Any() {
		u.opened(FilesystemErrors{Label: u.Label, Device: u.Device, Faults: faults, Checked: true})
	}
	return err
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

// needsKeys reports whether an operation opens or makes an encrypted volume.
func needsKeys(ops []reconcile.Op) bool {
	return slices.ContainsFunc(ops, func(op reconcile.Op) bool {
		switch op.(type) {
		case Unlock, Encrypt:
			return true
		}
		return false
	})
}

// withCrypt returns the operations with the access to encrypted volumes. Operations that are only
// printed do without. opened receives the errors of file systems that are opened.
func withCrypt(ops []reconcile.Op, crypt Crypt, opened func(FilesystemErrors)) []reconcile.Op {
	out := slices.Clone(ops)
	for i, op := range out {
		switch op := op.(type) {
		case Encrypt:
			op.crypt = crypt
			out[i] = op
		case Bind:
			op.crypt = crypt
			out[i] = op
		case FinishEncryption:
			op.crypt = crypt
			out[i] = op
		case Unlock:
			op.crypt, op.opened = crypt, opened
			out[i] = op
		case DestroyKeys:
			op.crypt = crypt
			out[i] = op
		}
	}
	return out
}

// Protection is how STATE and DATA of the boot disk are encrypted.
type Protection struct {
	State, Data bool // encrypted
	// Plain is true if STATE or DATA has content that is not encrypted.
	Plain bool
	// Recipients are the public keys of the recovery key of each encrypted volume, as its header
	// says.
	Recipients [][]string
	// Faults are the reasons why the machine does not use the header of an encrypted volume.
	Faults []string
}

// Protection returns how STATE and DATA of the boot disk are encrypted.
func (s State) Protection() (out Protection) {
	for _, d := range s.Disks {
		for _, p := range d.Partitions {
			if !d.Boot || !isSystemPartition(p.Entry) || p.Label != layout.State && p.Label != layout.Data {
				continue
			}
			if p.Encryption == nil {
				out.Plain = out.Plain || !p.Content.blank()
				continue
			}
			if p.Encryption.New {
				continue
			}
			out.State = out.State || p.Label == layout.State
			out.Data = out.Data || p.Label == layout.Data
			out.Recipients = append(out.Recipients, p.Encryption.Recipients)
			if p.Encryption.Fault != "" {
				out.Faults = append(out.Faults, p.Label+": "+p.Encryption.Fault)
			}
		}
	}
	return out
}
