package diskkey

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/tpm/tpmtest"
)

// builder is a key that signs boot images.
type builder struct{ *rsa.PrivateKey }

func newBuilder(t *testing.T) builder {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return builder{k}
}

// sign returns the signatures for values of PCR 11.
func (b builder) sign(t *testing.T, values ...Digest) (all Signatures) {
	t.Helper()
	for _, v := range values {
		text, err := SignImage(v, &b.PublicKey, func(sum []byte) ([]byte, error) { return rsa.SignPKCS1v15(nil, b.PrivateKey, crypto.SHA256, sum) })
		if err != nil {
			t.Fatal(err)
		}
		one, err := ParseSignatures(text)
		if err != nil {
			t.Fatal(err)
		}
		all.SHA256 = append(all.SHA256, one.SHA256...)
	}
	return all
}

// measure extends a PCR by the digest of a text.
func measure(t *testing.T, tpm transport.TPM, pcr int, text string) {
	t.Helper()
	sum := sha256.Sum256([]byte(text))
	_, err := tpm2.PCRExtend{PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(pcr), Auth: tpm2.PasswordAuth(nil)},
		Digests: tpm2.TPMLDigestValues{Digests: []tpm2.TPMTHA{{HashAlg: tpm2.TPMAlgSHA256, Digest: sum[:]}}}}.Execute(tpm)
	if err != nil {
		t.Fatal(err)
	}
}

// boot starts a TPM with the state in dir, and measures a boot into it.
func boot(t *testing.T, dir, secureBoot, image string) transport.TPM {
	t.Helper()
	tpm := tpmtest.StartIn(t, dir)
	measure(t, tpm, pcrSecureBoot, secureBoot)
	measure(t, tpm, pcrImage, image)
	return tpm
}

// valueOf returns the value of a PCR after one measurement.
func valueOf(text string) Digest { return attest.AfterPhase(Digest{}, text) }

// TestUnseal seals a key in one boot, and unseals it in other boots of the same TPM. It lists the
// boots in which the TPM does not release the key, each with the reason.
func TestUnseal(t *testing.T) {
	dir, key := t.TempDir(), bytes.Repeat([]byte{7}, KeySize)
	own, stranger := newBuilder(t), newBuilder(t)
	now, next := valueOf("version 1"), valueOf("version 2")
	var sealed Sealed
	t.Run("seal", func(t *testing.T) {
		// The TPM seals after the phase, too: sealing depends on no value of PCR 11.
		tpm := boot(t, dir, "on", "version 1")
		if _, err := EndPhase(tpm, nil); err != nil {
			t.Fatal(err)
		}
		var err error
		if sealed, err = Seal(tpm, key, &own.PublicKey, valueOf("on")); err != nil {
			t.Fatal(err)
		}
	})
	for _, c := range []struct {
		name, secureBoot, image string
		dir                     string
		signatures              Signatures
		phase, clear            bool
		want                    error
	}{
		{"the same boot", "on", "version 1", dir, own.sign(t, now), false, false, nil},
		{"a new version", "on", "version 2", dir, own.sign(t, now, next), false, false, nil},
		{"Secure Boot is off", "off", "version 1", dir, own.sign(t, now), false, false, ErrSecureBoot},
		{"an image without signature", "on", "version 1", dir, Signatures{}, false, false, ErrImage},
		{"the signature of another image", "on", "version 2", dir, own.sign(t, now), false, false, ErrImage},
		{"an image of another builder", "on", "version 1", dir, stranger.sign(t, now), false, false, ErrImage},
		{"after the phase", "on", "version 1", dir, own.sign(t, now), true, false, ErrImage},
		{"another TPM", "on", "version 1", t.TempDir(), own.sign(t, now), false, false, ErrTPM},
		{"a cleared TPM", "on", "version 1", dir, own.sign(t, now), false, true, ErrTPM},
	} {
		t.Run(c.name, func(t *testing.T) {
			tpm := boot(t, c.dir, c.secureBoot, c.image)
			if c.phase {
				if _, err := EndPhase(tpm, nil); err != nil {
					t.Fatal(err)
				}
			}
			if c.clear {
				if _, err := (tpm2.Clear{AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHLockout, Auth: tpm2.PasswordAuth(nil)}}).Execute(tpm); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Unseal(tpm, sealed, c.signatures)
			if !errors.Is(err, c.want) || c.want == nil && !bytes.Equal(got, key) {
				t.Fatalf("key %x, error %v, want %v", got, err, c.want)
			}
			if c.want != nil && got != nil {
				t.Errorf("a key beside the error %v", err)
			}
			if c.dir == dir && !c.clear {
				// The prediction from the values gives the same answer as the TPM.
				b, err := ReadBoot(tpm, c.signatures)
				if err != nil {
					t.Fatal(err)
				}
				if err := sealed.Check(b); !errors.Is(err, c.want) {
					t.Errorf("the prediction is %v, want %v", err, c.want)
				}
			}
		})
	}
}

// TestTPMDecides removes the checks of the program, and shows that the TPM itself refuses: the
// policy session of another value of PCR 7 or PCR 11 does not release the key.
func TestTPMDecides(t *testing.T) {
	dir, key, own := t.TempDir(), bytes.Repeat([]byte{7}, KeySize), newBuilder(t)
	var sealed Sealed
	t.Run("seal", func(t *testing.T) {
		tpm := boot(t, dir, "on", "version 1")
		var err error
		if sealed, err = Seal(tpm, key, &own.PublicKey, valueOf("on")); err != nil {
			t.Fatal(err)
		}
	})
	for _, c := range []struct {
		name, secureBoot string
		claimed          Digest // the value of PCR 7 that the metadata claims
		signatures       Signatures
		phase            bool
	}{
		{"forged metadata for PCR 7", "off", valueOf("off"), own.sign(t, valueOf("version 1")), false},
		{"a forged signer after the phase", "on", valueOf("on"), Signatures{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tpm := boot(t, dir, c.secureBoot, "version 1")
			forged := sealed
			forged.SecureBoot = c.claimed[:]
			if c.phase {
				if _, err := EndPhase(tpm, nil); err != nil {
					t.Fatal(err)
				}
				forger := newBuilder(t)
				c.signatures = forger.sign(t, attest.AfterPhase(valueOf("version 1"), PhaseStorage))
				der, err := Seal(tpm, key, &forger.PublicKey, valueOf("on"))
				if err != nil {
					t.Fatal(err)
				}
				forged.Signer = der.Signer
			}
			got, err := Unseal(tpm, forged, c.signatures)
			if err == nil || got != nil || errors.Is(err, ErrSecureBoot) || errors.Is(err, ErrImage) {
				t.Errorf("key %x, error %v: the TPM itself must refuse", got, err)
			}
		})
	}
}

// recorder records the bytes that cross the bus between the processor and the TPM.
type recorder struct {
	transport.TPM
	mu  sync.Mutex
	all []byte
}

func (r *recorder) Send(command []byte) ([]byte, error) {
	answer, err := r.TPM.Send(command)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(append(r.all, command...), answer...)
	return answer, err
}

// TestEncryptedSessions checks that the key never crosses the bus in plain text.
func TestEncryptedSessions(t *testing.T) {
	own := newBuilder(t)
	bus := &recorder{TPM: boot(t, t.TempDir(), "on", "version 1")}
	key := make([]byte, KeySize)
	rand.Read(key)
	sealed, err := Seal(bus, key, &own.PublicKey, valueOf("on"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Unseal(bus, sealed, own.sign(t, valueOf("version 1")))
	if err != nil || !bytes.Equal(got, key) {
		t.Fatalf("%x, %v", got, err)
	}
	if len(bus.all) < 1000 || bytes.Contains(bus.all, key) || bytes.Contains(bus.all, key[:8]) {
		t.Errorf("the key is in the %d bytes on the bus", len(bus.all))
	}
	// All objects and sessions are gone, so the sequence can repeat often.
	for range 10 {
		if _, err := Unseal(bus, sealed, own.sign(t, valueOf("version 1"))); err != nil {
			t.Fatal(err)
		}
	}
	// A failed attempt leaves nothing in the TPM, either.
	for range 10 {
		if _, err := Unseal(bus, sealed, Signatures{}); !errors.Is(err, ErrImage) {
			t.Fatal(err)
		}
	}
}

// logOf returns an event log of the firmware after which PCR 11 has the value valueOf(image).
func logOf(image string) []attest.Event {
	return []attest.Event{{PCR: pcrImage, Digest: sha256.Sum256([]byte(image))}}
}

// TestSealChecked checks that no key is sealed that the running boot could not unseal.
func TestSealChecked(t *testing.T) {
	own, key := newBuilder(t), bytes.Repeat([]byte{7}, KeySize)
	signed := own.sign(t, valueOf("version 1"))
	for _, c := range []struct {
		name       string
		image      string
		signatures Signatures
		phase      bool
		more       string // measured after the phase
		log        []attest.Event
		want       error
	}{
		{"before the end of the phase", "version 1", signed, false, "", nil, nil},
		{"after it", "version 1", signed, true, "", logOf("version 1"), nil},
		{"after it with the log of another boot", "version 1", signed, true, "", logOf("version 2"), ErrImage},
		{"after it without a log", "version 1", signed, true, "", nil, ErrImage},
		{"another value after it", "version 1", signed, true, "more", logOf("version 1"), ErrImage},
		{"an image without signatures", "version 1", Signatures{}, false, "", logOf("version 1"), ErrImage},
		{"the signatures of another image", "version 2", signed, false, "", logOf("version 2"), ErrImage},
		{"the signatures of another image after the phase", "version 2", signed, true, "", logOf("version 2"), ErrImage},
	} {
		t.Run(c.name, func(t *testing.T) {
			tpm := boot(t, t.TempDir(), "on", c.image)
			if c.phase {
				if _, err := EndPhase(tpm, startOf(nil, c.log)); err != nil {
					t.Fatal(err)
				}
			}
			if c.more != "" {
				measure(t, tpm, pcrImage, c.more)
			}
			s, err := SealChecked(tpm, key, &own.PublicKey, c.signatures, startOf(nil, c.log))
			if !errors.Is(err, c.want) || (err == nil) != (len(s.Private) > 0) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestSealWithoutLog checks that the value before the end of the phase replaces a missing event
// log, and a log without the events of PCR 11.
func TestSealWithoutLog(t *testing.T) {
	own, key := newBuilder(t), bytes.Repeat([]byte{7}, KeySize)
	signed := own.sign(t, valueOf("version 1"))
	tpm := boot(t, t.TempDir(), "on", "version 1")
	started, err := EndPhase(tpm, nil)
	if value := valueOf("version 1"); err != nil || !bytes.Equal(started, value[:]) {
		t.Fatalf("PCR 11 was %x (%v)", started, err)
	}
	for _, log := range [][]attest.Event{nil, {{PCR: pcrSecureBoot}}} {
		if again, err := EndPhase(tpm, startOf(started, log)); err != nil || !bytes.Equal(again, started) {
			t.Errorf("the second end of the phase: %x, %v", again, err)
		}
		if s, err := SealChecked(tpm, key, &own.PublicKey, signed, startOf(started, log)); err != nil || len(s.Private) == 0 {
			t.Errorf("with the log %v: %v", log, err)
		}
		if _, err := SealChecked(tpm, key, &own.PublicKey, signed, startOf(nil, log)); !errors.Is(err, ErrImage) {
			t.Errorf("without the value, with the log %v: %v", log, err)
		}
	}
}

// TestEndPhase checks that a repeated end of the phase changes nothing, and that a TPM which does
// not extend PCR 11 is an error.
func TestEndPhase(t *testing.T) {
	tpm := boot(t, t.TempDir(), "on", "version 1")
	for range 2 {
		started, err := EndPhase(tpm, startOf(nil, logOf("version 1")))
		if value := valueOf("version 1"); err != nil || !bytes.Equal(started, value[:]) {
			t.Fatalf("PCR 11 was %x (%v)", started, err)
		}
		if now, err := readPCR(tpm, pcrImage); err != nil || now != attest.AfterPhase(valueOf("version 1"), PhaseStorage) {
			t.Errorf("PCR 11 is %x (%v)", now, err)
		}
	}
	if _, err := EndPhase(deaf{tpm}, nil); err == nil {
		t.Error("a PCR that was not extended is accepted")
	}
}

// deaf is a TPM that confirms, and does not perform, TPM2_PCR_Extend.
type deaf struct{ transport.TPM }

func (d deaf) Send(command []byte) ([]byte, error) {
	if binary.BigEndian.Uint32(command[6:]) == uint32(tpm2.TPMCCPCRExtend) {
		// A response with a session: no parameters, and the answer of the empty password.
		return []byte{0x80, 0x02, 0, 0, 0, 19, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, nil
	}
	return d.TPM.Send(command)
}
