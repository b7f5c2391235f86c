package attest

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"gotest.tools/v3/golden"
)

// The types of events in the tests.
const (
	typeSeparator   = 0x00000004
	typeAction      = 0x80000007
	typeApplication = 0x80000003
	typeVariable    = 0x80000001
	typeStub        = 0x0000000d // EV_IPL
)

// event returns an event that measures content.
func event(pcr, kind uint32, content string) Event {
	return Event{PCR: pcr, Type: kind, Digest: sha256.Sum256([]byte(content)), Data: []byte(content)}
}

// program returns the event for the start of a program.
func program(d Digest) Event {
	return Event{PCR: pcrPrograms, Type: typeApplication, Digest: d, Data: []byte("device path")}
}

// variable returns the event for a variable of Secure Boot.
func variable(name, content string) Event {
	return Event{PCR: pcrSecureBoot, Type: typeVariable, Digest: VariableDigest(name, []byte(content)), Data: []byte(name)}
}

// encode returns a log with SHA-1 and SHA-256 digests.
func encode(events ...Event) []byte {
	le := binary.LittleEndian
	head := append([]byte(logSignature), make([]byte, signatureRest)...)
	head = le.AppendUint32(head, 2)
	for _, a := range [][2]uint16{{4, 20}, {algSHA256, 32}} {
		head = le.AppendUint16(le.AppendUint16(head, a[0]), a[1])
	}
	head = append(head, 0)
	out := le.AppendUint32(nil, 0)
	out = le.AppendUint32(out, NoAction)
	out = append(out, make([]byte, oldDigest)...)
	out = append(le.AppendUint32(out, uint32(len(head))), head...)
	for _, e := range events {
		out = le.AppendUint32(le.AppendUint32(out, e.PCR), e.Type)
		out = le.AppendUint16(le.AppendUint32(out, 2), 4)
		out = append(out, make([]byte, 20)...)
		out = append(le.AppendUint16(out, algSHA256), e.Digest[:]...)
		out = append(le.AppendUint32(out, uint32(len(e.Data))), e.Data...)
	}
	return out
}

func TestParseLog(t *testing.T) {
	locality := Event{PCR: 0, Type: NoAction, Data: []byte(localityPrefix + "\x03")}
	all := []Event{locality, event(0, 8, "firmware"), event(4, typeAction, "Calling EFI Application from Boot Option"), event(17, 1, "late launch")}
	log := encode(all...)
	events, err := ParseLog(log)
	if err != nil || len(events) != len(all) {
		t.Fatalf("%d events, %v", len(events), err)
	}
	values := Replay(events)
	start := Digest{}
	start[31] = 3
	if want := extend(start, all[1].Digest); values[0] != want {
		t.Errorf("PCR 0 is %x, want %x", values[0], want)
	}
	if want := extend(Digest{}, all[2].Digest); values[4] != want || values[5] != (Digest{}) {
		t.Errorf("PCR 4 is %x, want %x; PCR 5 is %x", values[4], want, values[5])
	}
	for n := range log {
		// A log that ends between two events is complete, but shorter.
		if events, err := ParseLog(log[:n]); err == nil && !bytes.Equal(encode(events...), log[:n]) {
			t.Errorf("ParseLog accepts a log that is cut to %d of %d bytes inside an event", n, len(log))
		}
	}
}

func TestParseLogRefuses(t *testing.T) {
	good := encode(event(4, typeSeparator, "\x00\x00\x00\x00"))
	const header = 32 // bytes of the first event before its signature
	change := func(at int, value byte) []byte {
		out := bytes.Clone(good)
		out[at] = value
		return out
	}
	second := len(good) - 4 - 4 - 32 - 2 - 20 - 2 - 4 - 8 // offset of event 1
	for _, c := range []struct {
		name string
		log  []byte
		want string
	}{
		{"empty", nil, "event log: is truncated"},
		{"too long", make([]byte, MaxLog+1), "event log: has more than 1024 KiB"},
		{"of TPM 1.2", change(header, 'X'), "event log: is not in the form of TPM 2.0; the firmware must use the crypto-agile form"},
		{"many algorithms", change(header+len(logSignature)+signatureRest, 17), "event log: names 17 algorithms, and at most 16 are possible"},
		{"no SHA-256", change(header+len(logSignature)+signatureRest+8, 12), "event log: has no SHA-256 digests; enable the SHA-256 bank of the TPM in the setup of the firmware"},
		{"another algorithm", change(second+12, 9), "event log: event 1: has a digest of algorithm 0x9, which the log does not announce"},
		{"many digests", change(second+8, 200), "event log: event 1: has 200 digests, and at most 16 are possible"},
		{"one digest", slices.Concat(good[:second], []byte{4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 4, 0}, make([]byte, 20+4)), "event log: event 1: has no SHA-256 digest"},
		{"long data", change(len(good)-8, 200), "event log: event 1: is truncated"},
	} {
		if _, err := ParseLog(c.log); err == nil || err.Error() != c.want {
			t.Errorf("%s: error %v, want %s", c.name, err, c.want)
		}
	}
}

func FuzzLog(f *testing.F) {
	f.Add(encode(event(4, typeAction, "text"), Event{PCR: 0, Type: NoAction, Data: []byte(localityPrefix + "\x03")}))
	f.Fuzz(func(t *testing.T, log []byte) {
		events, err := ParseLog(log)
		if err != nil {
			return
		}
		size := 0
		for _, e := range events {
			size += len(e.Data)
		}
		if size > len(log) {
			t.Errorf("the events have %d bytes of data, the log only %d", size, len(log))
		}
		Measured{Events: events, PCRs: Replay(events)}.Compare([]Release{{Version: "1"}})
		Describe(events)
	})
}

// soft is a TPM in software. Its keys can sign any quote.
type soft struct {
	ek   *ecdh.PrivateKey
	ak   *ecdsa.PrivateKey
	keys Keys
}

func newSoft(t *testing.T) soft {
	t.Helper()
	ek, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ak, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := func(template tpm2.TPMTPublic, point []byte) []byte {
		template.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: point[33:]}})
		return tpm2.Marshal(template)
	}
	point, err := ak.PublicKey.ECDH()
	if err != nil {
		t.Fatal(err)
	}
	return soft{ek, ak, Keys{Endorsement: public(tpm2.ECCEKTemplate, ek.PublicKey().Bytes()), Attestation: public(attestationTemplate(), point.Bytes())}}
}

// quote returns evidence with a quote of data and values. The function change changes the quote
// before its signature.
func (s soft) quote(t *testing.T, data []byte, values [PCRs]Digest, change func(*tpm2.TPMSAttest)) (e Evidence) {
	t.Helper()
	for _, v := range values {
		e.PCRs = append(e.PCRs, v[:]...)
	}
	sum := sha256.Sum256(e.PCRs)
	a := tpm2.TPMSAttest{
		Magic: tpm2.TPMGeneratedValue, Type: tpm2.TPMSTAttestQuote, ExtraData: tpm2.TPM2BData{Buffer: data}, ClockInfo: tpm2.TPMSClockInfo{ResetCount: 7},
		Attested: tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, &tpm2.TPMSQuoteInfo{PCRSelect: allPCRs, PCRDigest: tpm2.TPM2BDigest{Buffer: sum[:]}}),
	}
	if change != nil {
		change(&a)
	}
	e.Quote = tpm2.Marshal(a)
	sum = sha256.Sum256(e.Quote)
	r, sig, err := ecdsa.Sign(rand.Reader, s.ak, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	e.Signature = tpm2.Marshal(tpm2.TPMTSignature{SigAlg: tpm2.TPMAlgECDSA, Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{
		Hash: tpm2.TPMAlgSHA256, SignatureR: tpm2.TPM2BECCParameter{Buffer: r.Bytes()}, SignatureS: tpm2.TPM2BECCParameter{Buffer: sig.Bytes()},
	})})
	return e
}

var someClaims = Claims{Version: "1.2.0", Root: "root of 1.2.0", Configuration: bytes.Repeat([]byte{1}, 32), MachineKey: "sha256:aa"}

// TestVerify checks that evidence is rejected if one of its parts belongs to another TPM, another
// machine or another nonce.
func TestVerify(t *testing.T) {
	tpm, other := newSoft(t), newSoft(t)
	nonce, content := bytes.Repeat([]byte{5}, NonceSize), bytes.Repeat([]byte{6}, 32)
	events := []Event{event(4, typeAction, "text")}
	make := func(s soft, data []byte, change func(*tpm2.TPMSAttest)) Evidence {
		e := s.quote(t, data, Replay(events), change)
		e.Log, e.Claims, e.Answer = encode(events...), someClaims, content
		return e
	}
	binding := Binding(nonce, someClaims)
	good := make(tpm, binding, nil)
	m, err := good.Verify(tpm.keys, nonce, content, someClaims.MachineKey)
	if err != nil || m.PCRs != Replay(events) || m.Resets != 7 || len(m.Events) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	with := func(change func(*Evidence)) Evidence {
		e := good
		change(&e)
		return e
	}
	restricted := tpm.keys
	template := attestationTemplate()
	template.ObjectAttributes.Restricted = false
	restricted.Attestation = tpm2.Marshal(template)
	weak := tpm.keys
	public, err := parsePublic("attestation key", weak.Attestation)
	if err != nil {
		t.Fatal(err)
	}
	public.NameAlg = tpm2.TPMAlgSHA1
	weak.Attestation = tpm2.Marshal(public)
	for _, c := range []struct {
		name string
		e    Evidence
		keys Keys
		want string
	}{
		{"another answer", with(func(e *Evidence) { e.Answer = bytes.Repeat([]byte{7}, 32) }), tpm.keys, "challenge: the answer is wrong: the attestation key is not in the TPM of the endorsement key"},
		{"no answer", with(func(e *Evidence) { e.Answer = nil }), tpm.keys, "challenge: the answer is wrong: the attestation key is not in the TPM of the endorsement key"},
		{"relayed", with(func(e *Evidence) { e.Claims.MachineKey = "sha256:bb" }), tpm.keys, `evidence: is of the machine with key "sha256:bb", and the connection is to "sha256:aa"`},
		{"replayed", make(tpm, Binding(bytes.Repeat([]byte{4}, NonceSize), someClaims), nil), tpm.keys, "quote: it is for another nonce, or for other claims of the machine"},
		{"other configuration", with(func(e *Evidence) { e.Claims.Configuration = nil }), tpm.keys, "quote: it is for another nonce, or for other claims of the machine"},
		{"other version", with(func(e *Evidence) { e.Claims.Version = "1.3.0" }), tpm.keys, "quote: it is for another nonce, or for other claims of the machine"},
		{"other TPM", make(other, binding, nil), tpm.keys, "signature of the quote: it is not by the attestation key"},
		{"unrestricted key", good, restricted, "attestation key: it is not a restricted signing key of a TPM"},
		{"weak name", good, weak, "attestation key: its name is not by SHA-256"},
		{"no key", good, Keys{}, "attestation key: cannot parse"},
		{"other statement", make(tpm, binding, func(a *tpm2.TPMSAttest) {
			a.Type, a.Attested = tpm2.TPMSTAttestTime, tpm2.NewTPMUAttest(tpm2.TPMSTAttestTime, &tpm2.TPMSTimeAttestInfo{})
		}), tpm.keys, "quote: it is another statement of the TPM"},
		{"fewer PCRs", make(tpm, binding, func(a *tpm2.TPMSAttest) {
			q, _ := a.Attested.Quote()
			q.PCRSelect = tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0x7f, 0}}}}
			a.Attested = tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, q)
		}), tpm.keys, "quote: it does not cover exactly the SHA-256 values of PCR 0 to 15"},
		{"other values", with(func(e *Evidence) { e.PCRs = append([]byte{1}, e.PCRs[1:]...) }), tpm.keys, "quote: the PCR values are not those that the TPM signed"},
		{"short values", with(func(e *Evidence) { e.PCRs = e.PCRs[32:] }), tpm.keys, "quote: the PCR values are not those that the TPM signed"},
		{"changed quote", with(func(e *Evidence) { e.Quote = append(bytes.Clone(e.Quote), 0) }), tpm.keys, "signature of the quote: it is not by the attestation key"},
		{"no signature", with(func(e *Evidence) { e.Signature = nil }), tpm.keys, "signature of the quote: cannot parse"},
		{"no log", with(func(e *Evidence) { e.Log = nil }), tpm.keys, "event log: is truncated"},
	} {
		if _, err := c.e.Verify(c.keys, nonce, content, someClaims.MachineKey); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", c.name, err, c.want)
		}
	}
}

func FuzzEvidence(f *testing.F) {
	s, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	ak := attestationTemplate()
	ak.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: s.X.Bytes()}, Y: tpm2.TPM2BECCParameter{Buffer: s.Y.Bytes()}})
	f.Add(tpm2.Marshal(tpm2.ECCEKTemplate), tpm2.Marshal(ak), []byte("\x00\x18\x00\x0b\x00\x01\x01\x00\x01\x01"))
	f.Fuzz(func(t *testing.T, ek, ak, signature []byte) {
		k := Keys{Endorsement: ek, Attestation: ak, Certificate: ek}
		k.NewChallenge()
		k.EndorsementFingerprint()
		k.CheckCertificate(nil)
		if _, err := (Evidence{Quote: ek, Signature: signature}).Verify(k, nil, nil, ""); err == nil {
			t.Error("evidence without a log is accepted")
		}
	})
}

// TestImagePCR compares the computed PCR 11 with the output of systemd-measure (systemd 252, option
// --phase=) for the same sections.
func TestImagePCR(t *testing.T) {
	r := Release{Sections: []Section{
		{".linux", sha256.Sum256([]byte("kernel"))}, {".osrel", sha256.Sum256([]byte("ID=orlop\n"))},
		{".cmdline", sha256.Sum256([]byte("quiet"))}, {".initrd", sha256.Sum256([]byte("ramdisk"))},
	}}
	if got, want := fmt.Sprintf("%x", r.ImagePCR()), "1f201a062eefeaf49019225c54203b38a88c519699ead88849d2e6e42e4c1b80"; got != want {
		t.Errorf("PCR 11 is %s, and systemd-measure computes %s", got, want)
	}
}

// sample returns a version with digests that are derived from the given name.
func sample(name string) Release {
	digest := func(what string) Digest { return sha256.Sum256([]byte(what + " of " + name)) }
	return Release{
		Version: name, Root: "root of " + name, Image: digest("image"), Kernel: digest("kernel"), Loader: sha256.Sum256([]byte("loader")),
		Sections: []Section{{".linux", digest("linux")}, {".osrel", digest("osrel")}, {".cmdline", digest("cmdline")}},
	}
}

// boot returns the events of a boot of a version.
func boot(r Release) []Event {
	out := []Event{
		event(0, 8, "firmware"), variable("SecureBoot", "\x00"), event(7, typeSeparator, "\x00\x00\x00\x00"),
		event(4, typeAction, "Calling EFI Application from Boot Option"), event(4, typeSeparator, "\x00\x00\x00\x00"),
		program(r.Loader), program(r.Image),
	}
	for _, s := range r.Sections {
		name := nameDigest(s.Name)
		out = append(out, Event{PCR: 11, Type: typeStub, Digest: name}, Event{PCR: 11, Type: typeStub, Digest: s.Digest})
	}
	return out
}

// TestCompare writes the differences of each case to a golden file.
func TestCompare(t *testing.T) {
	old, next, foreign := sample("1.2.0"), sample("1.3.0"), sample("another")
	foreign.Loader = sha256.Sum256([]byte("another loader"))
	signed := sample("1.2.0")
	signed.SecureBoot = map[string]Digest{"PK": VariableDigest("PK", []byte("pk")), "KEK": VariableDigest("KEK", []byte("kek")), "db": VariableDigest("db", []byte("db"))}
	enrolled := append([]Event{variable("SecureBoot", "\x01"), variable("PK", "pk"), variable("KEK", "kek"), variable("db", "db"), variable("dbx", "more")}, boot(signed)[2:]...)
	commandLine := sample("1.2.0")
	commandLine.Sections[2].Digest = sha256.Sum256([]byte("init=/bin/sh"))
	otherStub := sample("1.2.0")
	otherStub.Image = sha256.Sum256([]byte("same sections"))
	encrypting := sample("1.2.0")
	encrypting.Sections = append(slices.Clone(encrypting.Sections), Section{Name: ".pcrpkey", Digest: sha256.Sum256([]byte("key"))})
	swapped := boot(old)
	swapped[len(swapped)-1], swapped[len(swapped)-3] = swapped[len(swapped)-3], swapped[len(swapped)-1]
	var all strings.Builder
	for _, c := range []struct {
		name     string
		events   []Event
		releases []Release
		change   func(*Measured)
	}{
		{"the version", boot(old), []Release{old}, nil},
		{"the version, of two", boot(next), []Release{old, next}, nil},
		{"its kernel by the firmware", append(boot(old), program(old.Kernel)), []Release{old}, nil},
		{"another version", boot(next), []Release{old}, nil},
		{"another loader", append(boot(old)[:5:5], append([]Event{program(foreign.Loader)}, boot(old)[6:]...)...), []Release{old}, nil},
		{"another command line", boot(commandLine), []Release{old}, nil},
		{"another stub", boot(otherStub), []Release{old}, nil},
		{"sections in another order", swapped, []Release{old}, nil},
		{"another program after it", append(boot(old), program(foreign.Image)), []Release{old}, nil},
		{"a program called a text", append(boot(old), Event{PCR: 4, Type: typeAction, Digest: foreign.Image, Data: []byte("Exit Boot Services")}), []Release{old}, nil},
		{"a long text", append(boot(old), event(4, typeAction, strings.Repeat("MZ", 100))), []Release{old}, nil},
		{"another system", boot(foreign)[:6], []Release{old}, nil},
		{"parameters", append(boot(old), event(12, typeStub, "single")), []Release{old}, nil},
		{"after the phase of the disks", boot(old), []Release{old}, func(m *Measured) { m.PCRs[11] = AfterPhase(m.PCRs[11], PhaseStorage) }},
		{"after the phase of a version that opens disks", boot(encrypting), []Release{encrypting}, func(m *Measured) { m.PCRs[11] = AfterPhase(m.PCRs[11], PhaseStorage) }},
		{"before the end of the phase", boot(encrypting), []Release{encrypting}, nil},
		{"an extended PCR", boot(old), []Release{old}, func(m *Measured) { m.PCRs[11] = extend(m.PCRs[11], Digest{1}) }},
		{"files measured by the kernel", boot(old), []Release{old}, func(m *Measured) { m.PCRs[10] = Digest{1} }},
		{"a machine that lies", boot(old), []Release{old}, func(m *Measured) { m.Claims.Root = "root of 1.3.0" }},
		{"Secure Boot", enrolled, []Release{signed}, nil},
		{"Secure Boot off", boot(signed), []Release{signed}, nil},
		{"Secure Boot with another db", append(append([]Event{}, enrolled[:3]...), append([]Event{variable("db", "other")}, enrolled[4:]...)...), []Release{signed}, nil},
		{"Secure Boot with another db, and its event later", slices.Concat(enrolled[:3], []Event{variable("db", "other")}, enrolled[4:], []Event{variable("db", "db")}), []Release{signed}, nil},
		{"no events", nil, []Release{old}, nil},
		{"no versions", boot(old), nil, nil},
	} {
		m := Measured{Events: c.events, PCRs: Replay(c.events), Claims: someClaims}
		for _, r := range c.releases {
			if m.PCRs[pcrImage] == r.ImagePCR() {
				m.Claims.Version, m.Claims.Root = r.Version, r.Root
			}
		}
		if c.change != nil {
			c.change(&m)
		}
		r := m.Compare(c.releases)
		fmt.Fprintf(&all, "%s: version %q, Secure Boot %s\n", c.name, r.Version, r.SecureBoot)
		for _, d := range r.Differences {
			fmt.Fprintf(&all, "    %s\n        %s\n", d.What, d.Cause)
		}
	}
	golden.Assert(t, all.String(), "compare.golden")
}

// TestVariableDigest compares the digest of the variable SecureBoot with the digest that firmware
// measures. This digest is the same on all machines with Secure Boot.
func TestVariableDigest(t *testing.T) {
	d := VariableDigest("SecureBoot", []byte{1})
	if got, want := hex.EncodeToString(d[:]), "ccfc4bb32888a345bc8aeadaba552b627d99348c767681ab3141f5b01e40a40e"; got != want {
		t.Errorf("digest of SecureBoot is %s, want %s", got, want)
	}
}
