package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/transfer"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Slot describes the system disk and the slot that is not running.
type Slot struct {
	Disk   string // "/dev/vda"
	ESP    string // "/dev/vda1"
	Root   string // root partition of the other slot, "/dev/vda3"
	Label  string // partition label of Root: ROOT-A or ROOT-B
	Number int    // number of Root in the partition table
	Size   int64  // of Root, in bytes
	// UUID is the partition GUID of Root. The boot image of a version finds its root partition by
	// this GUID.
	UUID uuid.UUID
	// Running is the root partition of the running version, "/dev/vda2".
	Running string
}

// Installer writes a version into the other slot.
type Installer struct {
	Running string // the running version
	Profile string // the profile of the running image
	Trust   bundle.Trust
	// Only is the single version that Check accepts. If it is empty, Check accepts any version.
	Only string
	Slot Slot
	ESP  *esp.Partition
	// TakeSavepoint takes a savepoint of the etcd data for the running version, before any other
	// operation. It is nil if the upgrade takes no savepoint.
	TakeSavepoint func(context.Context) error
	// DropSavepoint removes the savepoint of an earlier upgrade. It is set if this upgrade takes no
	// savepoint, although etcd runs on the machine; otherwise it is nil.
	DropSavepoint func() error
	// SaveConfiguration stores the active configuration for the running version. It runs before the
	// boot entry of the new version is added.
	SaveConfiguration func() error
	// Confirm checks whether the cluster still permits the upgrade. It runs before the boot entry
	// is added, and again after the drain, because a drain can take an hour.
	Confirm func(context.Context) error
	// Drain drains the node before the machine shuts down. If it is nil, the pods are not evicted.
	// An error aborts the upgrade.
	Drain func(context.Context) error
	// Uncordon makes the node schedulable again if the cluster refuses the upgrade after Drain.
	Uncordon func()
	// CheckExtensions returns an error if an extension of the configuration is not stored for a
	// version.
	CheckExtensions func(version string) error
	// Begin reports the start of each operation with its size in bytes (0: unknown). Done reports
	// the bytes that the operation has processed so far.
	Begin func(operation string, total int64)
	Done  func(bytes int64)
}

// Check reads the head of a bundle and returns its statement. It returns an error if this machine
// cannot install the bundle. The error is a Refusal if another attempt with the same bundle would
// fail, too.
func (i Installer) Check(head io.Reader) (bundle.Statement, error) {
	r, err := bundle.Open(head, i.Trust)
	if err != nil {
		return bundle.Statement{}, Refusal{err}
	}
	s := r.Statement
	if i.Only != "" && s.Version != i.Only {
		return s, Refusal{fmt.Errorf("the bundle contains version %s, and version %s is wanted", s.Version, i.Only)}
	}
	if _, err := verity.Parse(s.Root); err != nil {
		return s, Refusal{fmt.Errorf("bundle: %w", err)}
	}
	if s.Profile != i.Profile {
		return s, Refusal{fmt.Errorf("the bundle is for profile %s, this machine runs %s", s.Profile, i.Profile)}
	}
	if s.MinimumVersion != "" && slot.Compare(i.Running, s.MinimumVersion) < 0 {
		return s, Refusal{fmt.Errorf("version %s can follow %s or newer, this machine runs %s; upgrade to that one first", s.Version, s.MinimumVersion, i.Running)}
	}
	if err := i.CheckExtensions(s.Version); err != nil {
		// The error is no Refusal, because the same bundle is accepted once the extension is
		// stored.
		return s, fmt.Errorf("upgrade refused, nothing was written: %w", err)
	}
	if s.RootImage.Size > i.Slot.Size {
		return s, Refusal{fmt.Errorf("the root image has %d MiB, slot %s only %d MiB", mebibytes(s.RootImage.Size), i.Slot.Label, i.Slot.Size>>20)}
	}
	room, err := i.ESP.FreeSpace(i.Running)
	if err != nil {
		return s, err
	}
	if need := s.UKI.Size + espReserve; need > room {
		return s, Refusal{fmt.Errorf("the boot image needs %d MiB of the ESP, %d MiB are free", mebibytes(need), room>>20)}
	}
	return s, nil
}

// espReserve is the space that FAT needs for its own tables, in bytes, estimated generously.
const espReserve = 1 << 20

// Install writes a bundle that Check has accepted into the other slot. If it returns nil, the ESP
// has a boot entry of the new version. If an operation that follows the savepoint fails, Install
// removes all boot entries except that of the running version. After an earlier error, the ESP is
// unchanged.
func (i Installer) Install(ctx context.Context, from io.Reader) error {
	r, err := bundle.Open(from, i.Trust)
	if err != nil {
		return err
	}
	s := r.Statement
	params, err := verity.Parse(s.Root)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if err := i.CheckExtensions(s.Version); err != nil { // the configuration may have changed
		return fmt.Errorf("upgrade refused, nothing was written: %w", err)
	}
	if i.TakeSavepoint != nil {
		if err := i.do(ctx, []operation{{"take a savepoint of the cluster's data for version " + i.Running, 0, func() error { return i.TakeSavepoint(ctx) }}}); err != nil {
			return fmt.Errorf("%w; nothing was written; with --without-savepoint a rollback cannot restore the data", err)
		}
	}
	var uki []byte
	var all []operation
	if i.DropSavepoint != nil {
		all = append(all, operation{"remove the old savepoint of version " + i.Running, 0, i.DropSavepoint})
	}
	all = append(all, []operation{
		{"remove the version in slot " + i.Slot.Label, 0, func() error { return i.ESP.RemoveOthers(i.Running) }},
		{fmt.Sprintf("write version %s to %s (%s)", s.Version, i.Slot.Label, i.Slot.Root), s.RootImage.Size, func() error {
			return verity.Write(i.Slot.Root, func(to io.Writer) error {
				return r.Root(transfer.ProgressWriter(to, i.Done))
			})
		}},
		{"read it back", 0, func() error { return verity.Verify(i.Slot.Root, params) }},
		{"set the partition GUID from its root hash", 0, func() error {
			return parttable.SetGUID(i.Slot.Disk, i.Slot.Number, i.Slot.Label, params.PartUUID())
		}},
		{"read the boot image", 0, func() (err error) { uki, err = r.UKI(); return err }},
		{"store the configuration for version " + i.Running, 0, i.SaveConfiguration},
		{"store the signed statement of version " + s.Version, 0, func() error {
			return i.ESP.Write(esp.Statement(s.Version), bytes.NewReader(r.Envelope))
		}},
		{"ask the cluster again", 0, func() error { return i.Confirm(ctx) }},
		{fmt.Sprintf("add the boot entry of version %s, with %d tries", s.Version, slot.Tries), 0, func() error {
			return i.ESP.AddEntry(slot.Entry{Version: s.Version, Trial: true, Left: slot.Tries}, bytes.NewReader(uki))
		}},
	}...)
	if i.Drain != nil {
		all = append(all, operation{"drain the node", 0, func() error { return i.Drain(ctx) }}, operation{"ask the cluster after the drain", 0, func() error { return i.confirmDrained(ctx) }})
	}
	if err := i.do(ctx, all); err != nil {
		// The entry of the new version may already be in the ESP.
		return errors.Join(err, i.ESP.RemoveOthers(i.Running))
	}
	return nil
}

// confirmDrained checks after the drain whether the cluster still permits the upgrade. If the
// cluster refuses the upgrade, confirmDrained makes the node schedulable again.
func (i Installer) confirmDrained(ctx context.Context) error {
	err := i.Confirm(ctx)
	if err != nil {
		i.Uncordon()
	}
	return err
}

// operation is a step of the installation.
type operation struct {
	name string
	size int64 // in bytes; 0 if the operation never calls Done
	do   func() error
}

// do runs the operations in order and stops at the first error or at the end of ctx.
func (i Installer) do(ctx context.Context, all []operation) error {
	for _, op := range all {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("upgrade: stopped before it could %s: %w", op.name, err)
		}
		i.Begin(op.name, op.size)
		err := op.do()
		if no := (*disruption.Refusal)(nil); errors.As(err, &no) {
			return err
		}
		if err != nil {
			return fmt.Errorf("upgrade: cannot %s: %w", op.name, err)
		}
	}
	return nil
}

// VerifySlot reads the whole version in the other slot, and returns an error if that version would
// not boot. Without this check, a manual rollback to a damaged version could reboot the machine
// forever, because the entry of a committed version has no limit of tries.
func (p Slot) VerifySlot(version string, from *esp.Partition) error {
	root, err := os.Open(p.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	var s bundle.Statement
	err = from.Version(version, func(uki *os.File, statement []byte) error {
		if statement == nil {
			return fmt.Errorf("the ESP has no signed statement of version %s, so its content cannot be verified", version)
		}
		s, err = bundle.Copy{Envelope: statement, Root: root, UKI: uki}.CheckComplete()
		return err
	})
	if err != nil {
		return err
	}
	if s.Version != version {
		return fmt.Errorf("the statement of version %s names version %s", version, s.Version)
	}
	params, err := verity.Parse(s.Root)
	if err != nil {
		return err
	}
	if params.PartUUID() != p.UUID {
		return fmt.Errorf("its boot image looks for partition %s, %s (%s) is %s", params.PartUUID(), p.Root, p.Label, p.UUID)
	}
	return nil
}

// Epochs returns the release epoch of each version that has a boot entry, read from the signed
// statements. A version without a statement is not in the map: it is older than release epochs, or
// was built without a bundle.
func Epochs(entries []slot.Entry, from *esp.Partition) (map[string]int, error) {
	epochs := map[string]int{}
	for _, e := range entries {
		err := from.Version(e.Version, func(_ *os.File, statement []byte) error {
			if statement == nil {
				return nil
			}
			s, err := bundle.ParseUnverified(statement)
			if err == nil && s.Version == e.Version {
				epochs[e.Version] = s.Epoch
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("version %s: its epoch cannot be read: %w", e.Version, err)
		}
	}
	return epochs, nil
}

// ErrNoSlots means that the machine does not run from a disk with two slots.
var ErrNoSlots = errors.New("this machine does not run from a disk with two slots; install it first")
