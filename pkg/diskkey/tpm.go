package diskkey

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/orlop-os/orlop/pkg/attest"
)

// KeySize is the size of an unlock key in bytes.
const KeySize = 32

// Sealed is a key that a TPM has encrypted, with the values of its policy. It contains no secret:
// only the TPM with the storage key decrypts it.
type Sealed struct {
	// Storage is the public part of the storage key of the TPM (TPMT_PUBLIC), which encrypts the
	// sealed key. The TPM derives the storage key from a seed that TPM2_Clear replaces.
	Storage []byte `json:"storage"`
	Public  []byte `json:"public"`  // TPMT_PUBLIC of the sealed key
	Private []byte `json:"private"` // encrypted part of the sealed key
	// SecureBoot is the value of PCR 7 in the policy. Signer is the key whose signature of a policy
	// over PCR 11 the TPM accepts (DER).
	SecureBoot []byte `json:"secureBoot"`
	Signer     []byte `json:"signer"`
}

func (s Sealed) signer() (*rsa.PublicKey, error) {
	parsed, err := x509.ParsePKIXPublicKey(s.Signer)
	if err != nil {
		return nil, fmt.Errorf("sealed key: cannot parse its signer: %w", err)
	}
	k, ok := parsed.(*rsa.PublicKey)
	if !ok || k.Size() != 256 {
		return nil, errors.New("sealed key: its signer is not an RSA key of 2048 bits")
	}
	return k, nil
}

// storage is the storage key, loaded in the TPM.
type storage struct {
	handle tpm2.TPMHandle
	name   tpm2.TPM2BName
	public tpm2.TPMTPublic
	bytes  []byte // public
}

// loadStorage derives the storage key of the owner hierarchy. Its template is the template of the
// TCG, so the key is the key that other systems on this machine use, too.
func loadStorage(t transport.TPM) (s storage, err error) {
	out, err := tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHOwner, InPublic: tpm2.New2B(tpm2.ECCSRKTemplate)}.Execute(t)
	if err != nil {
		return s, fmt.Errorf("cannot create the storage key: %w", err)
	}
	s = storage{handle: out.ObjectHandle, name: out.Name, bytes: out.OutPublic.Bytes()}
	public, err := out.OutPublic.Contents()
	if err != nil {
		flush(t, s.handle)
		return s, fmt.Errorf("cannot parse the storage key: %w", err)
	}
	s.public = *public
	return s, nil
}

func flush(t transport.TPM, handle tpm2.TPMHandle) { tpm2.FlushContext{FlushHandle: handle}.Execute(t) }

// session returns the options of a session that encrypts the first parameter in one direction. The
// key of the session follows from a random salt that only the storage key decrypts. So an attacker
// that reads the bus between processor and TPM sees no key.
func (s storage) session(encrypt func() tpm2.AuthOption) []tpm2.AuthOption {
	return []tpm2.AuthOption{encrypt(), tpm2.Salted(s.handle, s.public)}
}

func intoTPM() tpm2.AuthOption  { return tpm2.AESEncryption(128, tpm2.EncryptIn) }
func outOfTPM() tpm2.AuthOption { return tpm2.AESEncryption(128, tpm2.EncryptOut) }

// nonceSize is the size of the nonces of a session, in bytes.
const nonceSize = 16

// Seal encrypts a key with the TPM. The TPM releases the key if PCR 7 has the value secureBoot, and
// signer has signed a policy for the value of PCR 11.
func Seal(t transport.TPM, key []byte, signer *rsa.PublicKey, secureBoot Digest) (s Sealed, err error) {
	if s.Signer, err = x509.MarshalPKIXPublicKey(signer); err != nil {
		return s, err
	}
	policy, err := sealPolicy(signer, secureBoot)
	if err != nil {
		return s, err
	}
	srk, err := loadStorage(t)
	if err != nil {
		return s, err
	}
	defer flush(t, srk.handle)
	out, err := tpm2.Create{
		ParentHandle: tpm2.AuthHandle{Handle: srk.handle, Name: srk.name, Auth: tpm2.HMAC(tpm2.TPMAlgSHA256, nonceSize, srk.session(intoTPM)...)},
		InSensitive:  tpm2.TPM2BSensitiveCreate{Sensitive: &tpm2.TPMSSensitiveCreate{Data: tpm2.NewTPMUSensitiveCreate(&tpm2.TPM2BSensitiveData{Buffer: key})}},
		InPublic: tpm2.New2B(tpm2.TPMTPublic{
			Type: tpm2.TPMAlgKeyedHash, NameAlg: tpm2.TPMAlgSHA256,
			// No password opens the key: UserWithAuth and the password of AdminWithPolicy are off.
			ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, AdminWithPolicy: true, NoDA: true},
			AuthPolicy:       tpm2.TPM2BDigest{Buffer: policy},
		}),
	}.Execute(t)
	if err != nil {
		return s, fmt.Errorf("cannot seal: %w", err)
	}
	s.Storage, s.Public, s.Private, s.SecureBoot = srk.bytes, out.OutPublic.Bytes(), out.OutPrivate.Buffer, bytes.Clone(secureBoot[:])
	return s, nil
}

// Unseal decrypts a key with the TPM. signatures are those of the running boot image. The error
// wraps ErrTPM, ErrSecureBoot or ErrImage if one of them is the reason.
func Unseal(t transport.TPM, s Sealed, signatures Signatures) ([]byte, error) {
	srk, err := loadStorage(t)
	if err != nil {
		return nil, err
	}
	defer flush(t, srk.handle)
	if !bytes.Equal(srk.bytes, s.Storage) {
		return nil, ErrTPM
	}
	b, err := ReadBoot(t, signatures)
	if err != nil {
		return nil, err
	}
	if err := s.Check(b); err != nil {
		return nil, err
	}
	signer, err := s.signer()
	if err != nil {
		return nil, err
	}
	public, err := tpm2.Unmarshal[tpm2.TPMTPublic](s.Public)
	if err != nil {
		return nil, fmt.Errorf("sealed key: cannot parse: %w", err)
	}
	loaded, err := tpm2.Load{
		ParentHandle: tpm2.AuthHandle{Handle: srk.handle, Name: srk.name, Auth: tpm2.PasswordAuth(nil)},
		InPrivate:    tpm2.TPM2BPrivate{Buffer: s.Private}, InPublic: tpm2.New2B(*public),
	}.Execute(t)
	if err != nil {
		return nil, fmt.Errorf("cannot load the sealed key: %w", err)
	}
	defer flush(t, loaded.ObjectHandle)
	satisfy := func(t transport.TPM, session tpm2.TPMISHPolicy, _ tpm2.TPM2BNonce) error {
		return satisfyPolicy(t, session, signer, b)
	}
	out, err := tpm2.Unseal{ItemHandle: tpm2.AuthHandle{
		Handle: loaded.ObjectHandle, Name: loaded.Name, Auth: tpm2.Policy(tpm2.TPMAlgSHA256, nonceSize, satisfy, srk.session(outOfTPM)...),
	}}.Execute(t)
	if err != nil {
		return nil, fmt.Errorf("cannot unseal: %w", err)
	}
	if len(out.OutData.Buffer) != KeySize {
		return nil, fmt.Errorf("the unsealed key has %d bytes, want %d", len(out.OutData.Buffer), KeySize)
	}
	return out.OutData.Buffer, nil
}

// satisfyPolicy satisfies the policy of a sealed key: the signed policy over PCR 11, then PCR 7.
func satisfyPolicy(t transport.TPM, session tpm2.TPMISHPolicy, signer *rsa.PublicKey, b Boot) error {
	if _, err := (tpm2.PolicyPCR{PolicySession: session, Pcrs: selection(pcrImage)}).Execute(t); err != nil {
		return err
	}
	policy, err := imagePolicy(b.Image)
	if err != nil {
		return err
	}
	key, err := tpm2.LoadExternal{InPublic: tpm2.New2B(signerPublic(signer)), Hierarchy: tpm2.TPMRHOwner}.Execute(t)
	if err != nil {
		return err
	}
	defer flush(t, key.ObjectHandle)
	sum := sha256.Sum256(policy)
	verified, err := tpm2.VerifySignature{
		KeyHandle: key.ObjectHandle, Digest: tpm2.TPM2BDigest{Buffer: sum[:]},
		Signature: tpm2.TPMTSignature{SigAlg: tpm2.TPMAlgRSASSA, Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgRSASSA,
			&tpm2.TPMSSignatureRSA{Hash: tpm2.TPMAlgSHA256, Sig: tpm2.TPM2BPublicKeyRSA{Buffer: b.Signatures.find(signer, b.Image)}})},
	}.Execute(t)
	if err != nil {
		return err
	}
	authorize := tpm2.PolicyAuthorize{PolicySession: session, ApprovedPolicy: tpm2.TPM2BDigest{Buffer: policy}, KeySign: key.Name, CheckTicket: verified.Validation}
	if _, err := authorize.Execute(t); err != nil {
		return err
	}
	_, err = tpm2.PolicyPCR{PolicySession: session, Pcrs: selection(pcrSecureBoot)}.Execute(t)
	return err
}

// startOf returns PCR 11 before the end of the phase: known, which an earlier end of the phase has
// returned, or the value in the event log. It returns nil if both are missing.
func startOf(known []byte, events []attest.Event) []byte {
	if len(known) > 0 || len(events) == 0 {
		return known
	}
	value := attest.Replay(events)[pcrImage]
	return value[:]
}

// hasEnded reports whether PCR 11 has its value after the end of the phase. started is the result
// of startOf.
func hasEnded(now Digest, started []byte) bool {
	return len(started) == len(now) && now == attest.AfterPhase(Digest(started), PhaseStorage)
}

// SealChecked is like Seal with the present value of PCR 7. It fails if the running boot could not
// unseal the key: then the next boot of the same version could not, either. Before the end of the
// phase, it unseals the key. Afterwards, PCR 11 must have the value that follows from a signed one:
// started, the result of startOf.
func SealChecked(t transport.TPM, key []byte, signer *rsa.PublicKey, signatures Signatures, started []byte) (s Sealed, err error) {
	b, err := ReadBoot(t, signatures)
	if err != nil {
		return s, err
	}
	ended := hasEnded(b.Image, started) && signatures.find(signer, Digest(started)) != nil
	if !ended && signatures.find(signer, b.Image) == nil {
		return s, fmt.Errorf("the running boot could not unseal a key: %w (%x)", ErrImage, b.Image)
	}
	if s, err = Seal(t, key, signer, b.SecureBoot); err != nil || ended {
		return s, err
	}
	back, err := Unseal(t, s, signatures)
	defer clear(back)
	if err == nil && !bytes.Equal(back, key) {
		err = errors.New("it gives another key back")
	}
	if err != nil {
		return Sealed{}, fmt.Errorf("the running boot cannot unseal a new key: %w", err)
	}
	return s, nil
}

// ReadBoot reads the PCRs of the running boot.
func ReadBoot(t transport.TPM, signatures Signatures) (b Boot, err error) {
	b.Signatures = signatures
	if b.SecureBoot, err = readPCR(t, pcrSecureBoot); err != nil {
		return b, err
	}
	b.Image, err = readPCR(t, pcrImage)
	return b, err
}

// errBank means that the TPM has no SHA-256 values of its PCRs. Then no policy over them can be
// satisfied.
var errBank = errors.New("it has no SHA-256 values of its PCRs; enable the SHA-256 bank of the TPM in the setup of the firmware")

func readPCR(t transport.TPM, pcr int) (d Digest, err error) {
	out, err := tpm2.PCRRead{PCRSelectionIn: selection(pcr)}.Execute(t)
	if err != nil {
		return d, fmt.Errorf("cannot read PCR %d: %w", pcr, err)
	}
	if len(out.PCRValues.Digests) != 1 || len(out.PCRValues.Digests[0].Buffer) != len(d) {
		return d, errBank
	}
	return Digest(out.PCRValues.Digests[0].Buffer), nil
}

// EndPhase measures PhaseStorage into PCR 11, and reads PCR 11 back. It returns PCR 11 before this
// measurement. If an earlier attempt has ended the phase, it changes nothing: PCR 11 then has the
// value that follows from started, the result of startOf.
func EndPhase(t transport.TPM, started []byte) ([]byte, error) {
	before, err := readPCR(t, pcrImage)
	if errors.Is(err, errBank) {
		return nil, nil // no policy over PCR 11 can be satisfied
	}
	if err != nil || hasEnded(before, started) {
		return started, err
	}
	word := sha256.Sum256([]byte(PhaseStorage))
	_, err = tpm2.PCRExtend{
		PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(pcrImage), Auth: tpm2.PasswordAuth(nil)},
		Digests:   tpm2.TPMLDigestValues{Digests: []tpm2.TPMTHA{{HashAlg: tpm2.TPMAlgSHA256, Digest: word[:]}}},
	}.Execute(t)
	if err != nil {
		return before[:], fmt.Errorf("cannot extend PCR 11: %w", err)
	}
	after, err := readPCR(t, pcrImage)
	if err == nil && after != attest.AfterPhase(before, PhaseStorage) {
		err = fmt.Errorf("PCR 11 is %x after it was extended", after)
	}
	return before[:], err
}
