package diskkey

import (
	"bytes"
	"compress/gzip"
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
	"github.com/google/uuid"
)

// plainSealer seals nothing: it is the TPM of these tests.
type plainSealer struct{ fails error }

func (p plainSealer) Seal(_ context.Context, key []byte) (Sealed, error) {
	return Sealed{Private: bytes.Clone(key)}, p.fails
}

func (p plainSealer) Unseal(_ context.Context, s Sealed) ([]byte, error) {
	return bytes.Clone(s.Private), p.fails
}

// cryptsetup returns a function that runs the program of the host, without the commands that need
// the device mapper. A test is skipped if the program is not installed.
func cryptsetup(t *testing.T) Run {
	t.Helper()
	program, err := exec.LookPath("cryptsetup")
	if err != nil {
		t.Skip("cryptsetup is not installed, which is a package of Debian (imager/host-packages.txt)")
	}
	return func(ctx context.Context, c Command) error {
		args := slices.Clone(c.Args[1:])
		if args[0] == "open" && !slices.Contains(args, "--test-passphrase") {
			// The option replaces the name of the mapping.
			args = append(args[:len(args)-1], "--test-passphrase")
		}
		run := exec.CommandContext(ctx, program, args...)
		run.Stdin = bytes.NewReader(c.Stdin)
		if c.Pipe != nil {
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			defer r.Close()
			if _, err := w.Write(c.Pipe); err != nil {
				return err
			}
			w.Close()
			run.ExtraFiles = []*os.File{r}
		}
		if out, err := run.CombinedOutput(); err != nil {
			return errors.New(strings.TrimSpace(string(out)) + ": " + err.Error())
		}
		return nil
	}
}

// image returns a partition in a file.
func image(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "partition")
	if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 24<<20)); err != nil {
		t.Fatal(err)
	}
	return name
}

func header(t *testing.T, name string) Header {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := ReadHeader(f)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestVolume runs the life of an encrypted partition with cryptsetup: format, open, recovery, and
// the destruction of the keys. ReadHeader reads what cryptsetup has written.
func TestVolume(t *testing.T) {
	run, v := cryptsetup(t), Volume{Device: image(t), Label: "STATE"}
	operator, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Format(t.Context(), run, plainSealer{}, []string{operator.Recipient().String()}); err != nil {
		t.Fatal(err)
	}
	h := header(t, v.Device)
	if h.Label != NewLabel || h.Offset != 16<<20 || !slices.Equal(h.Slots, []int{0, RecoverySlot}) || h.Metadata == nil || h.Encrypting {
		t.Fatalf("header %+v", h)
	}
	if err := v.Finish(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if h = header(t, v.Device); h.Label != "STATE" {
		t.Errorf("label %q", h.Label)
	}
	if err := v.Open(t.Context(), run, plainSealer{}, *h.Metadata); err != nil {
		t.Error(err)
	}
	recovery, err := h.Metadata.Recovery.Decrypt(operator)
	if err != nil {
		t.Fatal(err)
	}
	lost := errors.New("the TPM is gone")
	if err := v.Open(t.Context(), run, plainSealer{lost}, *h.Metadata); !errors.Is(err, lost) {
		t.Errorf("open without a TPM: %v", err)
	}
	if err := v.Recover(t.Context(), run, plainSealer{}, *h.Metadata, NewRecoveryKey()); err == nil || !strings.Contains(err.Error(), "the recovery key does not open STATE") {
		t.Errorf("a wrong recovery key: %v", err)
	}
	for range 2 { // the second recovery uses the first slot again
		if err := v.Recover(t.Context(), run, plainSealer{}, *h.Metadata, recovery); err != nil {
			t.Fatal(err)
		}
		former := h
		h = header(t, v.Device)
		if len(h.Slots) != 2 || h.Metadata.Slot == former.Metadata.Slot || bytes.Equal(h.Metadata.Sealed.Private, former.Metadata.Sealed.Private) {
			t.Errorf("after the recovery: %+v", h)
		}
		if err := v.Open(t.Context(), run, plainSealer{}, *h.Metadata); err != nil {
			t.Error(err)
		}
		if err := v.Open(t.Context(), run, plainSealer{}, *former.Metadata); err == nil {
			t.Error("the former unlock key still opens the partition")
		}
	}
	raw, err := os.ReadFile(v.Device)
	if err != nil || bytes.Contains(raw, []byte(recovery)) {
		t.Errorf("the recovery key is on the disk (%v)", err)
	}
	if err := v.DestroyKeys(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if after := header(t, v.Device); len(after.Slots) != 0 {
		t.Errorf("slots after the destruction: %v", after.Slots)
	}
	if err := run(t.Context(), v.testCommand([]byte(recovery))); err == nil {
		t.Error("the recovery key opens a partition whose keys are destroyed")
	}
}

// TestInterruptedRecovery stops a recovery after each of its commands. Afterwards the key in the
// header and the recovery key open the partition, and the next recovery succeeds.
func TestInterruptedRecovery(t *testing.T) {
	run := cryptsetup(t)
	operator, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	cut := errors.New("power cut")
	for stop := 1; ; stop++ {
		v := Volume{Device: image(t), Label: "DATA"}
		if err := v.Format(t.Context(), run, plainSealer{}, []string{operator.Recipient().String()}); err != nil {
			t.Fatal(err)
		}
		recovery, err := header(t, v.Device).Metadata.Recovery.Decrypt(operator)
		if err != nil {
			t.Fatal(err)
		}
		commands := 0
		until := func(ctx context.Context, c Command) error {
			if commands++; commands > stop {
				return cut
			}
			return run(ctx, c)
		}
		err = v.Recover(t.Context(), until, plainSealer{}, *header(t, v.Device).Metadata, recovery)
		if err != nil && !errors.Is(err, cut) {
			t.Fatal(err)
		}
		for _, again := range []bool{false, true} {
			if again {
				if err := v.Recover(t.Context(), run, plainSealer{}, *header(t, v.Device).Metadata, recovery); err != nil {
					t.Errorf("stopped after %d commands: the next recovery: %v", stop, err)
				}
			}
			if err := v.Open(t.Context(), run, plainSealer{}, *header(t, v.Device).Metadata); err != nil {
				t.Errorf("stopped after %d commands, again %v: %v", stop, again, err)
			}
		}
		if err == nil {
			break
		}
	}
}

// TestReadHeader reads a header of cryptsetup 2.7.5, and the header with damage.
func TestReadHeader(t *testing.T) {
	packed, err := gzip.NewReader(bytes.NewReader(readFile(t, "header.gz")))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, raw []byte) {
		t.Helper()
		h, err := ReadHeader(bytes.NewReader(raw))
		if err != nil || h.Label != "STATE" || h.UUID != uuid.MustParse("7a1f2c8e-5a61-4c5b-9a6d-0c1d2e3f4a5b") || h.Offset != 16<<20 ||
			!slices.Equal(h.Slots, []int{0, 1}) || h.Metadata == nil || h.Metadata.Recovery.Ciphertext != "armored" || h.Metadata.Slot != 0 {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	check("whole", raw)
	const copies = 64 << 10
	for _, at := range []int{0, 100, 4096, 5000, copies - 1} {
		for _, both := range []bool{false, true} {
			damaged := bytes.Clone(raw)
			damaged[at] ^= 0xff
			if !both {
				check("damage in the first copy", damaged)
				continue
			}
			damaged[copies+at] ^= 0xff
			if _, err := ReadHeader(bytes.NewReader(damaged)); err == nil {
				t.Errorf("damage in both copies at %d is not noticed", at)
			}
		}
	}
	for n := 0; n < len(raw); n += 4093 {
		h, err := ReadHeader(bytes.NewReader(raw[:n]))
		if err == nil && h.Label != "STATE" {
			t.Errorf("the first %d bytes: %+v", n, h)
		}
	}
}

func TestRecoveryKey(t *testing.T) {
	operator, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	second, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	key := NewRecoveryKey()
	if len(key) != 64 || key == NewRecoveryKey() {
		t.Errorf("key of %d characters", len(key))
	}
	for _, typed := range []string{string(key), strings.ToUpper(string(key)), strings.ReplaceAll(string(key), "-", ""), " " + strings.ReplaceAll(string(key), "-", " ") + "\n"} {
		if got, err := ParseRecoveryKey(typed); err != nil || got != key {
			t.Errorf("a key as typed: %v", err)
		}
	}
	for _, bad := range []string{"", string(key)[:60], string(key) + "a", strings.Replace(string(key), string(key[0]), "1", 1)} {
		if _, err := ParseRecoveryKey(bad); err == nil || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("a bad key: %v", err)
		}
	}
	r, err := EncryptRecovery(key, []string{operator.Recipient().String(), second.Recipient().String()})
	if err != nil || strings.Contains(r.Ciphertext, string(key)) {
		t.Fatalf("%v", err)
	}
	for _, identity := range []age.Identity{operator, second} {
		if got, err := r.Decrypt(identity); err != nil || got != key {
			t.Error(err)
		}
	}
	stranger, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Decrypt(stranger); err == nil || !strings.Contains(err.Error(), operator.Recipient().String()) {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := EncryptRecovery(key, nil); err == nil {
		t.Error("a recovery key without recipients")
	}
	if _, err := EncryptRecovery(key, []string{"age1nobody"}); err == nil {
		t.Error("a wrong recipient is accepted")
	}
}
