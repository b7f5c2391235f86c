package diskkey

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"

	"github.com/orlop-os/orlop/pkg/paths"
)

// Command is a run of cryptsetup. The keys are on the standard input and in the pipe with file
// descriptor 3, and never in the arguments, which all processes can read.
type Command struct {
	Args  []string // path of the program, and arguments
	Stdin []byte
	Pipe  []byte // content of file descriptor 3; nil if it is not open
}

// Run runs a command until it exits. A nonzero exit status is an error.
type Run func(ctx context.Context, c Command) error

// pipePath is the path of file descriptor 3 in the process.
const pipePath = "/proc/self/fd/3"

// NewLabel is the label of a header until its file system is complete. A partition with this label
// holds no data, so the next boot formats it again.
const NewLabel = "orlop-new"

// Mapping returns the name of the mapped device of a partition, from the label of the partition.
func Mapping(label string) string { return "orlop-" + label }

// MappedPath returns the path of the mapped device.
func MappedPath(label string) string { return "/dev/mapper/" + Mapping(label) }

// Volume is an encrypted partition.
type Volume struct {
	Device string // path of the partition
	Label  string // of the partition
}

// formatCommand makes the header. The keys are random, so a slow function in front of a key slot
// would only delay the boot: pbkdf2 with the fewest iterations that cryptsetup permits.
// The metadata area has 64 KiB, because an encrypted recovery key needs up to 16 KiB.
func (v Volume) formatCommand(key []byte) Command {
	return Command{Stdin: key, Args: append([]string{paths.Cryptsetup, "luksFormat", "--batch-mode", "--type", "luks2",
		"--cipher", "aes-xts-plain64", "--key-size", "512", "--sector-size", "4096", "--luks2-metadata-size", "64k",
		"--label", NewLabel, "--key-slot", "0", "--key-file", "-"}, append(slowness(), v.Device)...)}
}

func slowness() []string {
	return []string{"--hash", "sha256", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"}
}

// addKeyCommand adds a key in a slot; present is a key that opens the partition.
func (v Volume) addKeyCommand(slot int, present, added []byte) Command {
	return Command{Stdin: present, Pipe: added, Args: append(append([]string{paths.Cryptsetup, "luksAddKey", "--batch-mode",
		"--key-file", "-", "--new-key-slot", strconv.Itoa(slot)}, slowness()...), v.Device, pipePath)}
}

// removeKeyCommand destroys a key slot; present is a key of another slot.
func (v Volume) removeKeyCommand(slot int, present []byte) Command {
	return Command{Stdin: present, Args: []string{paths.Cryptsetup, "luksKillSlot", "--batch-mode", "--key-file", "-", v.Device, strconv.Itoa(slot)}}
}

// metadataCommand stores the metadata in the header, in place of former metadata.
func (v Volume) metadataCommand(m Metadata) (Command, error) {
	text, err := marshalToken(m)
	return Command{Stdin: text, Args: []string{paths.Cryptsetup, "token", "import", "--batch-mode", "--token-id", strconv.Itoa(tokenID), "--token-replace", "--json-file", "-", v.Device}}, err
}

// openCommand opens the partition with a key.
func (v Volume) openCommand(key []byte) Command {
	return Command{Stdin: key, Args: []string{paths.Cryptsetup, "open", "--batch-mode", "--type", "luks2", "--key-file", "-", v.Device, Mapping(v.Label)}}
}

// testCommand checks that a key opens a slot, and opens nothing.
func (v Volume) testCommand(key []byte) Command {
	return Command{Stdin: key, Args: []string{paths.Cryptsetup, "open", "--batch-mode", "--type", "luks2", "--test-passphrase", "--key-file", "-", v.Device}}
}

// Sealer seals an unlock key, and unseals it.
type Sealer interface {
	Seal(ctx context.Context, key []byte) (Sealed, error)
	Unseal(ctx context.Context, s Sealed) ([]byte, error)
}

// Format makes an encrypted partition and opens it. It destroys the content of the partition. Until
// Finish, the header has the label NewLabel.
func (v Volume) Format(ctx context.Context, run Run, sealer Sealer, recipients []string) error {
	key := make([]byte, KeySize)
	rand.Read(key)
	defer clear(key)
	recovery := NewRecoveryKey()
	m := Metadata{Slot: 0}
	var err error
	if m.Sealed, err = sealer.Seal(ctx, key); err != nil {
		return fmt.Errorf("%s: cannot encrypt %s: %w", v.Device, v.Label, err)
	}
	if m.Recovery, err = EncryptRecovery(recovery, recipients); err != nil {
		return fmt.Errorf("%s: cannot encrypt %s: %w", v.Device, v.Label, err)
	}
	metadata, err := v.metadataCommand(m)
	if err != nil {
		return err
	}
	return v.all(ctx, run, "cannot encrypt", v.formatCommand(key), v.addKeyCommand(RecoverySlot, key, []byte(recovery)), metadata, v.openCommand(key))
}

// Finish gives the header its final label, when the file system is complete.
func (v Volume) Finish(ctx context.Context, run Run) error {
	return v.all(ctx, run, "cannot complete the encryption of", Command{Args: []string{paths.Cryptsetup, "config", "--batch-mode", "--label", v.Label, v.Device}})
}

// Open opens the partition with the key that the TPM releases.
func (v Volume) Open(ctx context.Context, run Run, sealer Sealer, m Metadata) error {
	key, err := sealer.Unseal(ctx, m.Sealed)
	if err != nil {
		return fmt.Errorf("%s: cannot open %s: %w", v.Device, v.Label, err)
	}
	defer clear(key)
	return v.all(ctx, run, "cannot open", v.openCommand(key))
}

// Recover replaces the unlock key of a partition by a new one, which the TPM seals to the running
// boot. It does not open the partition: the next boot does. After a power cut, either the former or
// the new sealed key is in the header, and the recovery key stays valid.
func (v Volume) Recover(ctx context.Context, run Run, sealer Sealer, m Metadata, recovery RecoveryKey) error {
	if err := v.all(ctx, run, "the recovery key does not open", v.testCommand([]byte(recovery))); err != nil {
		return err
	}
	key := make([]byte, KeySize)
	rand.Read(key)
	defer clear(key)
	former, spare := m.Slot, m.spareSlot()
	sealed, err := sealer.Seal(ctx, key)
	if err != nil {
		return fmt.Errorf("%s: cannot seal a new key for %s: %w", v.Device, v.Label, err)
	}
	m.Slot, m.Sealed = spare, sealed
	metadata, err := v.metadataCommand(m)
	if err != nil {
		return err
	}
	// A recovery that a power cut has interrupted may have used the spare slot already. An empty
	// slot is an error of this command, and no fault.
	_ = run(ctx, v.removeKeyCommand(spare, []byte(recovery)))
	if err := v.all(ctx, run, "cannot store a new key for", v.addKeyCommand(spare, []byte(recovery), key), metadata); err != nil {
		return err
	}
	return v.all(ctx, run, "cannot remove the former key of", v.removeKeyCommand(former, []byte(recovery)))
}

// DestroyKeys destroys all key slots in both copies of the header. Afterwards no key opens the
// partition.
func (v Volume) DestroyKeys(ctx context.Context, run Run) error {
	return v.all(ctx, run, "cannot destroy the keys of", Command{Args: []string{paths.Cryptsetup, "erase", "--batch-mode", v.Device}})
}

// Close closes the mapped device.
func (v Volume) Close(ctx context.Context, run Run) error {
	return v.all(ctx, run, "cannot close", Command{Args: []string{paths.Cryptsetup, "close", Mapping(v.Label)}})
}

// all runs commands in order, up to the first error.
func (v Volume) all(ctx context.Context, run Run, failure string, commands ...Command) error {
	for _, c := range commands {
		if err := run(ctx, c); err != nil {
			return fmt.Errorf("%s: %s %s: %w", v.Device, failure, v.Label, err)
		}
	}
	return nil
}
