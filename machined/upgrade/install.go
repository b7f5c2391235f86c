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

// Slot is the location of a machine's systems.
type Slot struct {
	Disk   string // "/dev/vda"
	ESP    string // "/dev/vda1"
	Root   string // the root partition that is not running: "/dev/vda3"
	Label  string // its label: ROOT-A or ROOT-B
	Number int    // its number in the table
	Size   int64  // bytes
	// UUID is the GUID of that partition, by which its boot image finds it.
	UUID uuid.UUID
	// Running is the running root partition: "/dev/vda2".
	Running string
}

// Installer writes a version into the other slot.
type Installer struct {
	Running string // the running version
	Profile string // the profile of the running image
	Trust   bundle.Trust
	// Only is the only version that is accepted; empty: any version.
	Only string
	Slot Slot
	ESP  *esp.Partition
	// TakeSavepoint takes the savepoint of the cluster's data for the running version, before any
	// other operation; nil: no savepoint.
	TakeSavepoint func(context.Context) error
	// DropSavepoint removes the outdated savepoint of an earlier upgrade if this upgrade takes
	// none; nil: there is no such savepoint.
	DropSavepoint func() error
	// SaveConfiguration stores the active configuration for the running version, as the last
	// operation before the boot loader knows the new version.
	SaveConfiguration func() error
	// Confirm asks the cluster again, before the boot loader knows the new version, and after the
	// drain, which can take an hour.
	Confirm func(context.Context) error
	// Drain drains the node before the machine shuts down; nil: the pods stay. An error aborts the
	// upgrade.
	Drain func(context.Context) error
	// Uncordon makes the node schedulable again if the upgrade is refused after Drain.
	Uncordon func()
	// CheckExtensions returns an error if an extension is missing for a version.
	CheckExtensions func(version string) error
	// Begin reports the start of each operation with its size in bytes (0: unknown). Done reports
	// progress in bytes from time to time.
	Begin func(operation string, total int64)
	Done  func(bytes int64)
}

// Check reads the head of a bundle, and rejects it if this machine cannot install it.
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
		// Another attempt with the same bundle succeeds once the extension is stored.
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

// espReserve is a generous estimate of the space for FAT's own tables, in bytes.
const espReserve = 1 << 20

// Install writes a checked bundle. If it returns nil, the boot loader knows the new version. After
// an error the running version is the only version.
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
		// The new entry may already exist.
		return errors.Join(err, i.ESP.RemoveOthers(i.Running))
	}
	return nil
}

// confirmDrained asks the cluster after the drain.
func (i Installer) confirmDrained(ctx context.Context) error {
	err := i.Confirm(ctx)
	if err != nil {
		i.Uncordon()
	}
	return err
}

// operation is a single change of the disk.
type operation struct {
	name string
	size int64 // bytes reported to Done; 0 if it reports none
	do   func() error
}

// do runs operations in order until an operation fails.
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
// not boot. Without this check, a manual rollback could make the machine try the version forever,
// because its entry has no limit of tries.
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

// Epochs returns the epochs of the versions that the boot loader knows, from their statements. A
// version without a statement has none: it predates epochs, or was built without a bundle.
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

// ErrNoSlots is returned when the machine does not run from a disk with two slots.
var ErrNoSlots = errors.New("this machine does not run from a disk with two slots; install it first")
