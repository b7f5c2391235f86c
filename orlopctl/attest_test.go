package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/pki"
)

// measuringMachine is a machine with a TPM in software.
type measuringMachine struct {
	api.AttestationClient
	ek      *ecdh.PrivateKey
	ak      *ecdsa.PrivateKey
	keys    attest.Keys
	own     *pki.Leaf // machine key
	claims  attest.Claims
	events  []attest.Event
	answers func(*api.AttestResponse) // changes the response of Attest, unless nil
}

// restricted is the template of an attestation key: a restricted signing key of a TPM.
var restricted = tpm2.TPMTPublic{
	Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
	ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, Restricted: true, SignEncrypt: true},
	Parameters:       tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{CurveID: tpm2.TPMECCNistP256}),
}

// public returns the encoded public key of a TPM. Its point on P-256 is uncompressed, and its other
// fields are those of the template.
func public(template tpm2.TPMTPublic, point []byte) []byte {
	template.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: point[33:]}})
	return tpm2.Marshal(template)
}

// newMeasuring returns a machine that has booted the version r.
func newMeasuring(t *testing.T, r attest.Release) *measuringMachine {
	t.Helper()
	ek, err1 := ecdh.P256().GenerateKey(rand.Reader)
	ak, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	own, err3 := pki.SelfSigned(pki.Spec{CN: "machine", TTL: time.Hour, Usage: pki.Server})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	point, err := ak.PublicKey.ECDH()
	if err != nil {
		t.Fatal(err)
	}
	m := &measuringMachine{ek: ek, ak: ak, own: own}
	m.keys = attest.Keys{Endorsement: public(tpm2.ECCEKTemplate, ek.PublicKey().Bytes()), Attestation: public(restricted, point.Bytes())}
	m.claims = attest.Claims{Version: r.Version, Root: r.Root, MachineKey: pki.Fingerprint(own.Cert)}
	for _, d := range []attest.Digest{r.Loader, r.Image} {
		m.events = append(m.events, attest.Event{PCR: 4, Type: 0x80000003, Digest: d})
	}
	for _, s := range r.Sections {
		m.events = append(m.events, attest.Event{PCR: 11, Type: 13, Digest: sha256.Sum256([]byte(s.Name + "\x00"))}, attest.Event{PCR: 11, Type: 13, Digest: s.Digest})
	}
	return m
}

// GetKeys implements api.AttestationClient.
func (m *measuringMachine) GetKeys(context.Context, *api.GetAttestationKeysRequest, ...grpc.CallOption) (*api.GetAttestationKeysResponse, error) {
	return &api.GetAttestationKeysResponse{EndorsementKey: m.keys.Endorsement, EndorsementCertificate: m.keys.Certificate, AttestationKey: m.keys.Attestation}, nil
}

// Attest implements api.AttestationClient.
func (m *measuringMachine) Attest(_ context.Context, r *api.AttestRequest, options ...grpc.CallOption) (*api.AttestResponse, error) {
	for _, o := range options {
		if p, ok := o.(grpc.PeerCallOption); ok {
			p.PeerAddr.AuthInfo = credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{m.own.Cert}}}
		}
	}
	out := &api.AttestResponse{EventLog: eventLog(m.events), Version: m.claims.Version, Root: m.claims.Root, Configuration: m.claims.Configuration, MachineKey: m.claims.MachineKey}
	var err error
	if out.Answer, err = m.activate(r); err != nil {
		return nil, err
	}
	for _, value := range attest.Replay(m.events) {
		out.Pcrs = append(out.Pcrs, value[:]...)
	}
	sum := sha256.Sum256(out.Pcrs)
	out.Quote = tpm2.Marshal(tpm2.TPMSAttest{
		Magic: tpm2.TPMGeneratedValue, Type: tpm2.TPMSTAttestQuote, ExtraData: tpm2.TPM2BData{Buffer: attest.Binding(r.Nonce, m.claims)},
		Attested: tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, &tpm2.TPMSQuoteInfo{
			PCRSelect: tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{0xff, 0xff, 0}}}},
			PCRDigest: tpm2.TPM2BDigest{Buffer: sum[:]},
		}),
	})
	sum = sha256.Sum256(out.Quote)
	a, b, err := ecdsa.Sign(rand.Reader, m.ak, sum[:])
	if err != nil {
		return nil, err
	}
	number := func(n *big.Int) tpm2.TPM2BECCParameter { return tpm2.TPM2BECCParameter{Buffer: n.Bytes()} }
	out.Signature = tpm2.Marshal(tpm2.TPMTSignature{SigAlg: tpm2.TPMAlgECDSA,
		Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{Hash: tpm2.TPMAlgSHA256, SignatureR: number(a), SignatureS: number(b)})})
	if m.answers != nil {
		m.answers(out)
	}
	return out, nil
}

// activate decrypts the challenge of a request as a TPM does, and returns the secret in it (TPM 2.0
// Library, part 1, section 24, "Credential Protection").
func (m *measuringMachine) activate(r *api.AttestRequest) ([]byte, error) {
	point, err := tpm2.Unmarshal[tpm2.TPMSECCPoint](r.Secret)
	if err != nil {
		return nil, err
	}
	padded := func(b []byte) []byte { return append(make([]byte, 32-len(b)), b...) }
	x := padded(point.X.Buffer)
	sender, err := ecdh.P256().NewPublicKey(append(append([]byte{4}, x...), padded(point.Y.Buffer)...))
	if err != nil {
		return nil, err
	}
	z, err := m.ek.ECDH(sender)
	if err != nil {
		return nil, err
	}
	seed := tpm2.KDFe(crypto.SHA256, z, "IDENTITY", x, m.ek.PublicKey().Bytes()[1:33], 256)
	ak, err := tpm2.Unmarshal[tpm2.TPMTPublic](m.keys.Attestation)
	if err != nil {
		return nil, err
	}
	name, err := tpm2.ObjectName(ak)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(tpm2.KDFa(crypto.SHA256, seed, "STORAGE", name.Buffer, nil, 128))
	if err != nil {
		return nil, err
	}
	content := bytes.Clone(r.Credential[2+32:]) // after the HMAC and its size
	//lint:ignore SA1019 a TPM encrypts credentials in CFB mode
	cipher.NewCFBDecrypter(block, make([]byte, 16)).XORKeyStream(content, content)
	return content[2:], nil
}

// eventLog returns the events as the event log that the firmware writes.
func eventLog(events []attest.Event) []byte {
	le := binary.LittleEndian
	head := append([]byte("Spec ID Event03\x00"), 0, 0, 0, 0, 0, 2, 0, 2, 1, 0, 0, 0, 0x0b, 0, 32, 0, 0)
	out := append([]byte{0, 0, 0, 0, 3, 0, 0, 0}, make([]byte, 20)...)
	out = append(le.AppendUint32(out, uint32(len(head))), head...)
	for _, e := range events {
		out = le.AppendUint32(le.AppendUint32(out, e.PCR), e.Type)
		out = append(append(out, 1, 0, 0, 0, 0x0b, 0), e.Digest[:]...)
		out = append(le.AppendUint32(out, uint32(len(e.Data))), e.Data...)
	}
	return out
}

// measuredVersion returns the expected measurements of a version. All its digests are derived from
// its name.
func measuredVersion(name string) attest.Release {
	digest := func(what string) attest.Digest { return sha256.Sum256([]byte(what + " of " + name)) }
	return attest.Release{Version: name, Root: "root of " + name, Loader: sha256.Sum256([]byte("loader")), Image: digest("image"),
		Sections: []attest.Section{{Name: ".linux", Digest: digest("kernel")}, {Name: ".cmdline", Digest: digest("command line")}}}
}

// TestAttest checks that an attestation succeeds only if the machine has one of the expected
// versions, and the expected key and TPM. In all other cases, the exit status is 3.
func TestAttest(t *testing.T) {
	old, next := measuredVersion("1.2.0"), measuredVersion("1.3.0")
	relay := func(m *measuringMachine) {
		other, err := pki.SelfSigned(pki.Spec{CN: "relay", TTL: time.Hour, Usage: pki.Server})
		if err != nil {
			t.Fatal(err)
		}
		m.own = other
	}
	for _, c := range []struct {
		name     string
		change   func(*measuringMachine)
		releases []attest.Release
		ek       bool   // the flag --ek names another EK
		makers   bool   // the flag --ek-ca names CAs of makers, which did not sign the EK
		want     string // the beginning of the error; empty for success
	}{
		{"expected version", nil, []attest.Release{old}, false, false, ""},
		{"one of two expected versions", nil, []attest.Release{next, old}, false, false, ""},
		{"unexpected version", nil, []attest.Release{next}, false, false, "attestation: the machine booted something else: 2 differences"},
		{"connection through a relay", relay, []attest.Release{old}, false, false, "attestation: evidence: is of the machine with key"},
		{"another EK", nil, []attest.Release{old}, true, false, "attestation: endorsement key: it is sha256:"},
		{"EK without a certificate", nil, []attest.Release{old}, false, true, "attestation: endorsement key: the TPM stores no certificate of its maker"},
		{"certificate for another key", func(m *measuringMachine) { m.keys.Certificate = m.own.Cert.Raw }, []attest.Release{old}, false, true, "attestation: certificate of the endorsement key: it is for another key"},
		{"another AK", func(m *measuringMachine) {
			m.answers = func(r *api.AttestResponse) { r.Answer = make([]byte, 32) }
		}, []attest.Release{old}, false, false, "attestation: challenge: the answer is wrong"},
		{"claim of another configuration", func(m *measuringMachine) {
			m.answers = func(r *api.AttestResponse) { r.Configuration = make([]byte, 32) }
		}, []attest.Release{old}, false, false, "attestation: quote: it is for another nonce, or for other claims of the machine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMeasuring(t, old)
			if c.change != nil {
				c.change(m)
			}
			var f attestFlags
			var roots *x509.CertPool
			if c.ek {
				f.eks = []string{"sha256:" + strings.Repeat("0", 64)}
			}
			if c.makers {
				roots = x509.NewCertPool()
			}
			var out bytes.Buffer
			a, err := f.attest(t.Context(), m, c.releases, roots)
			if err == nil {
				err = a.print(&iostreams.Streams{Out: &out, Format: "table"})
			}
			if c.want == "" {
				if err != nil || !strings.Contains(out.String(), "BOOTED           1.2.0") {
					t.Errorf("%v:\n%s", err, &out)
				}
				return
			}
			if code, _ := exit.Code(err); err == nil || !strings.HasPrefix(err.Error(), c.want) || code != exit.Unreachable {
				t.Errorf("%v (status %d), want %s", err, code, c.want)
			}
		})
	}
}

// TestAttestCertificate checks that the command accepts an EK if its certificate is signed by a CA
// in the file of --ek-ca. It also compares the printed table with a golden file.
func TestAttestCertificate(t *testing.T) {
	version := measuredVersion("1.2.0")
	m := newMeasuring(t, version)
	ca, err := pki.SelfSigned(pki.Spec{CN: "maker", TTL: time.Hour, Usage: pki.Server})
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), m.ek.PublicKey().Bytes())
	if err != nil {
		t.Fatal(err)
	}
	issuer := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	root, err := x509.CreateCertificate(rand.Reader, issuer, issuer, &ca.Key.PublicKey, ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: issuer.NotBefore, NotAfter: issuer.NotAfter}
	if m.keys.Certificate, err = x509.CreateCertificate(rand.Reader, leaf, issuer, key, ca.Key); err != nil {
		t.Fatal(err)
	}
	f := attestFlags{makers: filepath.Join(t.TempDir(), "makers.pem"), events: true}
	if err := os.WriteFile(f.makers, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root}), 0o600); err != nil {
		t.Fatal(err)
	}
	roots, err := f.roots()
	if err != nil {
		t.Fatal(err)
	}
	a, err := f.attest(t.Context(), m, []attest.Release{version}, roots)
	if err != nil || !strings.HasSuffix(a.Trust, "certified it") {
		t.Fatalf("%+v, %v", a, err)
	}
	a.EndorsementKey, a.Trust, a.MachineKey = "sha256:ek", "trust", "sha256:machine"
	var out bytes.Buffer
	if err := a.print(&iostreams.Streams{Out: &out, Format: "table"}); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/attest.golden"
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || out.String() != string(want) {
		t.Errorf("the table differs from %s (%v):\n%s", file, err, &out)
	}
}
