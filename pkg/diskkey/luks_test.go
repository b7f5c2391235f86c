package diskkey

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"
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
		out, err := run.CombinedOutput()
		if err == nil {
			return nil
		}
		err = errors.New(strings.TrimSpace(string(out)) + ": " + err.Error())
		if run.ProcessState.ExitCode() == WrongKey {
			err = fmt.Errorf("%w: %w", ErrKey, err)
		}
		return err
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

// secret is the secret of a STATE in these tests.
var secret = bytes.Repeat([]byte{5}, secretSize)

// formatted returns an encrypted partition with a complete header, and its operator.
func formatted(t *testing.T, run Run, label string) (Volume, *age.X25519Identity) {
	t.Helper()
	v := Volume{Device: image(t), Label: label}
	if label != "STATE" {
		v.Secret = secret
	}
	operator, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	nothing := func() error { return nil }
	if err := errors.Join(v.Format(t.Context(), run, plainSealer{}, []string{operator.Recipient().String()}, nothing), v.Finish(t.Context(), run)); err != nil {
		t.Fatal(err)
	}
	return v, operator
}

// recoveryOf decrypts the recovery key of a partition.
func recoveryOf(t *testing.T, v Volume, operator age.Identity) Recovering {
	t.Helper()
	h := header(t, v.Device)
	c, err := h.Metadata.Recovery.Decrypt(operator)
	if err != nil || c.Label != v.Label || c.UUID != h.UUID {
		t.Fatalf("the recovery key is that of %s %s (%v)", c.Label, c.UUID, err)
	}
	return Recovering{Volume: v, Metadata: *h.Metadata, UUID: h.UUID, Slots: h.Slots, Key: c.Key, Bound: c.Binding}
}

// own is the STATE of these tests.
var own = Present{Binding: Binding{Secret: secret}}

// TestVolume runs the life of an encrypted partition with cryptsetup: format, open, recovery, and
// the destruction of the keys. ReadHeader accepts what cryptsetup has written.
func TestVolume(t *testing.T) {
	run := cryptsetup(t)
	v, operator := formatted(t, run, "STATE")
	h := header(t, v.Device)
	if h.Label != "STATE" || !slices.Equal(h.Slots, []int{0, RecoverySlot}) || h.Metadata == nil {
		t.Fatalf("header %+v", h)
	}
	if err := v.Open(t.Context(), run, plainSealer{}, *h.Metadata); err != nil {
		t.Error(err)
	}
	lost := errors.New("the TPM is gone")
	if err := v.Open(t.Context(), run, plainSealer{lost}, *h.Metadata); !errors.Is(err, lost) {
		t.Errorf("open without a TPM: %v", err)
	}
	r := recoveryOf(t, v, operator)
	for range 2 { // the second recovery uses the first slot again
		if err := Recover(t.Context(), run, plainSealer{}, []Recovering{r}, own); err != nil {
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
		r.Metadata, r.Slots = *h.Metadata, h.Slots
	}
	raw, err := os.ReadFile(v.Device)
	if err != nil || bytes.Contains(raw, []byte(r.Key)) {
		t.Errorf("the recovery key is on the disk (%v)", err)
	}
	if err := v.DestroyKeys(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if after := header(t, v.Device); len(after.Slots) != 0 {
		t.Errorf("slots after the destruction: %v", after.Slots)
	}
	if err := v.Test(t.Context(), run, r.Key); err == nil {
		t.Error("the recovery key opens a partition whose keys are destroyed")
	}
}

// TestBinding checks that the key of the TPM alone opens no DATA, and that no volume opens in the
// place of the other one. The recovery key opens DATA anywhere.
func TestBinding(t *testing.T) {
	run := cryptsetup(t)
	state, _ := formatted(t, run, "STATE")
	data, operator := formatted(t, run, "DATA")
	other := bytes.Repeat([]byte{6}, secretSize)
	for _, c := range []struct {
		name   string
		device string
		label  string
		secret []byte
		opens  bool
	}{
		{"STATE", state.Device, "STATE", nil, true},
		{"DATA", data.Device, "DATA", secret, true},
		{"DATA without the secret", data.Device, "DATA", nil, false},
		{"DATA with the secret of another STATE", data.Device, "DATA", other, false},
		{"DATA in the place of STATE", data.Device, "STATE", nil, false},
		{"STATE in the place of DATA", state.Device, "DATA", secret, false},
		{"STATE in the place of DATA, without the secret", state.Device, "DATA", nil, false},
	} {
		v := Volume{Device: c.device, Label: c.label, Secret: c.secret}
		if err := v.Open(t.Context(), run, plainSealer{}, *header(t, c.device).Metadata); (err == nil) != c.opens {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := (Volume{Device: image(t), Label: "DATA"}).Format(t.Context(), run, plainSealer{}, nil, nil); !errors.Is(err, ErrBinding) {
		t.Errorf("a DATA without a secret is formatted: %v", err)
	}
	if err := run(t.Context(), Command{Stdin: []byte(recoveryOf(t, data, operator).Key), Args: []string{"cryptsetup", "open", "--test-passphrase", "--key-file", "-", data.Device}}); err != nil {
		t.Errorf("the recovery key on another computer: %v", err)
	}
	// An operator finds the encrypted recovery key with cryptsetup and jq (runbook task 136).
	text, err := exec.Command("cryptsetup", "token", "export", "--token-id", "0", data.Device).Output()
	var exported struct {
		Metadata struct{ Recovery Recovery }
	}
	if err := errors.Join(err, json.Unmarshal(text, &exported)); err != nil {
		t.Fatal(err)
	}
	if c, err := exported.Metadata.Recovery.Decrypt(operator); err != nil || c.Key != recoveryOf(t, data, operator).Key {
		t.Errorf("the exported token: %v", err)
	}
}

// TestFormatSealsFirst checks that nothing is wiped if the TPM seals no key.
func TestFormatSealsFirst(t *testing.T) {
	lost := errors.New("the TPM is gone")
	wiped := false
	never := func(context.Context, Command) error { t.Error("a command runs"); return nil }
	for _, sealer := range []plainSealer{{lost}, {}} { // the second has no recipients
		err := Volume{Device: "/dev/null", Label: "STATE"}.Format(t.Context(), never, sealer, nil, func() error { wiped = true; return nil })
		if err == nil || wiped {
			t.Errorf("wiped: %v, error %v", wiped, err)
		}
	}
}

// TestRecoverAll checks that a recovery changes nothing if one of the keys is wrong, or if the TPM
// seals no key.
func TestRecoverAll(t *testing.T) {
	run := cryptsetup(t)
	state, operator := formatted(t, run, "STATE")
	data, second := formatted(t, run, "DATA")
	good := []Recovering{recoveryOf(t, state, operator), recoveryOf(t, data, second)}
	wrong := slices.Clone(good)
	wrong[1].Key = NewRecoveryKey()
	lost := errors.New("the TPM is gone")
	for name, c := range map[string]struct {
		sealer  Sealer
		volumes []Recovering
		state   Present
	}{"a wrong key": {plainSealer{}, wrong, own}, "no TPM": {plainSealer{lost}, good, own}, "no secret": {plainSealer{}, good, Present{New: true}}} {
		err := Recover(t.Context(), run, c.sealer, c.volumes, c.state)
		if err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", name, err)
		}
		for _, v := range good {
			if err := v.Open(t.Context(), run, plainSealer{}, *header(t, v.Device).Metadata); err != nil || header(t, v.Device).Metadata.Slot != 0 {
				t.Errorf("%s: %s was changed (%v)", name, v.Label, err)
			}
		}
	}
	if err := Recover(t.Context(), run, plainSealer{}, good, own); err != nil {
		t.Fatal(err)
	}
	for _, v := range good {
		if err := v.Open(t.Context(), run, plainSealer{}, *header(t, v.Device).Metadata); err != nil {
			t.Error(err)
		}
	}
}

// TestForgedState recovers a real DATA beside a STATE that a thief has made for the public keys of
// the operator. Without the permission of the operator, nothing changes. With it, DATA is bound to
// this STATE, and so is the new recovery key.
func TestForgedState(t *testing.T) {
	run := cryptsetup(t)
	state, thief := formatted(t, run, "STATE")
	data, operator := formatted(t, run, "DATA")
	volumes := []Recovering{recoveryOf(t, state, thief), recoveryOf(t, data, operator)}
	forged := NewBinding([]string{thief.Recipient().String()})
	var images [2][]byte
	for i, v := range volumes {
		var err error
		if images[i], err = os.ReadFile(v.Device); err != nil {
			t.Fatal(err)
		}
	}
	stored := 0
	store := func() error { stored++; return nil }
	if err := Recover(t.Context(), run, plainSealer{}, volumes, Present{Binding: forged, Store: store}); !errors.Is(err, ErrOtherState) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a STATE of a thief: %v", err)
	}
	// A recovery key without the digest names no STATE.
	older := slices.Clone(volumes)
	older[1].Bound = ""
	if err := Recover(t.Context(), run, plainSealer{}, older, own); !errors.Is(err, ErrOtherState) {
		t.Errorf("a recovery key without a digest: %v", err)
	}
	for i, v := range volumes {
		if after, err := os.ReadFile(v.Device); err != nil || !bytes.Equal(after, images[i]) || stored > 0 {
			t.Errorf("%s was changed (%v)", v.Label, err)
		}
	}
	full := errors.New("STATE is full")
	if err := Recover(t.Context(), run, plainSealer{}, volumes, Present{Binding: forged, New: true, Store: func() error { return full }}); !errors.Is(err, full) {
		t.Errorf("a secret that cannot be stored: %v", err)
	}
	if err := Recover(t.Context(), run, plainSealer{}, volumes, Present{Binding: forged, New: true, Store: store}); err != nil || stored != 1 {
		t.Fatalf("with the permission: %v, stored %d times", err, stored)
	}
	data.Secret = forged.Secret
	if err := data.Open(t.Context(), run, plainSealer{}, *header(t, data.Device).Metadata); err != nil {
		t.Error(err)
	}
	if r := recoveryOf(t, data, thief); r.Bound != bindingDigest(forged.Secret) || r.Key != volumes[1].Key || r.Test(t.Context(), run, r.Key) != nil {
		t.Errorf("the new recovery key is bound to %q", r.Bound)
	}
}

// TestWrongKey checks that only the exit status of a wrong key is reported as a wrong key.
func TestWrongKey(t *testing.T) {
	status := fmt.Errorf("%w: exit status 2", ErrKey)
	fails := errors.New("killed by signal 9")
	for _, c := range []struct {
		label, text string
		fails       error
		want        string
	}{
		{"STATE", "open", status, "/dev/x: the key of the TPM does not open STATE: its header was changed, see task 136 of the runbook"},
		{"DATA", "open", status, "/dev/x: the key of the TPM does not open DATA: STATE and DATA do not belong together, see task 136 of the runbook"},
		{"DATA", "open", fails, "/dev/x: cannot open DATA: cryptsetup failed: killed by signal 9"},
		{"DATA", "test", status, "/dev/x: the recovery key does not open DATA: it is the key of another volume"},
		{"DATA", "test", fails, "/dev/x: cannot open DATA: cryptsetup failed: killed by signal 9"},
		{"STATE", "with", status, "/dev/x: the recovery key does not open STATE"},
		{"STATE", "with", fails, "/dev/x: cannot open STATE: cryptsetup failed: killed by signal 9"},
	} {
		v := Volume{Device: "/dev/x", Label: c.label}
		if c.label != "STATE" {
			v.Secret = secret
		}
		run := func(context.Context, Command) error { return c.fails }
		var err error
		switch c.text {
		case "open":
			err = v.Open(t.Context(), run, plainSealer{}, Metadata{Sealed: Sealed{Private: make([]byte, KeySize)}})
		case "test":
			err = v.Test(t.Context(), run, NewRecoveryKey())
		case "with":
			err = v.OpenWith(t.Context(), run, NewRecoveryKey(), "x")
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || errors.Is(err, ErrKept) || !errors.Is(err, c.fails) {
			t.Errorf("%s %s, %v: %v", c.text, c.label, c.fails, err)
		}
	}
	lost := errors.New("the TPM is gone")
	if err := (Volume{Label: "STATE"}).Open(t.Context(), nil, plainSealer{lost}, Metadata{}); !errors.Is(err, ErrKept) || !errors.Is(err, lost) {
		t.Errorf("a TPM that keeps the key: %v", err)
	}
	// cryptsetup itself reports a wrong key and a missing device.
	program := cryptsetup(t)
	v, _ := formatted(t, program, "STATE")
	if err := v.Test(t.Context(), program, NewRecoveryKey()); !errors.Is(err, ErrKey) {
		t.Errorf("a wrong recovery key: %v", err)
	}
	v.Device += ".missing"
	if err := v.Test(t.Context(), program, NewRecoveryKey()); err == nil || errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "cryptsetup failed") {
		t.Errorf("a missing device: %v", err)
	}
}

// TestRecoverSlots checks that a recovery removes only key slots in use. So an error of the removal
// is an error.
func TestRecoverSlots(t *testing.T) {
	run := cryptsetup(t)
	v, operator := formatted(t, run, "STATE")
	for _, c := range []struct {
		slots   []int
		removed []string
	}{{[]int{0, 1}, []string{"0"}}, {[]int{0, 1, 2}, []string{"2", "0"}}, {[]int{1, 2}, []string{"2"}}, {[]int{1}, nil}} {
		r := recoveryOf(t, v, operator)
		r.Slots = c.slots
		var removed []string
		record := func(_ context.Context, c Command) error {
			if c.Args[1] == "luksKillSlot" {
				removed = append(removed, c.Args[len(c.Args)-1])
			}
			return nil
		}
		if err := Recover(t.Context(), record, plainSealer{}, []Recovering{r}, own); err != nil || !slices.Equal(removed, c.removed) {
			t.Errorf("of the slots %v, %v are removed (%v)", c.slots, removed, err)
		}
	}
}

// TestInterruptedRecovery stops a recovery after each of its commands. Afterwards the key in the
// header and the recovery key open the partition, and the next recovery succeeds.
func TestInterruptedRecovery(t *testing.T) {
	run := cryptsetup(t)
	cut := errors.New("power cut")
	for stop := 1; ; stop++ {
		v, operator := formatted(t, run, "DATA")
		commands := 0
		until := func(ctx context.Context, c Command) error {
			if commands++; commands > stop {
				return cut
			}
			return run(ctx, c)
		}
		err := Recover(t.Context(), until, plainSealer{}, []Recovering{recoveryOf(t, v, operator)}, own)
		if err != nil && !errors.Is(err, cut) {
			t.Fatal(err)
		}
		for _, again := range []bool{false, true} {
			if again {
				if err := Recover(t.Context(), run, plainSealer{}, []Recovering{recoveryOf(t, v, operator)}, own); err != nil {
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

// TestTornFormat cuts the first write of the header short, and checks that the partition counts as
// one whose format was interrupted.
func TestTornFormat(t *testing.T) {
	run, v := cryptsetup(t), Volume{Device: image(t), Label: "STATE"}
	if err := run(t.Context(), v.formatCommand(uuid.New(), []byte("x"))); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(v.Device)
	if err != nil {
		t.Fatal(err)
	}
	for name, torn := range map[string]func([]byte){
		"without the checksum":       func(b []byte) { clear(b[atChecksum:checksumEnd]); clear(b[copySize : 2*copySize]) },
		"without the JSON area":      func(b []byte) { clear(b[binarySize : 2*copySize]) },
		"with half of the JSON area": func(b []byte) { clear(b[binarySize+100 : 2*copySize]) },
		"without the second copy":    func(b []byte) { clear(b[copySize : 2*copySize]) },
		"a second copy without sum":  func(b []byte) { clear(b[copySize+atChecksum : copySize+checksumEnd]) },
	} {
		b := bytes.Clone(whole)
		torn(b)
		if h, err := ReadHeader(bytes.NewReader(b)); h.Label != NewLabel || err != nil && !errors.Is(err, ErrHeader) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}

// realHeader returns a header of cryptsetup 2.7.5.
func realHeader(t *testing.T) []byte {
	t.Helper()
	packed, err := gzip.NewReader(bytes.NewReader(readFile(t, "header.gz")))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestReadHeader reads a header of cryptsetup 2.7.5, and the header with damage.
func TestReadHeader(t *testing.T) {
	raw := realHeader(t)
	check := func(name string, raw []byte) {
		t.Helper()
		h, err := ReadHeader(bytes.NewReader(raw))
		if err != nil || h.Label != "STATE" || h.UUID != uuid.MustParse("7a1f2c8e-5a61-4c5b-9a6d-0c1d2e3f4a5b") ||
			!slices.Equal(h.Slots, []int{0, 1}) || h.Metadata == nil || h.Metadata.Recovery.Ciphertext != "armored" || h.Metadata.Slot != 0 {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	check("whole", raw)
	const copies = 64 << 10
	for _, at := range []int{0, atLabel, atUUID - 1, atUUID, atChecksum, 4096, 5000, copies - 1} {
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
	// A copy at another offset, which cryptsetup finds if it does not accept the first copy.
	for _, damage := range []byte{0, 0xff} {
		moved := slices.Concat(raw, make([]byte, 128<<10))
		moved[0] ^= damage
		check("no other copy", moved)
		copy(moved[128<<10:], secondMagic)
		if _, err := ReadHeader(bytes.NewReader(moved)); !errors.Is(err, ErrHeader) {
			t.Errorf("a copy at another offset: %v", err)
		}
	}
}

// TestRefusedBinary changes the fields of the binary header, in either copy, with a valid checksum.
// cryptsetup could accept such a copy, so it is no damage.
func TestRefusedBinary(t *testing.T) {
	raw := realHeader(t)
	for name, change := range map[string]func(one []byte){
		"another version":                    func(one []byte) { one[atSize-1] = 1 },
		"a later version":                    func(one []byte) { one[atSize-1] = 3 },
		"another size":                       func(one []byte) { binary.BigEndian.PutUint64(one[atSize:], copySize/2) },
		"another position":                   func(one []byte) { one[atOffset] ^= 1 },
		"another algorithm":                  func(one []byte) { copy(one[atAlgorithm:], "sha512") },
		"no algorithm":                       func(one []byte) { clear(one[atAlgorithm : atAlgorithm+6]) },
		"an algorithm without zeros at last": func(one []byte) { one[atAlgorithm+31] = 'x' },
		"another UUID":                       func(one []byte) { copy(one[atUUID:], "x") },
		"text after the metadata":            func(one []byte) { one[copySize-1] = ' ' },
	} {
		for n := range 2 {
			for _, sum := range []bool{true, false} {
				out := bytes.Clone(raw)
				one := out[n*copySize : (n+1)*copySize]
				change(one)
				if sum {
					setSum(one)
				}
				// Without a checksum, the last two changes are damage. The other copy is valid.
				wrong := sum || name != "another UUID" && name != "text after the metadata"
				if h, err := ReadHeader(bytes.NewReader(out)); errors.Is(err, ErrHeader) != wrong || wrong && h.Metadata != nil {
					t.Errorf("%s in copy %d, with a sum %v: %+v, %v", name, n, sum, h, err)
				}
			}
		}
	}
}

// setSum sets the checksum of a copy.
func setSum(one []byte) {
	clear(one[atChecksum:checksumEnd])
	sum := sha256.Sum256(one)
	copy(one[atChecksum:], sum[:])
}

// withArea returns a header with a change of its JSON area in the copies, each with a valid sum.
func withArea(t *testing.T, raw []byte, from, to string, copies ...int) []byte {
	t.Helper()
	out := bytes.Clone(raw)
	for _, n := range copies {
		one := out[n*copySize : (n+1)*copySize]
		old := text(one[binarySize:])
		if !strings.Contains(old, from) {
			t.Fatalf("the area has no %s", from)
		}
		clear(one[binarySize:])
		copy(one[binarySize:], strings.Replace(old, from, to, 1))
		setSum(one)
	}
	return out
}

// TestRefusedHeaders checks that only the header that the machine makes is accepted. Each change is
// harmless, and stands for a class: another value of a field, a missing field, an unknown field, a
// field in another case, and a field that occurs twice.
func TestRefusedHeaders(t *testing.T) {
	raw := realHeader(t)
	for _, c := range [][2]string{
		{`"offset":"16777216"`, `"offset":"16777217"`}, {`"size":"dynamic"`, `"size":"4096"`}, {`"iv_tweak":"0"`, `"iv_tweak":"1"`}, {`"sector_size":4096`, `"sector_size":512`},
		{`"iv_tweak":"0","encryption":"aes-xts-plain64"`, `"iv_tweak":"0","encryption":"aes-cbc-plain64"`}, {`"type":"crypt"`, `"type":"linear"`},
		{`"segments":{"0":`, `"segments":{"1":`}, {`"segments":{`, `"segments":{"1":{"type":"linear"},`}, {`"sector_size":4096`, `"sector_size":4096,"integrity":{}`},
		{`"size":"258048","encryption":"aes-xts-plain64"`, `"size":"258048","encryption":"aes-cbc-plain64"`}, {`"key_size":64,"af"`, `"key_size":32,"af"`},
		{`"stripes":4000`, `"stripes":4001`}, {`"type":"pbkdf2","hash":"sha256","iterations":1000`, `"type":"pbkdf2","hash":"sha256","iterations":1001`},
		{`"type":"pbkdf2","hash":"sha256"`, `"type":"argon2id","hash":"sha256"`}, {`"iterations":1000`, `"iterations":1e3`}, {`"size":"258048"`, `"size":"4096"`},
		{`"offset":"131072"`, `"offset":"0"`}, {`"offset":"131072"`, `"offset":"135168"`}, {`"offset":"131072"`, `"offset":"16773120"`},
		{`"keyslots":{"0"`, `"keyslots":{"00"`}, {`"keyslots":{"0"`, `"keyslots":{"3"`}, {`"keyslots":{"0":{"type":"luks2"`, `"keyslots":{"0":{"type":"reencrypt"`},
		{`"type":"orlop"`, `"type":"luks2-keyring"`}, {`"tokens":{`, `"tokens":{"1":{"type":"orlop","keyslots":[],"metadata":null},`}, {`"slot":0`, `"slot":1`}, {`"version":1`, `"version":2`},
		{`"keyslots_size":"16646144"`, `"keyslots_size":"16646144","requirements":{"mandatory":["x"]}`}, {`"keyslots_size":"16646144"`, `"keyslots_size":"4096"`}, {`"json_size":"61440"`, `"json_size":"12288"`},
		{`"keyslots_size":"16646144"`, `"keyslots_size":"16646144","flags":[]`}, {`"segments":{`, `"Segments":{`}, {`"segments":{`, `"segments":{},"Segments":{`}, {`"iv_tweak":"0",`, ``},
		{`"digests":{"0":{"type":"pbkdf2","keyslots":["0","1"]`, `"digests":{"0":{"type":"pbkdf2","keyslots":["0"]`}, {`"segments":["0"]`, `"segments":[]`},
		{`"config":{"json_size":"61440","keyslots_size":"16646144"}}`, `"config":{"json_size":"61440","keyslots_size":"16646144"},"segments":{}}`}, {`{"keyslots":{`, `[{"keyslots":{`},
	} {
		// cryptsetup may take either copy.
		for _, copies := range [][]int{{0, 1}, {0}, {1}} {
			h, err := ReadHeader(bytes.NewReader(withArea(t, raw, c[0], c[1], copies...)))
			if !errors.Is(err, ErrHeader) || h.Label != "STATE" || h.Metadata != nil {
				t.Errorf("%s in the copies %v: %+v, %v", c[1], copies, h, err)
			}
		}
	}
	if _, err := ReadHeader(bytes.NewReader(withArea(t, raw, `"slot":0`, `"slot":2`, 0, 1))); err != nil {
		t.Errorf("a permitted change: %v", err)
	}
	if _, err := ReadHeader(bytes.NewReader(withArea(t, raw, `"slot":0`, `"slot":0,"later":[1]`, 0, 1))); err != nil {
		t.Errorf("a field of a later version: %v", err)
	}
	h, err := ReadHeader(bytes.NewReader(withArea(t, raw, `"recipients":["age1example"]`, `"recipients":["\u001b[2J"]`, 0, 1)))
	if err != nil || strings.ContainsRune(h.Metadata.Recovery.Recipients[0], '\x1b') {
		t.Errorf("%+v, %v", h, err)
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
	content := RecoveryContent{Label: "DATA", UUID: uuid.New(), Key: key, Binding: bindingDigest(secret)}
	r, err := EncryptRecovery(content, []string{operator.Recipient().String(), second.Recipient().String()})
	if err != nil || strings.Contains(r.Ciphertext, string(key)) {
		t.Fatalf("%v", err)
	}
	for _, identity := range []age.Identity{operator, second} {
		if got, err := r.Decrypt(identity); err != nil || got != content {
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
	if _, err := EncryptRecovery(content, nil); err == nil {
		t.Error("a recovery key without recipients")
	}
	if _, err := EncryptRecovery(content, []string{"age1nobody"}); err == nil {
		t.Error("a wrong recipient is accepted")
	}
	if _, err := EncryptRecovery(content, slices.Repeat([]string{operator.Recipient().String()}, MaxRecipients+1)); err == nil {
		t.Error("too many recipients are accepted")
	}
	// The machine can send another ciphertext of the operator.
	for name, text := range map[string]string{"a text": "a password", "a key": string(key), "another object": `{"password":"x"}`, "a key without a volume": `{"key":"` + string(key) + `"}`} {
		var out bytes.Buffer
		armored := armor.NewWriter(&out)
		w, err := age.Encrypt(armored, operator.Recipient())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(w, text)
		if err := errors.Join(err, w.Close(), armored.Close()); err != nil {
			t.Fatal(err)
		}
		if c, err := (Recovery{Ciphertext: out.String()}).Decrypt(operator); err == nil || strings.Contains(err.Error(), text) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestParseBinding(t *testing.T) {
	b := NewBinding([]string{"age1example"})
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseBinding(text); err != nil || !bytes.Equal(got.Secret, b.Secret) || len(got.Recipients) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if bytes.Equal(NewBinding(nil).Secret, b.Secret) {
		t.Error("two bindings have the same secret")
	}
	for _, bad := range []string{"", "{}", `{"version":2,"secret":"` + strings.Repeat("A", 43) + `=","recipients":["x"]}`, `{"version":1,"secret":"AA==","recipients":["x"]}`, `{"version":1,"secret":"` + strings.Repeat("A", 43) + `="}`} {
		if _, err := ParseBinding([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
