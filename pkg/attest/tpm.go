package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// The NV indices at which TPMs store their EK certificates (TCG EK Credential Profile 2.5, section
// 2.2.1.4).
const (
	certificateRSA tpm2.TPMHandle = 0x01c00002
	certificateECC tpm2.TPMHandle = 0x01c0000a
)

// attestationTemplate is the template of the AK. A TPM derives the same key from the same template
// each time, so the TPM need not store the key.
func attestationTemplate() tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true, Restricted: true, SignEncrypt: true},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			CurveID: tpm2.TPMECCNistP256,
			Scheme:  tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256})},
		}),
		// The label makes the key differ from the keys that other programs derive from the same
		// template.
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: label()}, Y: tpm2.TPM2BECCParameter{Buffer: make([]byte, 32)}}),
	}
}

func label() []byte {
	sum := sha256.Sum256([]byte("orlop attestation key"))
	return sum[:]
}

// loaded holds the keys that are loaded in the TPM.
type loaded struct {
	ek, ak *tpm2.CreatePrimaryResponse
	keys   Keys
}

// load creates EK and AK in the TPM. The EK is the ECC key, unless the TPM has a certificate only
// for an RSA key.
func load(t transport.TPM) (l loaded, err error) {
	template := tpm2.ECCEKTemplate
	if l.keys.Certificate, err = readCertificate(t, certificateECC); err != nil {
		return l, err
	}
	if l.keys.Certificate == nil {
		if l.keys.Certificate, err = readCertificate(t, certificateRSA); err != nil {
			return l, err
		}
		if l.keys.Certificate != nil {
			template = tpm2.RSAEKTemplate
		}
	}
	if l.ek, err = primary(t, template); err != nil {
		return l, fmt.Errorf("cannot create the endorsement key: %w", err)
	}
	if l.ak, err = primary(t, attestationTemplate()); err != nil {
		l.flush(t)
		return l, fmt.Errorf("cannot create the attestation key: %w", err)
	}
	l.keys.Endorsement, l.keys.Attestation = l.ek.OutPublic.Bytes(), l.ak.OutPublic.Bytes()
	return l, nil
}

// primary creates a key of the endorsement hierarchy.
func primary(t transport.TPM, template tpm2.TPMTPublic) (*tpm2.CreatePrimaryResponse, error) {
	return tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHEndorsement, InPublic: tpm2.New2B(template)}.Execute(t)
}

// flush removes the keys from the TPM. The kernel's resource manager also removes them when the
// device is closed.
func (l loaded) flush(t transport.TPM) {
	for _, key := range []*tpm2.CreatePrimaryResponse{l.ak, l.ek} {
		if key != nil {
			tpm2.FlushContext{FlushHandle: key.ObjectHandle}.Execute(t)
		}
	}
}

// maxCertificate is the maximum size of an EK certificate in bytes. Real ones have 1 to 2 KiB.
const maxCertificate = 8 << 10

// readCertificate returns the certificate at an NV index; nil if the TPM has no such index.
func readCertificate(t transport.TPM, index tpm2.TPMHandle) ([]byte, error) {
	const piece = 512 // bytes that every TPM returns at once
	public, err := tpm2.NVReadPublic{NVIndex: index}.Execute(t)
	if errors.Is(err, tpm2.TPMRCHandle) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate of the endorsement key: %w", err)
	}
	info, err := public.NVPublic.Contents()
	if err != nil {
		return nil, err
	}
	if info.DataSize > maxCertificate {
		return nil, fmt.Errorf("the certificate of the endorsement key has %d bytes, and at most %d are possible", info.DataSize, maxCertificate)
	}
	var out []byte
	for at := uint16(0); at < info.DataSize; {
		answer, err := tpm2.NVRead{
			AuthHandle: tpm2.AuthHandle{Handle: index, Name: public.NVName, Auth: tpm2.PasswordAuth(nil)},
			NVIndex:    tpm2.NamedHandle{Handle: index, Name: public.NVName}, Size: min(piece, info.DataSize-at), Offset: at,
		}.Execute(t)
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate of the endorsement key: %w", err)
		}
		if len(answer.Data.Buffer) == 0 {
			return nil, errors.New("the certificate of the endorsement key is truncated")
		}
		out = append(out, answer.Data.Buffer...)
		at += uint16(len(answer.Data.Buffer))
	}
	return trimCertificate(out), nil
}

// trimCertificate removes the padding after a certificate: makers reserve more bytes than a
// certificate has.
func trimCertificate(text []byte) []byte {
	const header = 4 // SEQUENCE with a length of two bytes
	if len(text) < header || text[0] != 0x30 || text[1] != 0x82 {
		return text
	}
	return text[:min(len(text), header+int(binary.BigEndian.Uint16(text[2:])))]
}

// endorsementPolicy satisfies the policy of the EK in a session. The policy requires the password
// of the endorsement hierarchy, which is empty.
func endorsementPolicy(t transport.TPM, session tpm2.TPMISHPolicy, nonce tpm2.TPM2BNonce) error {
	_, err := tpm2.PolicySecret{
		AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)}, PolicySession: session, NonceTPM: nonce,
	}.Execute(t)
	return err
}

// activate decrypts a challenge.
func (l loaded) activate(t transport.TPM, c Challenge) ([]byte, error) {
	answer, err := tpm2.ActivateCredential{
		ActivateHandle: tpm2.NamedHandle{Handle: l.ak.ObjectHandle, Name: l.ak.Name},
		KeyHandle:      tpm2.AuthHandle{Handle: l.ek.ObjectHandle, Name: l.ek.Name, Auth: tpm2.Policy(tpm2.TPMAlgSHA256, 16, endorsementPolicy)},
		CredentialBlob: tpm2.TPM2BIDObject{Buffer: c.Credential},
		Secret:         tpm2.TPM2BEncryptedSecret{Buffer: c.Secret},
	}.Execute(t)
	if err != nil {
		return nil, fmt.Errorf("cannot decrypt the challenge, which must be for the keys of this TPM: %w", err)
	}
	return answer.CertInfo.Buffer, nil
}

// allPCRs selects PCR 0 to 15 of the SHA-256 bank.
var allPCRs = tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0xff, 0}}}}

// maxQuotes is the number of attempts for a quote. An attempt fails if a PCR changes between the
// reading of the PCRs and the quote. For example, the kernel extends PCR 10 if it measures files
// (IMA).
const maxQuotes = 5

// quote returns the signature of the TPM on the PCRs and data, and the values of the PCRs.
func (l loaded) quote(t transport.TPM, data []byte) (e Evidence, err error) {
	for range maxQuotes {
		if e.PCRs, err = readPCRs(t); err != nil {
			return e, err
		}
		answer, err := tpm2.Quote{
			SignHandle:     tpm2.AuthHandle{Handle: l.ak.ObjectHandle, Name: l.ak.Name, Auth: tpm2.PasswordAuth(nil)},
			QualifyingData: tpm2.TPM2BData{Buffer: data}, InScheme: tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgNull}, PCRSelect: allPCRs,
		}.Execute(t)
		if err != nil {
			return e, fmt.Errorf("cannot quote: %w", err)
		}
		e.Quote, e.Signature = answer.Quoted.Bytes(), tpm2.Marshal(answer.Signature)
		quoted, err := answer.Quoted.Contents()
		if err != nil {
			return e, fmt.Errorf("cannot parse its quote: %w", err)
		}
		if checkSelection(quoted, e.PCRs) == nil {
			return e, nil
		}
	}
	return e, fmt.Errorf("its PCRs changed during each of %d quotes; try again", maxQuotes)
}

// readPCRs returns the values of PCR 0 to 15. The TPM returns a part of them at a time.
func readPCRs(t transport.TPM) ([]byte, error) {
	var out [PCRs]Digest
	left := []byte{0xff, 0xff, 0}
	for !bytes.Equal(left, make([]byte, len(left))) {
		answer, err := tpm2.PCRRead{PCRSelectionIn: tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMAlgSHA256, PCRSelect: left}}}}.Execute(t)
		if err != nil {
			return nil, fmt.Errorf("cannot read its PCRs: %w", err)
		}
		values := answer.PCRValues.Digests
		before := bytes.Clone(left)
		for _, s := range answer.PCRSelectionOut.PCRSelections {
			for pcr := range PCRs {
				if pcr/8 >= len(s.PCRSelect) || s.PCRSelect[pcr/8]&left[pcr/8]&(1<<(pcr%8)) == 0 || len(values) == 0 || len(values[0].Buffer) != sha256.Size {
					continue
				}
				out[pcr], values = Digest(values[0].Buffer), values[1:]
				left[pcr/8] &^= 1 << (pcr % 8)
			}
		}
		if bytes.Equal(before, left) {
			return nil, errors.New("has no SHA-256 values of its PCRs; enable the SHA-256 bank of the TPM in the setup of the firmware")
		}
	}
	var all []byte
	for _, value := range out {
		all = append(all, value[:]...)
	}
	return all, nil
}

// question is the request of PID 1 to the process, and answer is the response; both as JSON.
type question struct {
	// Data is the data for the quote; nil asks only for the keys.
	Data      []byte    `json:"data,omitempty"`
	Challenge Challenge `json:"challenge"`
}

type answer struct {
	Keys     Keys     `json:"keys"`
	Evidence Evidence `json:"evidence"` // without claims
}

// ask answers a question by means of a TPM. It leaves no key in the TPM.
func ask(t transport.TPM, q question) (a answer, err error) {
	l, err := load(t)
	if err != nil {
		return a, err
	}
	defer l.flush(t)
	a.Keys = l.keys
	if q.Data == nil {
		return a, nil
	}
	content, err := l.activate(t, q.Challenge)
	if err != nil {
		return a, err
	}
	a.Evidence, err = l.quote(t, q.Data)
	a.Evidence.Answer = content
	return a, err
}
