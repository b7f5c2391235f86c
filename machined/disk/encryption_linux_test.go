package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// These tests run under the kernel of the product (`make kernel`), with its modules dm-mod,
// dm-crypt, xts and aesni-intel; ecb and aes_generic are built into Debian's kernel. The program
// cryptsetup is that of the host.

// plainSealer is the TPM of these tests. It releases the keys unless err is set.
type plainSealer struct{ err error }

func (p *plainSealer) Seal(_ context.Context, key []byte) (diskkey.Sealed, error) {
	return diskkey.Sealed{Private: bytes.Clone(key)}, p.err
}

func (p *plainSealer) Unseal(_ context.Context, s diskkey.Sealed) ([]byte, error) {
	return bytes.Clone(s.Private), p.err
}

// newCrypt returns the access to encrypted volumes.
func newCrypt(t *testing.T) (*Cryptsetup, *plainSealer) {
	t.Helper()
	mkfstest.Overwrites(t)
	c := fileCrypt(t)
	t.Cleanup(func() { lockAll(t, c) })
	return c, c.Sealer.(*plainSealer)
}

// runProgram runs a program as the reaper of machined does.
func runProgram(ctx context.Context, c supervise.Command) ([]byte, error) {
	command := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	command.Stdin, command.ExtraFiles, command.Env = bytes.NewReader(c.Stdin), c.Files, c.Env
	out, err := command.CombinedOutput()
	if err != nil {
		err = &supervise.ExitError{Args: c.Args, Exit: supervise.Exit{Code: command.ProcessState.ExitCode()}, Output: string(out)}
	}
	return out, err
}

// lockAll unmounts and closes the volumes, as a power cut does.
func lockAll(t *testing.T, c *Cryptsetup) {
	t.Helper()
	for _, target := range []string{paths.State, paths.Data} {
		if err := mount.Unmount(target); err != nil {
			t.Fatal(err)
		}
	}
	for _, label := range []string{layout.State, layout.Data} {
		if err := c.close(context.Background(), diskkey.Volume{Label: label}); err != nil {
			t.Fatal(err)
		}
	}
}

// remaining returns the operations that lead to mounted volumes.
func remaining(t *testing.T, c *Cryptsetup, s scenario) []reconcile.Op {
	t.Helper()
	have := facts(t, s)
	want, err := Plan(s.config, have)
	if err != nil {
		t.Fatal(err)
	}
	return withCrypt(Diff(have, want, mkfstest.Run), c, nil)
}

// converge performs the operations until none remains: after the first round the content of the
// volumes is known, so a file system can grow in the second.
func converge(t *testing.T, c *Cryptsetup, s scenario) {
	t.Helper()
	for range 3 {
		ops := remaining(t, c, s)
		if len(ops) == 0 {
			return
		}
		for _, op := range ops {
			do(t, op)
		}
	}
	t.Errorf("operations remain:\n%s", printed(remaining(t, c, s), nil))
}

// encryptedFirstBoot returns the scenario of a first boot, and the private key of its recipient.
func encryptedFirstBoot(t *testing.T) (scenario, *age.X25519Identity) {
	t.Helper()
	operator, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	s := encrypted[0]
	s.config.Recipients = []string{operator.Recipient().String()}
	return s, operator
}

// write writes a secret to both volumes, and flushes it.
func write(t *testing.T, secret string) {
	t.Helper()
	for _, dir := range []string{paths.State, paths.Data} {
		f, err := os.Create(filepath.Join(dir, "secret"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(secret)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEncryptedOnRealDisk formats both volumes, and opens them at the next boot. The golden
// files have the operations. No secret is on the disk in plain text. If the TPM keeps the keys, the
// machine changes nothing, and the recovery key opens its volumes.
func TestEncryptedOnRealDisk(t *testing.T) {
	c, tpm := newCrypt(t)
	s, operator := encryptedFirstBoot(t)
	build(t, s)
	golden.Assert(t, printed(remaining(t, c, s), nil), s.name+".txt")
	converge(t, c, s)
	const secret = "the key of the cluster, which no thief may read"
	write(t, secret)
	lockAll(t, c)
	if found, err := diskContains("aes-xts-plain64"); err != nil || !found { // in the headers
		t.Fatalf("the search finds the cipher in a header: %t, %v", found, err)
	}
	if found, err := diskContains(secret); err != nil || found {
		t.Fatalf("the secret is on the disk in plain text: %t, %v", found, err)
	}
	golden.Assert(t, printed(remaining(t, c, scenario{}), nil), "later boot, encrypted.txt")

	tpm.err = diskkey.ErrSecureBoot
	// The machine stops at the first error.
	first := remaining(t, c, scenario{config: Config{Wipe: true}})[0]
	if err := first.Do(t.Context()); !errors.Is(err, diskkey.ErrSecureBoot) || !strings.Contains(err.Error(), "orlopctl disk recover") {
		t.Fatalf("%s: %v", first, err)
	}
	tpm.err = nil
	// STATE is locked, so the recovery reads the secret for DATA from STATE.
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: recoveryKeys(t, operator)}); err != nil {
		t.Fatal(err)
	}
	converge(t, c, scenario{})
	for _, dir := range []string{paths.State, paths.Data} {
		if got, err := os.ReadFile(filepath.Join(dir, "secret")); err != nil || string(got) != secret {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
}

// diskContains reports whether the disk contains a text. It reads a part of the disk at a time,
// because the disk is larger than the memory.
func diskContains(text string) (bool, error) {
	f, err := os.Open(mkfstest.Disk)
	if err != nil {
		return false, err
	}
	defer f.Close()
	part, kept := make([]byte, 1<<20), 0 // kept bytes at the beginning are from the last part
	for {
		n, err := f.Read(part[kept:])
		if bytes.Contains(part[:kept+n], []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		n += kept
		kept = min(n, len(text)-1)
		copy(part, part[n-kept:n])
	}
}

// recoveryKeys returns the locked volumes with their recovery keys.
func recoveryKeys(t *testing.T, operator age.Identity) (all []diskkey.Recovering) {
	t.Helper()
	for _, label := range []string{layout.State, layout.Data} {
		v := diskkey.Volume{Device: partitionWith(t, label).Path, Label: label}
		h, err := readMetadata(v)
		if err != nil {
			t.Fatal(err)
		}
		content, err := h.Metadata.Recovery.Decrypt(operator)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, diskkey.Recovering{Volume: v, Key: content.Key, Bound: content.Binding})
	}
	return all
}

// TestReplacedOnRealDisk zeroes STATE beside an encrypted DATA. The machine makes a new STATE, and
// DATA stays locked although the TPM releases its key. With the recovery key, the operator binds
// DATA to the new STATE. Then a copy of STATE in the place of DATA does not open.
func TestReplacedOnRealDisk(t *testing.T) {
	c, _ := newCrypt(t)
	s, operator := encryptedFirstBoot(t)
	build(t, s)
	converge(t, c, s)
	write(t, "kept")
	lockAll(t, c)
	do(t, Wipe{Label: layout.State, Device: partitionWith(t, layout.State).Path})
	var failed error
	for _, op := range remaining(t, c, s) {
		if failed = op.Do(t.Context()); failed != nil {
			break
		}
	}
	if failed == nil || !strings.Contains(failed.Error(), "the key of the TPM does not open DATA") {
		t.Fatalf("DATA opens beside another STATE: %v", failed)
	}
	data := recoveryKeys(t, operator)[1:]
	wrong := slices.Clone(data)
	wrong[0].Key = diskkey.NewRecoveryKey()
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: wrong, NewState: true}); err == nil {
		t.Error("a wrong recovery key is accepted")
	}
	// The STATE could be that of a thief, open or locked. Only the operator can permit it.
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: data}); !errors.Is(err, diskkey.ErrOtherState) {
		t.Errorf("DATA is bound to another STATE: %v", err)
	}
	lockAll(t, c)
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: recoveryKeys(t, operator)}); !errors.Is(err, diskkey.ErrOtherState) {
		t.Errorf("DATA is bound to another STATE, which is locked: %v", err)
	}
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: recoveryKeys(t, operator), NewState: true}); err != nil {
		t.Fatal(err)
	}
	converge(t, c, s)
	if got, err := os.ReadFile(filepath.Join(paths.Data, "secret")); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLostBindingOnRealDisk deletes the file on STATE. DATA stays locked, and only with the
// permission of the operator the machine makes another secret: if STATE is locked, after STATE.
func TestLostBindingOnRealDisk(t *testing.T) {
	c, _ := newCrypt(t)
	s, operator := encryptedFirstBoot(t)
	for _, locked := range []bool{false, true} {
		build(t, s)
		converge(t, c, s)
		write(t, "kept")
		if err := os.Remove(paths.DiskBinding); err != nil {
			t.Fatal(err)
		}
		lockAll(t, c)
		request := RecoverRequest{Volumes: recoveryKeys(t, operator), NewState: true, Recipients: s.config.Recipients}
		if locked {
			if err := c.Recover(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		var failed error
		for _, op := range remaining(t, c, s) {
			if failed = op.Do(t.Context()); failed != nil {
				break
			}
		}
		if !errors.Is(failed, errLost) || strings.Contains(failed.Error(), "--new-state") {
			t.Fatalf("DATA without a secret: %v", failed)
		}
		request.Volumes, request.NewState = request.Volumes[1:], false
		if err := c.Recover(t.Context(), request); !errors.Is(err, errLost) {
			t.Errorf("without the permission: %v", err)
		}
		request.NewState = true
		if err := c.Recover(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		converge(t, c, s)
		if got, err := os.ReadFile(filepath.Join(paths.Data, "secret")); err != nil || string(got) != "kept" {
			t.Errorf("%q, %v", got, err)
		}
		lockAll(t, c)
	}
}

// TestMaySeal checks that no key is sealed, and nothing is wiped, if Secure Boot is off.
func TestMaySeal(t *testing.T) {
	off := errors.New("Secure Boot is off")
	never := func(context.Context, supervise.Command) ([]byte, error) { t.Error("a command runs"); return nil, nil }
	c := &Cryptsetup{RunCommand: never, Sealer: &plainSealer{}, LoadModules: func(...string) error { return nil }, MaySeal: func() error { return off }}
	v := diskkey.Volume{Device: filepath.Join(t.TempDir(), "missing"), Label: layout.State}
	if err := c.Encrypt(t.Context(), v, []string{"age1example"}); !errors.Is(err, off) {
		t.Errorf("encrypt: %v", err)
	}
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: []diskkey.Recovering{{Volume: v, Key: diskkey.NewRecoveryKey()}}}); !errors.Is(err, off) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("recover: %v", err)
	}
}

// TestDestroyDamaged destroys the keys of a volume with a damaged header, for which cryptsetup is
// not started.
func TestDestroyDamaged(t *testing.T) {
	never := func(context.Context, supervise.Command) ([]byte, error) { t.Error("a command runs"); return nil, nil }
	v := diskkey.Volume{Device: filepath.Join(t.TempDir(), "partition"), Label: "no volume"}
	const size = 2*diskkey.HeaderSize + 1
	if err := os.WriteFile(v.Device, bytes.Repeat([]byte{1}, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Cryptsetup{RunCommand: never}).DestroyKeys(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(v.Device)
	if err != nil || len(after) != size || !bytes.Equal(after[:diskkey.HeaderSize], make([]byte, diskkey.HeaderSize)) || after[diskkey.HeaderSize] != 1 {
		t.Errorf("the key slots are still on the disk (%v)", err)
	}
	// The next boot formats the partition.
	if content, err := examineOwn(bytes.NewReader(after), size); err != nil || !content.blank() {
		t.Errorf("afterwards the partition has %s (%v)", content, err)
	}
}

// TestNoBinding checks that DATA is neither opened nor encrypted if no encrypted STATE is mounted,
// and that an opened volume with another file system is refused.
func TestNoBinding(t *testing.T) {
	never := func(context.Context, supervise.Command) ([]byte, error) { t.Error("a command runs"); return nil, nil }
	c := &Cryptsetup{RunCommand: never, Sealer: &plainSealer{}, LoadModules: func(...string) error { return nil }, MaySeal: func() error { return nil }}
	v := diskkey.Volume{Device: filepath.Join(t.TempDir(), "missing"), Label: layout.Data}
	if err := c.Encrypt(t.Context(), v, nil); !errors.Is(err, diskkey.ErrBinding) {
		t.Errorf("encrypt: %v", err)
	}
	if err := c.Bind(t.Context(), []string{"age1example"}); !errors.Is(err, diskkey.ErrBinding) {
		t.Errorf("bind: %v", err)
	}
	for _, content := range []Content{{}, ext4(layout.State, 1), {Kind: "ext4"}, {Kind: "xfs", Label: layout.Data}} {
		if checkOpened(v, content) == nil {
			t.Errorf("DATA with %s is used", content)
		}
	}
	if err := checkOpened(v, ext4(layout.Data, 1)); err != nil {
		t.Error(err)
	}
}

func partitionWith(t *testing.T, label string) Partition {
	t.Helper()
	for _, p := range facts(t, scenario{}).Disks[0].Partitions {
		if p.Label == label {
			return p
		}
	}
	t.Fatalf("no partition %s", label)
	return Partition{}
}

// TestEncryptedStops stops the first boot after each operation, and performs each operation twice.
func TestEncryptedStops(t *testing.T) {
	c, _ := newCrypt(t)
	s, _ := encryptedFirstBoot(t)
	for stop := 1; ; stop++ {
		build(t, s)
		ops := remaining(t, c, s)
		if stop > len(ops) {
			break
		}
		for _, op := range ops[:stop] {
			do(t, op)
			do(t, op) // every operation is safe to repeat
		}
		lockAll(t, c)
		converge(t, c, s)
		checkOpen(t, c)
		lockAll(t, c)
	}
}

// TestEncryptedGrows opens the volumes after the disk has grown: the partition and the file system
// of DATA grow, and the data stay.
func TestEncryptedGrows(t *testing.T) {
	c, _ := newCrypt(t)
	s, _ := encryptedFirstBoot(t)
	i := slices.IndexFunc(encrypted, func(s scenario) bool { return s.name == "disk has grown, encrypted" })
	grown := encrypted[i]
	s.disk.tableSize, s.disk.partitions = grown.disk.tableSize, imageAnd(blank(state), blank(smallData))
	build(t, s)
	// The volumes are made in the partitions as they are: the disk has not grown yet.
	for _, op := range remaining(t, c, s) {
		if _, table := op.(WriteTable); !table {
			do(t, op)
		}
	}
	write(t, "kept")
	before := partitionWith(t, layout.Data)
	if before.Size != 1100*mib || before.Content.Size+diskkey.HeaderSize > before.Size {
		t.Fatalf("before, DATA has %d bytes, its file system %d", before.Size, before.Content.Size)
	}
	lockAll(t, c)
	golden.Assert(t, printed(remaining(t, c, scenario{}), nil), grown.name+".txt")
	converge(t, c, scenario{})
	after := partitionWith(t, layout.Data)
	if after.Size <= before.Size+growStep || after.Content.Size <= before.Content.Size+growStep || after.Content.Size+diskkey.HeaderSize+growStep < after.Size {
		t.Errorf("DATA has %d bytes, its file system %d; before %d and %d", after.Size, after.Content.Size, before.Size, before.Content.Size)
	}
	checkKept(t)
}

// checkKept checks the files of write, with the text "kept".
func checkKept(t *testing.T) {
	t.Helper()
	for _, dir := range []string{paths.State, paths.Data} {
		if got, err := os.ReadFile(filepath.Join(dir, "secret")); err != nil || string(got) != "kept" {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
}

// TestEncryptedReset destroys the keys, and checks that afterwards the recovery key opens nothing.
// Both volumes are still mounted, so they cannot be closed, which is no error. The next boot
// formats both volumes.
func TestEncryptedReset(t *testing.T) {
	c, _ := newCrypt(t)
	s, operator := encryptedFirstBoot(t)
	build(t, s)
	converge(t, c, s)
	keys := recoveryKeys(t, operator)
	ops := withCrypt(Reset(facts(t, s), []string{layout.Data, layout.State}, nil), c, nil)
	golden.Assert(t, printed(ops, nil), "reset, encrypted.txt")
	for range 2 { // an interrupted reset repeats them
		do(t, ops[0])
		do(t, ops[1])
	}
	lockAll(t, c)
	if err := c.Recover(t.Context(), RecoverRequest{Volumes: keys}); err == nil {
		t.Error("the recovery key opens a volume whose keys are destroyed")
	}
	for _, op := range ops[2:] {
		do(t, op)
	}
	converge(t, c, s)
	checkOpen(t, c)
}

// checkOpen writes to both volumes, and reads the data back after the next boot.
func checkOpen(t *testing.T, c *Cryptsetup) {
	t.Helper()
	write(t, "kept")
	lockAll(t, c)
	converge(t, c, scenario{})
	checkKept(t)
}
