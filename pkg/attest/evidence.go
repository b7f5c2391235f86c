package attest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-tpm/tpm2"
)

// NonceSize is the size of a nonce in bytes: the same as the size of the digest into which Binding
// hashes the nonce.
const NonceSize = sha256.Size

// Deadline is the timeout for the TPM. A chip needs seconds to create a key; an emulated TPM on an
// emulated processor does not need longer.
const Deadline = time.Minute

// Keys are the public keys of a TPM.
type Keys struct {
	// Endorsement is the endorsement key (EK), which only decrypts (TPMT_PUBLIC). It belongs to the
	// chip and never changes, unless the endorsement hierarchy is cleared in the setup of the
	// firmware.
	Endorsement []byte `json:"endorsement"`
	// Certificate is the EK certificate (DER), issued by the manufacturer of the TPM; empty if the
	// TPM stores none.
	Certificate []byte `json:"certificate,omitempty"`
	// Attestation is the attestation key (AK), which signs only data of the TPM itself
	// (TPMT_PUBLIC).
	Attestation []byte `json:"attestation"`
}

// Challenge is encrypted for an EK and names an AK: only the TPM that has both keys can decrypt the
// challenge.
type Challenge struct {
	Credential []byte `json:"credential"` // TPM2B_ID_OBJECT without its size
	Secret     []byte `json:"secret"`     // TPM2B_ENCRYPTED_SECRET without its size
}

// Claims are what a machine says about itself. The quote covers the claims, and known versions make
// only true claims. So if the PCRs show that the machine booted a known version, its claims are
// true.
type Claims struct {
	Version string `json:"version"`
	Root    string `json:"root"` // the root partition, as on the kernel's command line
	// Configuration is the SHA-256 digest of the documents of the active configuration; empty if
	// there is no active configuration.
	Configuration []byte `json:"configuration,omitempty"`
	// MachineKey is the fingerprint of the machine's key (pki.Fingerprint).
	MachineKey string `json:"machineKey"`
}

// Evidence is the answer of a machine to a nonce and a challenge.
type Evidence struct {
	Claims    Claims `json:"claims"`
	Quote     []byte `json:"quote"`     // TPMS_ATTEST
	Signature []byte `json:"signature"` // TPMT_SIGNATURE by the AK
	PCRs      []byte `json:"pcrs"`      // SHA-256 values of PCR 0 to 15
	Log       []byte `json:"log"`       // event log of the firmware
	Answer    []byte `json:"answer"`    // decrypted content of the challenge
}

// Measured is verified evidence: what the TPM of the EK measured since its reset.
type Measured struct {
	Claims Claims
	PCRs   [PCRs]Digest
	Events []Event
	// Resets counts the starts of the TPM since it was cleared.
	Resets uint32
}

// bindingLabel is the domain separator of Binding.
const bindingLabel = "orlop attestation v1"

// Binding returns the data that the quote contains besides the PCRs. It connects nonce and claims:
// a quote with another nonce, of another machine or with another configuration does not match.
func Binding(nonce []byte, c Claims) []byte {
	sum := sha256.New()
	for _, field := range [][]byte{[]byte(bindingLabel), nonce, []byte(c.Version), []byte(c.Root), c.Configuration, []byte(c.MachineKey)} {
		sum.Write(binary.BigEndian.AppendUint32(nil, uint32(len(field))))
		sum.Write(field)
	}
	return sum.Sum(nil)
}

// unmarshal parses a structure of the TPM. A panic of the library on untrusted bytes becomes an
// error.
func unmarshal[T tpm2.Marshallable, P interface {
	*T
	tpm2.Unmarshallable
}](what string, text []byte) (out *T, err error) {
	defer func() {
		if recover() != nil {
			out, err = nil, fmt.Errorf("%s: cannot parse", what)
		}
	}()
	out, err = tpm2.Unmarshal[T, P](text)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot parse: %w", what, err)
	}
	return out, nil
}

func parsePublic(what string, text []byte) (*tpm2.TPMTPublic, error) {
	return unmarshal[tpm2.TPMTPublic](what, text)
}

// NewChallenge returns a challenge for the keys, and the content that only the TPM can decrypt.
func (k Keys) NewChallenge() (c Challenge, content []byte, err error) {
	defer func() {
		if recover() != nil { // the library can panic on untrusted bytes
			err = errors.New("endorsement key: cannot be used")
		}
	}()
	ek, err := parsePublic("endorsement key", k.Endorsement)
	if err != nil {
		return c, nil, err
	}
	ak, err := k.attestation()
	if err != nil {
		return c, nil, err
	}
	name, err := tpm2.ObjectName(ak)
	if err != nil {
		return c, nil, fmt.Errorf("attestation key: %w", err)
	}
	to, err := tpm2.ImportEncapsulationKey(ek)
	if err != nil {
		return c, nil, fmt.Errorf("endorsement key: %w", err)
	}
	content = make([]byte, sha256.Size)
	rand.Read(content)
	c.Credential, c.Secret, err = tpm2.CreateCredential(rand.Reader, to, name.Buffer, content)
	if err != nil {
		return c, nil, fmt.Errorf("endorsement key: cannot encrypt a challenge: %w", err)
	}
	return c, content, nil
}

// attestation returns the AK. It returns an error if the key was not created in a TPM, can leave
// the TPM, or can sign data from outside the TPM.
func (k Keys) attestation() (*tpm2.TPMTPublic, error) {
	ak, err := parsePublic("attestation key", k.Attestation)
	if err != nil {
		return nil, err
	}
	a := ak.ObjectAttributes
	if !a.FixedTPM || !a.FixedParent || !a.SensitiveDataOrigin || !a.Restricted || !a.SignEncrypt || a.Decrypt {
		return nil, errors.New("attestation key: it is not a restricted signing key of a TPM")
	}
	// The challenge connects the key with the TPM only by the name of the key, which is a hash.
	// Because SHA-1 has collisions, a key outside of the TPM could have the same SHA-1 name as a
	// key inside.
	if ak.NameAlg != tpm2.TPMAlgSHA256 {
		return nil, errors.New("attestation key: its name is not by SHA-256")
	}
	return ak, nil
}

// EndorsementFingerprint returns "sha256:" and the SHA-256 digest of the EK's public key (DER), in
// hexadecimal. It identifies the TPM.
func (k Keys) EndorsementFingerprint() (string, error) {
	der, err := k.endorsementDER()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

func (k Keys) endorsementDER() ([]byte, error) {
	ek, err := parsePublic("endorsement key", k.Endorsement)
	if err != nil {
		return nil, err
	}
	public, err := publicKey(ek)
	if err != nil {
		return nil, fmt.Errorf("endorsement key: %w", err)
	}
	return x509.MarshalPKIXPublicKey(public)
}

// publicKey converts a public key to the type of the standard library.
func publicKey(k *tpm2.TPMTPublic) (out any, err error) {
	defer func() {
		if recover() != nil { // the library can panic on untrusted bytes
			err = errors.New("is not a valid public key")
		}
	}()
	return tpm2.Pub(*k)
}

// subjectAltName is the identifier of the extension in which EK certificates name the TPM. The
// extension is critical and has a form that crypto/x509 does not handle.
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// CheckCertificate returns an error unless the EK has a certificate from a trusted CA of a TPM
// manufacturer.
func (k Keys) CheckCertificate(roots *x509.CertPool) error {
	if len(k.Certificate) == 0 {
		return errors.New("endorsement key: the TPM stores no certificate of its maker; compare its fingerprint with a recorded one")
	}
	certificate, err := x509.ParseCertificate(k.Certificate)
	if err != nil {
		return fmt.Errorf("certificate of the endorsement key: %w", err)
	}
	der, err := k.endorsementDER()
	if err != nil {
		return err
	}
	if !bytes.Equal(der, certificate.RawSubjectPublicKeyInfo) {
		return errors.New("certificate of the endorsement key: it is for another key")
	}
	certificate.UnhandledCriticalExtensions = slices.DeleteFunc(certificate.UnhandledCriticalExtensions, subjectAltName.Equal)
	// The TPM does not store the intermediate CAs of its maker; the operator can add them to the
	// roots.
	_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return fmt.Errorf("certificate of the endorsement key: %w", err)
	}
	return nil
}

// Verify checks evidence of the TPM with the keys k. nonce is the nonce of the caller's request,
// and content is the content of its challenge (NewChallenge). connection is the fingerprint of the
// key that the machine uses in the connection. The claims must contain this fingerprint: otherwise
// the peer could relay the evidence of another machine.
func (e Evidence) Verify(k Keys, nonce, content []byte, connection string) (m Measured, err error) {
	ak, err := k.attestation()
	if err != nil {
		return m, err
	}
	switch {
	case subtle.ConstantTimeCompare(e.Answer, content) != 1:
		return m, errors.New("challenge: the answer is wrong: the attestation key is not in the TPM of the endorsement key")
	case e.Claims.MachineKey != connection:
		return m, fmt.Errorf("evidence: is of the machine with key %q, and the connection is to %q", e.Claims.MachineKey, connection)
	}
	if err := verifySignature(ak, e.Quote, e.Signature); err != nil {
		return m, err
	}
	quote, err := unmarshal[tpm2.TPMSAttest]("quote", e.Quote)
	if err != nil {
		return m, err
	}
	if !bytes.Equal(quote.ExtraData.Buffer, Binding(nonce, e.Claims)) {
		return m, errors.New("quote: it is for another nonce, or for other claims of the machine")
	}
	if err := checkSelection(quote, e.PCRs); err != nil {
		return m, err
	}
	if m.Events, err = ParseLog(e.Log); err != nil {
		return m, err
	}
	for i := range m.PCRs {
		m.PCRs[i] = Digest(e.PCRs[i*sha256.Size:])
	}
	m.Claims, m.Resets = e.Claims, quote.ClockInfo.ResetCount
	return m, nil
}

// verifySignature checks the signature of an AK on a quote: ECDSA with SHA-256.
func verifySignature(ak *tpm2.TPMTPublic, quote, signature []byte) error {
	public, err := publicKey(ak)
	if err != nil {
		return fmt.Errorf("attestation key: %w", err)
	}
	key, ok := public.(*ecdsa.PublicKey)
	if !ok {
		return errors.New("attestation key: it is not an elliptic curve key")
	}
	s, err := unmarshal[tpm2.TPMTSignature]("signature of the quote", signature)
	if err != nil {
		return err
	}
	ec, err := s.Signature.ECDSA()
	if err != nil || s.SigAlg != tpm2.TPMAlgECDSA || ec.Hash != tpm2.TPMAlgSHA256 {
		return errors.New("signature of the quote: it is not ECDSA with SHA-256")
	}
	der, err := asn1.Marshal(struct{ R, S asn1.RawValue }{integer(ec.SignatureR.Buffer), integer(ec.SignatureS.Buffer)})
	if err != nil {
		return fmt.Errorf("signature of the quote: %w", err)
	}
	sum := sha256.Sum256(quote)
	if !ecdsa.VerifyASN1(key, sum[:], der) {
		return errors.New("signature of the quote: it is not by the attestation key")
	}
	return nil
}

// integer returns a positive number as an ASN.1 INTEGER.
func integer(value []byte) asn1.RawValue {
	value = bytes.TrimLeft(value, "\x00")
	if len(value) == 0 || value[0] >= 0x80 {
		value = append([]byte{0}, value...)
	}
	return asn1.RawValue{Tag: asn1.TagInteger, Bytes: value}
}

// checkSelection checks that a structure of a TPM is a quote of the SHA-256 values of PCR 0 to 15.
func checkSelection(a *tpm2.TPMSAttest, values []byte) error {
	if a.Magic != tpm2.TPMGeneratedValue || a.Type != tpm2.TPMSTAttestQuote {
		return errors.New("quote: it is another statement of the TPM")
	}
	q, err := a.Attested.Quote()
	if err != nil {
		return fmt.Errorf("quote: %w", err)
	}
	list := q.PCRSelect.PCRSelections
	if len(list) != 1 || list[0].Hash != tpm2.TPMAlgSHA256 || !bytes.Equal(bytes.TrimRight(list[0].PCRSelect, "\x00"), []byte{0xff, 0xff}) {
		return errors.New("quote: it does not cover exactly the SHA-256 values of PCR 0 to 15")
	}
	sum := sha256.Sum256(values)
	if len(values) != PCRs*sha256.Size || !bytes.Equal(q.PCRDigest.Buffer, sum[:]) {
		return errors.New("quote: the PCR values are not those that the TPM signed")
	}
	return nil
}
