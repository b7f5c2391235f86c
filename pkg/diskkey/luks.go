package diskkey

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Command is a run of cryptsetup. The keys are on the standard input and in the pipe with file
// descriptor 3, and never in the arguments, which all processes can read.
type Command struct {
	Args  []string // path of the program, and arguments
	Stdin []byte
	Pipe  []byte // content of file descriptor 3; nil if it is not open
}

// Run runs a command until it exits. A nonzero exit status is an error. For the exit status
// WrongKey, the error wraps ErrKey.
type Run func(ctx context.Context, c Command) error

// WrongKey is the exit status of cryptsetup if no key slot opens with the key (cryptsetup(8)).
const WrongKey = 2

// ErrKey means that the key opens no key slot. ErrKept means that the TPM has not released a key.
var (
	ErrKey  = errors.New("the key opens no key slot")
	ErrKept = errors.New("the TPM has not released its key")
)

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
	Secret []byte // of the binding; only for DATA
}

// formatCommand makes the header that area.check accepts. The keys are random, so a slow function
// in front of a key slot would only delay the boot: pbkdf2 with the fewest iterations that
// cryptsetup permits. The metadata area has 64 KiB, because an encrypted recovery key needs up to
// 16 KiB.
func (v Volume) formatCommand(id uuid.UUID, passphrase []byte) Command {
	return Command{Stdin: passphrase, Args: append([]string{paths.Cryptsetup, "luksFormat", "--batch-mode", "--type", "luks2",
		"--cipher", "aes-xts-plain64", "--key-size", "512", "--sector-size", "4096", "--luks2-metadata-size", "64k", "--offset", strconv.Itoa(HeaderSize / 512),
		"--label", NewLabel, "--uuid", id.String(), "--key-slot", "0", "--key-file", "-"}, append(slowness(), v.Device)...)}
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

// openCommand opens the partition as a mapped device with the name.
func (v Volume) openCommand(passphrase []byte, name string) Command {
	return Command{Stdin: passphrase, Args: []string{paths.Cryptsetup, "open", "--batch-mode", "--type", "luks2", "--key-file", "-", v.Device, name}}
}

// testCommand checks that a key opens a slot, and opens nothing.
func (v Volume) testCommand(key []byte) Command {
	return Command{Stdin: key, Args: []string{paths.Cryptsetup, "open", "--batch-mode", "--type", "luks2", "--test-passphrase", "--key-file", "-", v.Device}}
}

// Sealer seals an unlock key, and unseals it. Seal fails if the running boot could not unseal the
// result, apart from the end of the phase.
type Sealer interface {
	Seal(ctx context.Context, key []byte) (Sealed, error)
	Unseal(ctx context.Context, s Sealed) ([]byte, error)
}

// newKey returns a new unlock key in sealed form, and its passphrase.
func (v Volume) newKey(ctx context.Context, sealer Sealer) (Sealed, []byte, error) {
	key := make([]byte, KeySize)
	rand.Read(key)
	defer clear(key)
	passphrase, err := v.passphrase(key)
	if err != nil {
		return Sealed{}, nil, err
	}
	sealed, err := sealer.Seal(ctx, key)
	if err != nil {
		return Sealed{}, nil, fmt.Errorf("%s: cannot seal a key for %s: %w", v.Device, v.Label, err)
	}
	return sealed, passphrase, nil
}

// Format makes an encrypted partition and opens it. It destroys the content of the partition, which
// wipe removes first. If the TPM seals no key, Format changes nothing. Until Finish, the header has
// the label NewLabel.
func (v Volume) Format(ctx context.Context, run Run, sealer Sealer, recipients []string, wipe func() error) error {
	sealed, passphrase, err := v.newKey(ctx, sealer)
	if err != nil {
		return err
	}
	defer clear(passphrase)
	content := RecoveryContent{Label: v.Label, UUID: uuid.New(), Key: NewRecoveryKey(), Binding: bindingDigest(v.Secret)}
	recovery, err := EncryptRecovery(content, recipients)
	if err != nil {
		return fmt.Errorf("%s: cannot encrypt %s: %w", v.Device, v.Label, err)
	}
	metadata, err := v.metadataCommand(Metadata{Slot: 0, Sealed: sealed, Recovery: recovery})
	if err != nil {
		return err
	}
	if err := wipe(); err != nil {
		return fmt.Errorf("%s: cannot wipe %s: %w", v.Device, v.Label, err)
	}
	return v.all(ctx, run, "cannot encrypt", v.formatCommand(content.UUID, passphrase), v.addKeyCommand(RecoverySlot, passphrase, []byte(content.Key)), metadata,
		v.openCommand(passphrase, Mapping(v.Label)))
}

// Finish gives the header its final label, when the file system is complete.
func (v Volume) Finish(ctx context.Context, run Run) error {
	return v.all(ctx, run, "cannot complete the encryption of", Command{Args: []string{paths.Cryptsetup, "config", "--batch-mode", "--label", v.Label, v.Device}})
}

// Open opens the partition with the key that the TPM releases.
func (v Volume) Open(ctx context.Context, run Run, sealer Sealer, m Metadata) error {
	key, err := sealer.Unseal(ctx, m.Sealed)
	if err != nil {
		return fmt.Errorf("%s: cannot open %s: %w: %w", v.Device, v.Label, ErrKept, err)
	}
	defer clear(key)
	passphrase, err := v.passphrase(key)
	if err != nil {
		return err
	}
	defer clear(passphrase)
	cause := "its header was changed"
	if v.Label != layout.State {
		cause = "STATE and DATA do not belong together"
	}
	return v.try(ctx, run, v.openCommand(passphrase, Mapping(v.Label)), "the key of the TPM does not open", cause+", see task 136 of the runbook")
}

// OpenWith opens the partition with its recovery key, as a mapped device with the name.
func (v Volume) OpenWith(ctx context.Context, run Run, key RecoveryKey, name string) error {
	return v.try(ctx, run, v.openCommand([]byte(key), name), "the recovery key does not open", "it is the key of another volume")
}

// Test checks that a recovery key opens the partition.
func (v Volume) Test(ctx context.Context, run Run, key RecoveryKey) error {
	return v.try(ctx, run, v.testCommand([]byte(key)), "the recovery key does not open", "it is the key of another volume")
}

// try runs a command with a key. Only for a wrong key, the error has the texts failure and cause.
func (v Volume) try(ctx context.Context, run Run, c Command, failure, cause string) error {
	err := run(ctx, c)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrKey):
		return fmt.Errorf("%s: %s %s: %s: %w", v.Device, failure, v.Label, cause, err)
	}
	return fmt.Errorf("%s: cannot open %s: cryptsetup failed: %w", v.Device, v.Label, err)
}

// Recovering is a locked volume with its recovery key.
type Recovering struct {
	Volume
	Metadata
	UUID  uuid.UUID // of the header
	Slots []int     // in use
	Key   RecoveryKey
	Bound string // RecoveryContent.Binding
}

// Recover replaces the unlock keys of volumes by new ones, which the TPM seals to the running boot.
// It binds DATA to the present STATE. It opens no volume: the next boot does. It changes nothing if
// a recovery key is wrong, if DATA is bound to another STATE, or if the TPM seals no key. After a
// power cut, each header has either the former or the new sealed key, and the recovery keys stay
// valid.
func Recover(ctx context.Context, run Run, sealer Sealer, volumes []Recovering, state Present) error {
	for _, v := range volumes {
		if err := v.Test(ctx, run, v.Key); err != nil {
			return fmt.Errorf("%w; nothing was changed", err)
		}
	}
	var commands [][]Command
	for _, v := range volumes {
		replace, err := v.replaceKey(ctx, sealer, state)
		defer wipe(replace)
		if err != nil {
			return fmt.Errorf("%w; nothing was changed", err)
		}
		commands = append(commands, replace)
	}
	if state.Store != nil {
		if err := state.Store(); err != nil {
			return fmt.Errorf("cannot store the secret on STATE: %w; no key was changed", err)
		}
	}
	for i, v := range volumes {
		if err := v.all(ctx, run, "cannot replace the key of", commands[i]...); err != nil {
			return err
		}
	}
	return nil
}

// replaceKey returns the commands that replace the unlock key by a new one. A recovery that a power
// cut has interrupted may have used the spare slot already, or may have left the former key.
func (v Recovering) replaceKey(ctx context.Context, sealer Sealer, state Present) (commands []Command, err error) {
	if err := v.bindTo(state); err != nil {
		return nil, err
	}
	sealed, passphrase, err := v.newKey(ctx, sealer)
	if err != nil {
		return nil, err
	}
	key, former, spare := []byte(v.Key), v.Slot, v.spareSlot()
	v.Metadata.Slot, v.Metadata.Sealed = spare, sealed
	metadata, err := v.metadataCommand(v.Metadata)
	if slices.Contains(v.Slots, spare) {
		commands = append(commands, v.removeKeyCommand(spare, key))
	}
	commands = append(commands, v.addKeyCommand(spare, key, passphrase), metadata)
	if slices.Contains(v.Slots, former) {
		commands = append(commands, v.removeKeyCommand(former, key))
	}
	return commands, err
}

// wipe wipes the keys in commands.
func wipe(commands []Command) {
	for _, c := range commands {
		clear(c.Stdin)
		clear(c.Pipe)
	}
}

// DestroyKeys destroys all key slots in both copies of the header, also if the partition is open.
// Afterwards no key opens the partition. A copy of the header that a person has retained stays
// valid.
func (v Volume) DestroyKeys(ctx context.Context, run Run) error {
	return v.all(ctx, run, "cannot destroy the keys of", Command{Args: []string{paths.Cryptsetup, "erase", "--batch-mode", v.Device}})
}

// Close closes the mapped device with the name.
func (v Volume) Close(ctx context.Context, run Run, name string) error {
	return v.all(ctx, run, "cannot close", Command{Args: []string{paths.Cryptsetup, "close", name}})
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
