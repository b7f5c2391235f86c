package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

const sampleSBOM = `{"name": "libc6"}`

// newBundle returns a bundle of small parts, its root image, and the keys that signed it.
func newBundle(t *testing.T) (file, root []byte, trust Trust) {
	t.Helper()
	return newBundleWith(t, func(*Source) {}, "a kernel", sampleSBOM)
}

// newBundleWith is like newBundle, with the given boot image and bill of materials. The function
// change modifies the source of the bundle.
func newBundleWith(t *testing.T, change func(*Source), uki, sbom string) (file, root []byte, trust Trust) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root = make([]byte, 3<<20)
	rand.Read(root[:1<<20]) // the rest compresses well
	image := filepath.Join(dir, "root.img")
	if err := os.WriteFile(image, root, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"uki": uki, "sbom": sbom} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packed := filepath.Join(dir, "root.img.zst")
	enc, err := zstd.NewWriter(nil, zstd.WithWindowSize(Window))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packed, enc.EncodeAll(root, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	source := Source{
		Version: "1.2.0", Profile: "test", MinimumVersion: "1.0.0", Root: "as on the command line", Time: time.Unix(1700000000, 0),
		RootImage: image, UKI: filepath.Join(dir, "uki"), SBOM: filepath.Join(dir, "sbom"), Packed: packed,
	}
	change(&source)
	var out, again bytes.Buffer
	for _, to := range []*bytes.Buffer{&out, &again} {
		envelope, err := source.Seal(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := Write(to, source, envelope); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("two bundles of the same source differ")
	}
	return out.Bytes(), root, trustOf(t, key)
}

func trustOf(t *testing.T, key Key) Trust {
	t.Helper()
	text, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := ParseTrust(text)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// read reads a whole bundle.
func read(from io.Reader, trust Trust) (root bytes.Buffer, uki []byte, err error) {
	r, err := Open(from, trust)
	if err != nil {
		return root, nil, err
	}
	if err := r.Root(&root); err != nil {
		return root, nil, err
	}
	uki, err = r.UKI()
	return root, uki, err
}

func TestWriteAndRead(t *testing.T) {
	file, root, trust := newBundle(t)
	r, err := Open(bytes.NewReader(file), trust)
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Statement; s.Version != "1.2.0" || s.MinimumVersion != "1.0.0" || s.RootImage.Size != int64(len(root)) {
		t.Errorf("statement %+v", s)
	}
	got, uki, err := read(bytes.NewReader(file), trust)
	if err != nil || !bytes.Equal(got.Bytes(), root) || string(uki) != "a kernel" {
		t.Errorf("%d bytes of root, UKI %q, %v", got.Len(), uki, err)
	}
}

// TestSBOM checks that the bill of materials can be read after the other parts, that it is
// verified, and that the copy of a running version has no bill of materials.
func TestSBOM(t *testing.T) {
	file, root, trust := newBundle(t)
	read := func(file []byte) ([]byte, *Reader, error) {
		t.Helper()
		r, err := Open(bytes.NewReader(file), trust)
		if err == nil {
			err = r.Root(io.Discard)
		}
		if err == nil {
			_, err = r.UKI()
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := r.SBOM()
		return content, r, err
	}
	content, r, err := read(file)
	if err != nil || string(content) != sampleSBOM || r.Statement.CheckSBOM(content) != nil {
		t.Errorf("%q, %v", content, err)
	}
	for _, other := range []string{"", "{}", sampleSBOM + " ", strings.ToUpper(sampleSBOM)} {
		if err := r.Statement.CheckSBOM([]byte(other)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", other, err)
		}
	}
	at := bytes.Index(file, []byte(sampleSBOM))
	damaged := bytes.Clone(file)
	damaged[at] ^= 1
	for name, bad := range map[string][]byte{"another document": damaged, "truncated": file[:at+3]} {
		if _, _, err := read(bad); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var copied bytes.Buffer
	if err := (Copy{Envelope: r.Envelope, Root: bytes.NewReader(root), UKI: strings.NewReader("a kernel")}).Write(&copied); err != nil {
		t.Fatal(err)
	}
	if content, _, err := read(copied.Bytes()); err != nil || content != nil {
		t.Errorf("bill of materials of a copy: %q, %v", content, err)
	}
}

// TestCopy checks that Copy makes a bundle of a version on a disk, and that each part is verified.
func TestCopy(t *testing.T) {
	file, root, trust := newBundle(t)
	r, err := Open(bytes.NewReader(file), trust)
	if err != nil {
		t.Fatal(err)
	}
	disk := append(bytes.Clone(root), "what lies behind it in the partition"...)
	copied := func(disk []byte, uki string) Copy {
		return Copy{Envelope: r.Envelope, Root: bytes.NewReader(disk), UKI: strings.NewReader(uki)}
	}
	var out bytes.Buffer
	if err := copied(disk, "a kernel").Write(&out); err != nil {
		t.Fatal(err)
	}
	sum, size, err := copied(disk, "a kernel").Check(trust)
	if want := sha256.Sum256(out.Bytes()); err != nil || sum != hex.EncodeToString(want[:]) || size != int64(out.Len()) {
		t.Errorf("%s, %d bytes, %v; %d were written", sum, size, err, out.Len())
	}
	got, uki, err := read(&out, trust)
	if err != nil || !bytes.Equal(got.Bytes(), root) || string(uki) != "a kernel" {
		t.Errorf("%d bytes of root, UKI %q, %v", got.Len(), uki, err)
	}
	whole, err := copied(disk, "a kernel").CheckComplete()
	if err != nil || whole != r.Statement {
		t.Errorf("%+v, %v", whole, err)
	}
	stranger, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := copied(disk, "a kernel").Check(trustOf(t, stranger)); err == nil || !strings.Contains(err.Error(), "no trusted key") {
		t.Errorf("a bundle that only an unknown key has signed: %v", err)
	}
	if _, _, err := copied(disk, "A kernel").Check(trust); !errors.Is(err, ErrDamaged) {
		t.Errorf("another boot image: %v", err)
	}
	for name, bad := range map[string]Copy{
		"another boot image":   copied(disk, "A kernel"),
		"a shorter boot image": copied(disk, "a kerne"),
		"a shorter partition":  copied(root[:len(root)-1], "a kernel"),
	} {
		if _, err := bad.CheckComplete(); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	disk[7]++
	if _, err := copied(disk, "a kernel").CheckComplete(); !errors.Is(err, ErrDamaged) {
		t.Errorf("another root: %v", err)
	}
	if _, _, err := copied(disk, "a kernel").Check(trust); !errors.Is(err, ErrDamaged) {
		t.Errorf("another root: %v", err)
	}
	if _, _, err := copied([]byte("short"), "a kernel").Check(trust); err == nil {
		t.Error("a partition that is too short was accepted")
	}
	if _, _, err := (Copy{Envelope: []byte("{")}).Check(trust); err == nil || !strings.Contains(err.Error(), "not a DSSE envelope") {
		t.Errorf("an invalid statement: %v", err)
	}
}

// TestRefused checks that every defect is reported, and that no statement is trusted before it is
// verified.
func TestRefused(t *testing.T) {
	file, root, trust := newBundle(t)
	stranger, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(bytes.NewReader(file), trustOf(t, stranger)); err == nil || !strings.Contains(err.Error(), "no trusted key") {
		t.Errorf("a bundle that only an unknown key has signed: %v", err)
	}
	if _, err := Open(strings.NewReader(strings.Repeat("no archive ", 200)), trust); err == nil || !strings.Contains(err.Error(), "not an upgrade bundle") {
		t.Errorf("a file that is no bundle: %v", err)
	}
	// the beginning of the payload, in base64
	signed := bytes.Replace(file, []byte("eyJ2"), []byte("eyJ3"), 1)
	if bytes.Equal(signed, file) {
		t.Fatal("the payload does not begin as expected")
	}
	if _, err := Open(bytes.NewReader(signed), trust); err == nil || !strings.Contains(err.Error(), "no trusted key") {
		t.Errorf("a changed statement: %v", err)
	}
	// A bundle that is cut at any position is rejected. A bundle with one changed bit is rejected,
	// unless the bit is in the padding between the parts.
	end := bytes.Index(file, []byte("a kernel")) + len("a kernel")
	for at := 0; at < end; at += 4099 {
		if _, _, err := read(bytes.NewReader(file[:at]), trust); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut at %d of %d: %v", at, len(file), err)
		}
	}
	// magic number of zstd: the root image
	begin := bytes.Index(file, []byte{0x28, 0xb5, 0x2f, 0xfd})
	refused := 0
	for at := begin; at < end; at += 7919 {
		damaged := bytes.Clone(file)
		damaged[at] ^= 4
		got, uki, err := read(bytes.NewReader(damaged), trust)
		if errors.Is(err, ErrDamaged) {
			refused++
		} else if err != nil {
			t.Errorf("one changed bit at %d: %v", at, err)
		} else if !bytes.Equal(got.Bytes(), root) || string(uki) != "a kernel" {
			t.Errorf("one changed bit at %d: the bundle is accepted, with other content", at)
		}
	}
	if refused < 100 {
		t.Errorf("only %d of the bundles with a changed bit were rejected", refused)
	}
}

// TestRootStopsWithItsDevice checks that a write error of the target device is not reported as
// damage of the bundle.
func TestRootStopsWithItsDevice(t *testing.T) {
	file, _, trust := newBundle(t)
	r, err := Open(bytes.NewReader(file), trust)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no space")
	if err := r.Root(failing{broken}); !errors.Is(err, broken) || errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func FuzzOpen(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	text, err := key.PublicPEM()
	if err != nil {
		f.Fatal(err)
	}
	trust, err := ParseTrust(text)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("oci-layout"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if _, err := Open(bytes.NewReader(file), trust); err == nil {
			t.Error("Open accepts a file without a valid signature")
		}
	})
}

// TestOpenEndless checks that a large member before the statement is not read.
func TestOpenEndless(t *testing.T) {
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "oci-layout", Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	rest := &counting{}
	if _, err := Open(io.MultiReader(&head, rest), Trust{}); err == nil || !strings.Contains(err.Error(), "not an upgrade bundle (1099511627776 bytes where its oci-layout should be)") {
		t.Error(err)
	}
	if rest.read > 1<<20 {
		t.Errorf("Open reads %d bytes of a member that is too large", rest.read)
	}
}

// counting is an endless stream of zeros.
type counting struct{ read int }

func (c *counting) Read(p []byte) (int, error) {
	clear(p)
	c.read += len(p)
	if c.read > 1<<30 {
		return 0, io.ErrUnexpectedEOF
	}
	return len(p), nil
}

// TestThreshold checks that a statement is trusted only with signatures of the required number of
// different trusted keys.
func TestThreshold(t *testing.T) {
	keys := make([]Key, 4)
	var public []byte
	for i := range keys {
		var err error
		if keys[i], err = NewKey(); err != nil {
			t.Fatal(err)
		}
		if text, err := keys[i].PublicPEM(); err != nil {
			t.Fatal(err)
		} else if i < 3 {
			// a key that is listed twice counts once
			public = append(append(public, text...), text...)
		}
	}
	all, err := ParseTrust(public)
	if err != nil || len(all.Keys) != 3 || all.Threshold != 1 {
		t.Fatalf("%d keys, threshold %d, %v", len(all.Keys), all.Threshold, err)
	}
	for _, threshold := range []int{-1, 0, 4} {
		if _, err := all.WithThreshold(threshold); err == nil {
			t.Errorf("WithThreshold accepts a threshold of %d for 3 keys", threshold)
		}
	}
	part := Part{SHA256: strings.Repeat("a", 64), Size: 1}
	s := Statement{Version: "1", Profile: "test", Epoch: 3, Root: "r", RootImage: part, Packed: part, UKI: part, SBOM: part}
	for _, c := range []struct {
		name      string
		threshold int
		by        []Key
		says      string // part of the error; empty if the statement is trusted
	}{
		{"one signature, one required", 1, keys[:1], ""},
		{"signature of another key, one required", 1, keys[2:3], ""},
		{"two signatures, two required", 2, keys[:2], ""},
		{"signatures of two other keys, two required", 2, keys[1:3], ""},
		{"three signatures, two required", 2, keys[:3], ""},
		{"one signature, two required", 2, keys[:1], "too few signatures: 1 trusted keys have signed it, 2 are required"},
		{"two signatures of one key, two required", 2, []Key{keys[0], keys[0]}, "too few signatures: 1 trusted keys"},
		{"signatures of a trusted and an unknown key, two required", 2, []Key{keys[0], keys[3]}, "too few signatures: 1 trusted keys"},
		{"two signatures, three required", 3, keys[:2], "too few signatures: 2 trusted keys"},
		{"signature of an unknown key, one required", 1, keys[3:], "no trusted key"},
	} {
		envelope, err := sign(s, c.by...)
		if err != nil {
			t.Fatal(err)
		}
		trust, err := all.WithThreshold(c.threshold)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Verify(envelope, trust)
		if c.says == "" && (err != nil || got != s) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	if _, err := Verify([]byte(`{}`), Trust{}); err == nil {
		t.Error("a statement is accepted without trusted keys")
	}
}

// TestEpoch checks that the statement omits an epoch of 0, because old versions reject an unknown
// field, and that an invalid epoch is rejected.
func TestEpoch(t *testing.T) {
	part := Part{SHA256: strings.Repeat("a", 64), Size: 1}
	s := Statement{Version: "1", Profile: "test", Root: "r", RootImage: part, Packed: part, UKI: part, SBOM: part}
	text, err := json.Marshal(s)
	if err != nil || bytes.Contains(text, []byte("epoch")) {
		t.Errorf("%s, %v", text, err)
	}
	for epoch, ok := range map[int]bool{-1: false, 0: true, 1: true, MaxEpoch: true, MaxEpoch + 1: false} {
		if s.Epoch = epoch; (s.check() == nil) != ok {
			t.Errorf("epoch %d: %v", epoch, s.check())
		}
	}
}

// TestCountersign checks that another key can sign an existing bundle, and that this changes only
// the signatures.
func TestCountersign(t *testing.T) {
	file, root, first := newBundle(t)
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	both, err := Trust{Keys: append(trustOf(t, key).Keys, first.Keys...)}.WithThreshold(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := read(bytes.NewReader(file), both); err == nil || !strings.Contains(err.Error(), "too few signatures") {
		t.Errorf("a bundle with one of two required signatures: %v", err)
	}
	var out, again bytes.Buffer
	if _, err := Countersign(&out, bytes.NewReader(file), key); err != nil {
		t.Fatal(err)
	}
	got, uki, err := read(bytes.NewReader(out.Bytes()), both)
	if err != nil || !bytes.Equal(got.Bytes(), root) || string(uki) != "a kernel" {
		t.Errorf("%d bytes of root, UKI %q, %v", got.Len(), uki, err)
	}
	if _, err := Countersign(&again, bytes.NewReader(out.Bytes()), key); err == nil || !strings.Contains(err.Error(), "has a signature of this key already") {
		t.Errorf("a second signature of the same key: %v", err)
	}
	bad := bytes.Clone(file)
	bad[bytes.LastIndex(bad, []byte("a kernel"))] ^= 1
	if _, err := Countersign(io.Discard, bytes.NewReader(bad), key); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged bundle: %v", err)
	}
	if _, err := Countersign(io.Discard, bytes.NewReader(file[:len(file)/2]), key); err == nil {
		t.Error("Countersign signs half of a bundle")
	}
}

// TestSkipRoot checks that a reader can skip the root image, and that the boot image after it is
// still verified.
func TestSkipRoot(t *testing.T) {
	file, _, trust := newBundle(t)
	read := func(file []byte) ([]byte, error) {
		r, err := Open(bytes.NewReader(file), trust)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SkipRoot(); err != nil {
			return nil, err
		}
		return r.UKI()
	}
	if got, err := read(file); err != nil || string(got) != "a kernel" {
		t.Errorf("%q, %v", got, err)
	}
	damaged := bytes.Replace(file, []byte("a kernel"), []byte("a Kernel"), 1)
	if _, err := read(damaged); !errors.Is(err, ErrDamaged) {
		t.Errorf("UKI of a bundle with a damaged boot image: %v", err)
	}
	if _, err := read(file[:Head/2]); err == nil {
		t.Error("no error for a truncated bundle")
	}
}
