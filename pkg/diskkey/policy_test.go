package diskkey

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/secureboot"
)

// measured is PCR 11 as `systemd-measure calculate` of systemd 257 prints it for the sections
// .linux ("linux\n"), .osrel ("ID=orlop\n") and .pcrpkey (testdata/pcrpkey.pem): without a phase,
// and after the phase "orlop-storage". testdata/pcrsig.json is the output of `systemd-measure sign`
// for the value without a phase.
const (
	measured      = "e70006444f89de3a01696cdddbd0c47b76e05f13cfce7082f61f4ca68128df0c"
	measuredPhase = "bdd0b0f5372be1e68069ba2edfd21728510b1992d58936abcb3f04eb583053a0"
)

func digestOf(t *testing.T, text string) Digest {
	t.Helper()
	raw, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return Digest(raw)
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestFormatOfSystemd compares PCR 11, the signed policy and the format of the signatures with
// systemd-measure.
func TestFormatOfSystemd(t *testing.T) {
	key, want := readFile(t, "pcrpkey.pem"), bytes.TrimSpace(readFile(t, "pcrsig.json"))
	var r attest.Release
	for _, s := range []struct{ name, content string }{{".linux", "linux\n"}, {".osrel", "ID=orlop\n"}, {".pcrpkey", string(key)}} {
		r.Sections = append(r.Sections, attest.Section{Name: s.name, Digest: sha256.Sum256([]byte(s.content))})
	}
	value := r.ImagePCR()
	if value != digestOf(t, measured) {
		t.Errorf("PCR 11 is %x, want %s", value, measured)
	}
	if after := attest.AfterPhase(value, PhaseStorage); after != digestOf(t, measuredPhase) {
		t.Errorf("PCR 11 after the phase is %x, want %s", after, measuredPhase)
	}
	signer, err := ParseSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := MarshalSigner(signer); err != nil || !bytes.Equal(again, key) {
		t.Errorf("the section .pcrpkey is %s, want %s (%v)", again, key, err)
	}
	signatures, err := ParseSignatures(want)
	if err != nil {
		t.Fatal(err)
	}
	signature := signatures.find(signer, value)
	if signature == nil {
		t.Fatal("the signature of systemd-measure is not found")
	}
	if signatures.find(signer, attest.AfterPhase(value, PhaseStorage)) != nil {
		t.Error("the signature is valid after the phase")
	}
	got, err := SignImage(value, signer, func([]byte) ([]byte, error) { return signature, nil })
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v; the section .pcrsig is\n%s, want\n%s", err, got, want)
	}
	if _, err := SignImage(attest.AfterPhase(value, "x"), signer, func([]byte) ([]byte, error) { return signature, nil }); err == nil {
		t.Error("the signature of another value is accepted")
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no PEM": "x", "another type": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", "no key": "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n",
		"two keys": strings.Repeat(string(readFile(t, "pcrpkey.pem")), 2),
	} {
		if _, err := ParseSigner([]byte(text)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, text := range map[string]string{"no JSON": "x", "a long text": strings.Repeat(" ", maxSignatures+1), "no base64": `{"sha256":[{"sig":"!"}]}`} {
		if _, err := ParseSignatures([]byte(text)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if s, err := ParseSignatures([]byte(`{"sha256":[{"pcrs":[7],"pol":"","sig":"AA=="}],"sha1":[1]}`)); err != nil || s.find(&newBuilder(t).PublicKey, Digest{}) != nil {
		t.Errorf("a signature of another PCR is accepted (%v)", err)
	}
}

// TestPredictAuthority checks PCR 7 if another certificate in db accepts the new boot image. The
// value never stays the same if the firmware would measure another one.
func TestPredictAuthority(t *testing.T) {
	loader, image, other, rom := Digest{1}, Digest{2}, Digest{3}, Digest{4}
	event := func(d Digest) attest.Event { return attest.Event{PCR: pcrSecureBoot, Digest: d} }
	before := []attest.Event{event(Digest{9}), event(separator)}
	for _, c := range []struct {
		name    string
		present []Digest
		now     Digest // of the running image
		next    Digest
		want    []Digest
	}{
		{"the same certificate for all", []Digest{loader}, loader, loader, []Digest{loader}},
		{"the same certificate for the image", []Digest{loader, image}, image, image, []Digest{loader, image}},
		{"a new certificate", []Digest{loader}, loader, other, []Digest{loader, other}},
		{"a new certificate in place of the former", []Digest{loader, image}, image, other, []Digest{loader, other}},
		{"the certificate of the loader in place of the former", []Digest{loader, image}, image, loader, []Digest{loader}},
		{"two option ROMs", []Digest{rom, other, loader}, loader, loader, []Digest{rom, other, loader}},
		{"two option ROMs, and a certificate of the image", []Digest{rom, loader, image}, image, image, []Digest{rom, loader, image}},
		{"two option ROMs, and a new certificate of the image", []Digest{rom, loader, image}, image, other, []Digest{rom, loader, other}},
		{"the certificate of an option ROM", []Digest{rom, loader, image}, image, rom, []Digest{rom, loader}},
	} {
		now, want := before[:2:2], before[:2:2]
		for _, d := range c.present {
			now = append(now, event(d))
		}
		for _, d := range c.want {
			want = append(want, event(d))
		}
		if got := replay(withAuthority(now, c.now, c.next)); got != replay(want) {
			t.Errorf("%s: another value", c.name)
		}
	}
	if _, err := authority(bytes.NewReader(nil), 0, nil, nil); err == nil {
		t.Error("an empty db accepts an image")
	}
	entry := secureboot.Entry{Type: secureboot.TypeX509, Data: []byte("certificate")}
	if back, err := secureboot.ParseLists(oneEntry(entry)); err != nil || len(back) != 1 || string(back[0].Data) != "certificate" {
		t.Errorf("the list with one entry is %v (%v)", back, err)
	}
}

// TestPredictUnknown checks that no value is predicted if the event log does not explain PCR 7.
func TestPredictUnknown(t *testing.T) {
	raw, err := boottest(t)
	if err != nil {
		t.Fatal(err)
	}
	log := []attest.Event{{PCR: pcrSecureBoot, Digest: Digest{1}}, {PCR: pcrSecureBoot, Digest: separator}}
	image := Image{bytes.NewReader(raw), int64(len(raw))}
	if _, err := PredictImage(Firmware{Events: log, SecureBoot: Digest{7}}, image, image); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Errorf("another value of PCR 7: %v", err)
	}
	if b, err := PredictImage(Firmware{Events: log, SecureBoot: replay(log)}, image, image); err != nil || b.SecureBoot != replay(log) {
		t.Errorf("%x, %v", b.SecureBoot, err)
	}
}

// TestPredictSigned predicts PCR 7 with Secure Boot, for the images and the db of package
// secureboot. The firmware accepts the signed image by its certificate, and the other image by its
// digest in db.
func TestPredictSigned(t *testing.T) {
	load := func(name string) []byte {
		content, err := os.ReadFile("../secureboot/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	signed, unsigned, certificates := load("signed.efi"), load("unsigned.efi"), load("db.esl")
	parsed, err := secureboot.ParseImage(bytes.NewReader(unsigned), int64(len(unsigned)))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := secureboot.ParseLists(certificates)
	if err != nil {
		t.Fatal(err)
	}
	known := secureboot.Entry{Type: secureboot.TypeSHA256, Owner: entries[0].Owner, Data: parsed.Digest[:]}
	db := append(bytes.Clone(certificates), oneEntry(known)...)
	event := func(d Digest) attest.Event { return attest.Event{PCR: pcrSecureBoot, Digest: d} }
	variable := func(name string, content []byte) attest.Event { return event(attest.VariableDigest(name, content)) }
	by := func(e secureboot.Entry) attest.Event { return variable("db", append(e.Owner[:], e.Data...)) }
	loader := event(Digest{1})
	log := []attest.Event{variable("SecureBoot", []byte{1}), variable("db", db), variable("dbx", nil), event(separator), loader, by(entries[0])}
	good := Firmware{Events: log, SecureBoot: replay(log), Enabled: true, DB: db}
	image := func(raw []byte) Image { return Image{bytes.NewReader(raw), int64(len(raw))} }
	for _, c := range []struct {
		name   string
		next   []byte
		change func(f *Firmware)
		want   []attest.Event
		fails  string
	}{
		{"the same certificate", signed, func(*Firmware) {}, log, ""},
		{"accepted by its digest", unsigned, func(*Firmware) {}, append(log[:5:5], by(known)), ""},
		{"another value of PCR 7", signed, func(f *Firmware) { f.SecureBoot[0]++ }, nil, "is not known"},
		{"another db", signed, func(f *Firmware) { f.DB = certificates }, nil, "is not known: the variable db is not the one in the event log"},
		{"another dbx", signed, func(f *Firmware) { f.DBX = oneEntry(known) }, nil, "is not known: the variable dbx is not the one in the event log"},
		{"no certificate", unsigned, func(f *Firmware) { f.enroll(certificates, nil) }, nil, "the firmware would not start the boot image"},
		{"a revoked certificate", signed, func(f *Firmware) { f.enroll(db, certificates) }, nil, "the running boot image: the firmware would not start"},
	} {
		f := good
		f.Events = slices.Clone(log)
		c.change(&f)
		b, err := PredictImage(f, image(c.next), image(signed))
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		value, _, problem := readImage(bytes.NewReader(c.next))
		if err != nil || problem != nil || b.SecureBoot != replay(c.want) || b.Image != value {
			t.Errorf("%s: %+v, %v, %v", c.name, b, err, problem)
		}
	}
}

// enroll sets db and dbx, and measures them.
func (f *Firmware) enroll(db, dbx []byte) {
	f.DB, f.DBX = db, dbx
	f.Events[1].Digest, f.Events[2].Digest = attest.VariableDigest("db", db), attest.VariableDigest("dbx", dbx)
	f.SecureBoot = replay(f.Events)
}

// boottest returns a program in the format PE without sections.
func boottest(t *testing.T) ([]byte, error) {
	t.Helper()
	head := pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64}
	var out bytes.Buffer
	err := binary.Write(&out, binary.LittleEndian, head)
	return append(out.Bytes(), make([]byte, 100)...), err
}

// TestCheck lists the changes after which a key stays sealed.
func TestCheck(t *testing.T) {
	own := newBuilder(t)
	der, err := x509.MarshalPKIXPublicKey(&own.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	s := Sealed{SecureBoot: bytes.Repeat([]byte{7}, 32), Signer: der}
	good := Boot{SecureBoot: Digest(s.SecureBoot), Image: Digest{11}, Signatures: own.sign(t, Digest{11})}
	for _, c := range []struct {
		name   string
		change func(*Boot)
		want   error
	}{
		{"nothing", func(*Boot) {}, nil},
		{"Secure Boot", func(b *Boot) { b.SecureBoot[0]++ }, ErrSecureBoot},
		{"an unsigned image", func(b *Boot) { b.Signatures = Signatures{} }, ErrImage},
		{"an image of another builder", func(b *Boot) { b.Signatures = newBuilder(t).sign(t, b.Image) }, ErrImage},
		{"the phase", func(b *Boot) { b.Image = attest.AfterPhase(b.Image, PhaseStorage) }, ErrImage},
	} {
		b := good
		c.change(&b)
		if err := s.Check(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := (Sealed{}).Check(good); err == nil {
		t.Error("a sealed key without a signer is accepted")
	}
}
