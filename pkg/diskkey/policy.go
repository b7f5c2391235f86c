package diskkey

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"

	"github.com/orlop-os/orlop/pkg/attest"
)

// Digest is the value of a PCR (SHA-256).
type Digest = attest.Digest

// The PCRs of the policy.
const (
	pcrSecureBoot = 7  // the mode, the keys and the used certificates of Secure Boot
	pcrImage      = 11 // the sections of the boot image, then the phases of the boot
)

// PhaseStorage is the word that machined measures into PCR 11 when it has opened the disks, or has
// failed to. Afterwards the TPM releases the unlock keys no more until the next boot. machined also
// measures the word on a machine without encrypted partitions. Otherwise an attacker could replace
// STATE by an unencrypted one with a configuration of their own, and ask the TPM for the key of the
// former STATE from the running system.
const PhaseStorage = attest.PhaseStorage

// selection selects a PCR of the SHA-256 bank.
func selection(pcr int) tpm2.TPMLPCRSelection {
	mask := make([]byte, 3)
	mask[pcr/8] = 1 << (pcr % 8)
	return tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMAlgSHA256, PCRSelect: mask}}}
}

// imagePolicy returns the policy digest that is signed for a boot image: TPM2_PolicyPCR over PCR
// 11.
func imagePolicy(value Digest) ([]byte, error) {
	p, err := tpm2.NewPolicyCalculator(tpm2.TPMAlgSHA256)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(value[:])
	err = tpm2.PolicyPCR{PcrDigest: tpm2.TPM2BDigest{Buffer: sum[:]}, Pcrs: selection(pcrImage)}.Update(p)
	return p.Hash().Digest, err
}

// sealPolicy returns the policy digest of a sealed key. TPM2_PolicyAuthorize accepts any policy
// that the key has signed, which is a policy over PCR 11. TPM2_PolicyPCR then binds PCR 7 to its
// value.
func sealPolicy(signer *rsa.PublicKey, secureBoot Digest) ([]byte, error) {
	public := signerPublic(signer)
	name, err := tpm2.ObjectName(&public)
	if err != nil {
		return nil, err
	}
	p, err := tpm2.NewPolicyCalculator(tpm2.TPMAlgSHA256)
	if err != nil {
		return nil, err
	}
	if err := (tpm2.PolicyAuthorize{KeySign: *name}).Update(p); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(secureBoot[:])
	err = tpm2.PolicyPCR{PcrDigest: tpm2.TPM2BDigest{Buffer: sum[:]}, Pcrs: selection(pcrSecureBoot)}.Update(p)
	return p.Hash().Digest, err
}

// signerPublic returns the public key of the signer of boot images as the TPM loads it.
func signerPublic(k *rsa.PublicKey) tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgRSA, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{UserWithAuth: true, SignEncrypt: true},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
			KeyBits: tpm2.TPMKeyBits(k.Size() * 8), Exponent: uint32(k.E),
			Symmetric: tpm2.TPMTSymDefObject{Algorithm: tpm2.TPMAlgNull}, Scheme: tpm2.TPMTRSAScheme{Scheme: tpm2.TPMAlgNull},
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: k.N.FillBytes(make([]byte, k.Size()))}),
	}
}

// Signatures is the content of the section .pcrsig of a boot image, in the format of
// systemd-measure(1): the signed policies by bank. Banks other than SHA-256 are ignored.
type Signatures struct {
	SHA256 []Signature `json:"sha256"`
}

// Signature is a signed policy.
type Signature struct {
	PCRs        []int  `json:"pcrs"`
	Fingerprint string `json:"pkfp"` // SHA-256 of the public key (PKCS #1, DER), hexadecimal
	Policy      string `json:"pol"`  // digest of the policy, hexadecimal
	Signature   []byte `json:"sig"`  // RSA PKCS #1 v1.5 with SHA-256 of the digest, base64
}

// maxSignatures is the maximum size of a section .pcrsig in bytes. One signature has 600 bytes.
const maxSignatures = 64 << 10

// ParseSignatures parses the section .pcrsig.
func ParseSignatures(text []byte) (s Signatures, err error) {
	if len(text) > maxSignatures {
		return s, fmt.Errorf("signatures of PCR 11: have %d bytes, and at most %d are possible", len(text), maxSignatures)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("signatures of PCR 11: cannot parse: %w", err)
	}
	return s, nil
}

// SignImage returns the section .pcrsig for a boot image after which PCR 11 has the value. sign
// returns the signature (RSA PKCS #1 v1.5) of a SHA-256 digest by the private key of signer.
func SignImage(value Digest, signer *rsa.PublicKey, sign func(digest []byte) ([]byte, error)) ([]byte, error) {
	policy, err := imagePolicy(value)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(policy)
	signature, err := sign(sum[:])
	if err != nil {
		return nil, fmt.Errorf("PCR 11: cannot sign: %w", err)
	}
	if err := rsa.VerifyPKCS1v15(signer, crypto.SHA256, sum[:], signature); err != nil {
		return nil, fmt.Errorf("PCR 11: the signature is not by the key of .pcrpkey: %w", err)
	}
	return json.Marshal(Signatures{[]Signature{{PCRs: []int{pcrImage}, Fingerprint: fingerprint(signer), Policy: hex.EncodeToString(policy), Signature: signature}}})
}

// fingerprint names a key in Signatures, as OpenSSL encodes the key (i2d_PublicKey).
func fingerprint(k *rsa.PublicKey) string {
	sum := sha256.Sum256(x509.MarshalPKCS1PublicKey(k))
	return hex.EncodeToString(sum[:])
}

// MarshalSigner returns the section .pcrpkey: the public key in PEM.
func MarshalSigner(k *rsa.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// ParseSigner parses the section .pcrpkey. Every TPM 2.0 verifies RSA with 2048 bits, so another
// size is an error.
func ParseSigner(text []byte) (*rsa.PublicKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("key for PCR 11: a single public key (PEM) expected")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key for PCR 11: %w", err)
	}
	k, ok := parsed.(*rsa.PublicKey)
	if !ok || k.Size() != 256 {
		return nil, errors.New("key for PCR 11: an RSA key of 2048 bits expected, which every TPM 2.0 verifies")
	}
	return k, nil
}

// find returns the signature by signer of the policy of a value of PCR 11. It returns nil if there
// is no valid signature.
func (s Signatures) find(signer *rsa.PublicKey, value Digest) []byte {
	policy, err := imagePolicy(value)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(policy)
	for _, one := range s.SHA256 {
		if slices.Equal(one.PCRs, []int{pcrImage}) && rsa.VerifyPKCS1v15(signer, crypto.SHA256, sum[:], one.Signature) == nil {
			return one.Signature
		}
	}
	return nil
}

// The reasons why a TPM does not release a key. Each error of Unseal and of Check wraps one of
// them.
var (
	ErrTPM        = errors.New("the TPM is not the TPM that sealed the key, or it was cleared")
	ErrSecureBoot = errors.New("PCR 7 has another value: the mode or the keys of Secure Boot have changed, or the firmware measures them differently")
	ErrImage      = errors.New("PCR 11 has a value for which there is no signature by the key of the sealed policy: the boot image is not from the same builder, is not signed for disk encryption, or has opened its disks already in this boot")
)

// Boot describes the measurements of a boot up to the moment at which machined opens the disks.
type Boot struct {
	SecureBoot Digest     // PCR 7
	Image      Digest     // PCR 11
	Signatures Signatures // of the boot image
}

// Check reports whether the TPM that sealed the key will release it after the boot. The error wraps
// the reason.
func (s Sealed) Check(b Boot) error {
	signer, err := s.signer()
	if err != nil {
		return err
	}
	if !bytes.Equal(s.SecureBoot, b.SecureBoot[:]) {
		return fmt.Errorf("%w (%x, and the key is sealed to %x)", ErrSecureBoot, b.SecureBoot, s.SecureBoot)
	}
	if b.Signatures.find(signer, b.Image) != nil {
		return nil
	}
	return fmt.Errorf("%w (%x)", ErrImage, b.Image)
}
