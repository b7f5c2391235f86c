package attest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/orlop-os/orlop/pkg/tpm/tpmtest"
)

// TestTPM attests with an emulated TPM.
func TestTPM(t *testing.T) {
	tpm := tpmtest.Start(t)
	first, err := ask(tpm, question{})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ask(tpm, question{}); err != nil || !bytes.Equal(again.Keys.Attestation, first.Keys.Attestation) || !bytes.Equal(again.Keys.Endorsement, first.Keys.Endorsement) {
		t.Errorf("a second call returns other keys: %v", err)
	}
	challenge, content, err := first.Keys.NewChallenge()
	if err != nil {
		t.Fatal(err)
	}
	nonce := bytes.Repeat([]byte{9}, NonceSize)
	out, err := ask(tpm, question{Data: Binding(nonce, someClaims), Challenge: challenge})
	if err != nil {
		t.Fatal(err)
	}
	e := out.Evidence
	e.Claims, e.Log = someClaims, encode()
	m, err := e.Verify(out.Keys, nonce, content, someClaims.MachineKey)
	if err != nil {
		t.Fatal(err)
	}
	if d := m.compareLog(); len(d) != 0 { // nothing was measured
		t.Error(d)
	}
	if _, err := e.Verify(out.Keys, bytes.Repeat([]byte{8}, NonceSize), content, someClaims.MachineKey); err == nil {
		t.Error("a quote for another nonce is accepted")
	}
	fingerprint, err := first.Keys.EndorsementFingerprint()
	if err != nil || !strings.HasPrefix(fingerprint, "sha256:") {
		t.Errorf("fingerprint %q, %v", fingerprint, err)
	}
	other := newSoft(t)
	foreign, _, err := other.keys.NewChallenge()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(tpm, question{Data: []byte{1}, Challenge: foreign}); err == nil || !strings.Contains(err.Error(), "cannot decrypt the challenge") {
		t.Errorf("a challenge for another TPM: %v", err)
	}
	if _, err := ask(tpm, question{}); err != nil {
		t.Errorf("a call after a failed call: %v", err)
	}
}

// TestCertificate attests with a TPM that stores a certificate only for its RSA key. The TPM stores
// padding after the certificate.
func TestCertificate(t *testing.T) {
	tpm := tpmtest.Start(t)
	certificate := append([]byte{0x30, 0x82, 0x02, 0x58}, bytes.Repeat([]byte{1}, 600)...)
	stored := append(bytes.Clone(certificate), bytes.Repeat([]byte{0xff}, 100)...)
	define := tpm2.NVDefineSpace{
		AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		PublicInfo: tpm2.New2B(tpm2.TPMSNVPublic{
			NVIndex: certificateRSA, NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(stored)),
			Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, AuthRead: true, NoDA: true, NT: tpm2.TPMNTOrdinary},
		}),
	}
	if _, err := define.Execute(tpm); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(stored); at += 256 {
		// The first write changes the name of the NV index, so the test reads the name before each
		// write.
		public, err := tpm2.NVReadPublic{NVIndex: certificateRSA}.Execute(tpm)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tpm2.NVWrite{
			AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
			NVIndex:    tpm2.NamedHandle{Handle: certificateRSA, Name: public.NVName},
			Data:       tpm2.TPM2BMaxNVBuffer{Buffer: stored[at:min(at+256, len(stored))]}, Offset: uint16(at),
		}.Execute(tpm)
		if err != nil {
			t.Fatal(err)
		}
	}
	first, err := ask(tpm, question{})
	if err != nil || !bytes.Equal(first.Keys.Certificate, certificate) {
		t.Fatalf("a certificate of %d bytes, want %d: %v", len(first.Keys.Certificate), len(certificate), err)
	}
	challenge, content, err := first.Keys.NewChallenge()
	if err != nil {
		t.Fatal(err)
	}
	out, err := ask(tpm, question{Data: Binding(content, someClaims), Challenge: challenge})
	if err != nil {
		t.Fatal(err)
	}
	e := out.Evidence
	e.Claims, e.Log = someClaims, encode()
	if _, err := e.Verify(out.Keys, content, content, someClaims.MachineKey); err != nil {
		t.Error(err)
	}
	if ek, err := parsePublic("endorsement key", out.Keys.Endorsement); err != nil || ek.Type != tpm2.TPMAlgRSA {
		t.Errorf("the endorsement key is not RSA: %v", err)
	}
}
