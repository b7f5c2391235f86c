package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// These tests run on the host: no volume is opened.

// fileCrypt returns the access to encrypted volumes in files, with the program of the host.
func fileCrypt(t *testing.T) *Cryptsetup {
	t.Helper()
	if _, err := os.Stat(paths.Cryptsetup); err != nil {
		t.Skip("cryptsetup is not installed on the host, which is a package of Debian (imager/host-packages.txt)")
	}
	none := func() error { return nil }
	return &Cryptsetup{RunCommand: runProgram, Sealer: &plainSealer{}, LoadModules: func(...string) error { return nil }, MaySeal: none}
}

// formatFile makes an encrypted STATE in a file, and returns it with its recovery key.
func formatFile(t *testing.T, c *Cryptsetup) diskkey.Recovering {
	t.Helper()
	v := diskkey.Volume{Device: filepath.Join(t.TempDir(), "partition"), Label: layout.State}
	operator, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(v.Device, nil, 0o600), os.Truncate(v.Device, 24<<20)); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, command diskkey.Command) error {
		if command.Args[1] == "open" {
			return nil
		}
		return c.run(ctx, command)
	}
	none := func() error { return nil }
	if err := errors.Join(v.Format(t.Context(), run, c.Sealer, []string{operator.Recipient().String()}, none), v.Finish(t.Context(), run)); err != nil {
		t.Fatal(err)
	}
	h, err := readMetadata(v)
	if err != nil {
		t.Fatal(err)
	}
	content, err := h.Metadata.Recovery.Decrypt(operator)
	if err != nil {
		t.Fatal(err)
	}
	return diskkey.Recovering{Volume: v, Key: content.Key, Bound: content.Binding}
}

// opens reports whether the key that the TPM releases opens a volume.
func opens(t *testing.T, c *Cryptsetup, v diskkey.Volume) bool {
	t.Helper()
	h, err := readMetadata(v)
	if err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, command diskkey.Command) error {
		command.Args = append(command.Args[:len(command.Args)-1], "--test-passphrase")
		return c.run(ctx, command)
	}
	return v.Open(t.Context(), run, c.Sealer, *h.Metadata) == nil
}

// TestRecoverTwice recovers a volume twice at the same time. The second recovery reads the header
// after the first, so it does not remove the key slot of the first.
func TestRecoverTwice(t *testing.T) {
	c := fileCrypt(t)
	v := formatFile(t, c)
	first, err := readMetadata(v.Volume)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	for range 2 {
		go func() {
			// The callers have read the header at the same time.
			r := v
			r.Metadata, r.Slots = *first.Metadata, first.Slots
			failed <- c.Recover(t.Context(), RecoverRequest{Volumes: []diskkey.Recovering{r}})
		}()
	}
	if err := errors.Join(<-failed, <-failed); err != nil {
		t.Fatal(err)
	}
	if h, err := readMetadata(v.Volume); err != nil || h.Metadata.Slot != 0 || !slices.Equal(h.Slots, []int{0, 1}) {
		t.Errorf("%+v, %v", h, err)
	}
	if !opens(t, c, v.Volume) {
		t.Error("the new key does not open the volume")
	}
}

// TestRecoverWrongKey checks that a wrong recovery key changes nothing.
func TestRecoverWrongKey(t *testing.T) {
	c := fileCrypt(t)
	v := formatFile(t, c)
	v.Key = diskkey.NewRecoveryKey()
	err := c.Recover(t.Context(), RecoverRequest{Volumes: []diskkey.Recovering{v}})
	if !errors.Is(err, diskkey.ErrKey) || !strings.Contains(err.Error(), "nothing was changed") || !opens(t, c, v.Volume) {
		t.Errorf("a wrong key: %v", err)
	}
}

// TestUnlockAdvice checks that only a TPM that keeps its key leads to the advice to recover.
func TestUnlockAdvice(t *testing.T) {
	c := fileCrypt(t)
	v := formatFile(t, c).Volume
	ends := func(code int) func(context.Context, supervise.Command) ([]byte, error) {
		return func(context.Context, supervise.Command) ([]byte, error) {
			return nil, &supervise.ExitError{Args: []string{"cryptsetup"}, Exit: supervise.Exit{Code: code}}
		}
	}
	for _, a := range []struct {
		name   string
		sealer *plainSealer
		code   int
		want   string
		advice bool
	}{
		{"a TPM that keeps the key", &plainSealer{diskkey.ErrSecureBoot}, 0, "PCR 7 has another value", true},
		{"a wrong key", &plainSealer{}, 2, "the key of the TPM does not open STATE", false},
		{"another failure", &plainSealer{}, 1, "cannot open STATE: cryptsetup failed: cryptsetup: ended with status 1", false},
	} {
		c.Sealer, c.RunCommand = a.sealer, ends(a.code)
		_, err := c.Unlock(t.Context(), v)
		if err == nil || !strings.Contains(err.Error(), a.want) || strings.Contains(err.Error(), "orlopctl disk recover") != a.advice {
			t.Errorf("%s: %v", a.name, err)
		}
	}
}

// TestLockedFaults checks that the faults of locked volumes are named.
func TestLockedFaults(t *testing.T) {
	p := Partition{Path: "/dev/vda4", Content: Content{Kind: lockedKind, Label: layout.State}, Encryption: &Encryption{Fault: "its header is damaged"}}
	p.Label = layout.State
	open := p
	open.Content = ext4(layout.State, 1)
	if err := (Have{Disks: []Disk{{Boot: true, Table: Table{Partitions: []Partition{open, p}}}}}).lockedFaults(); err == nil || err.Error() != "/dev/vda4: cannot open STATE: its header is damaged" {
		t.Error(err)
	}
	if err := (Have{Disks: []Disk{{Table: Table{Partitions: []Partition{p}}}, {Boot: true, Table: Table{Partitions: []Partition{open}}}}}).lockedFaults(); err != nil {
		t.Error(err)
	}
}
