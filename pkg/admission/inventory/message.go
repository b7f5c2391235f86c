package inventory

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/orlop-os/orlop/pkg/admission/claim"
)

// Protocol is the ALPN protocol name (RFC 7301).
const Protocol = "orlop-inventory/1"

// maxMessage is the maximum size of a message in bytes: an inventory in base 64 with a key and a
// signature.
const maxMessage = 32 << 10

// maxAnswer is the maximum size of an answer in bytes: a template in base 64.
const maxAnswer = 64 << 10

// Request is the message of the machine.
type Request struct {
	Key       []byte `json:"key"`       // public key, PKIX, DER
	Inventory []byte `json:"inventory"` // JSON, a Host
	// Signature is made with the private key over the binding of the connection (Binding) and the
	// inventory: ECDSA, ASN.1.
	Signature []byte `json:"signature"`
}

// Answer is the message of the control-plane machine.
type Answer struct {
	Listed bool   `json:"listed"`
	Reason string `json:"reason,omitempty"` // a sentence; empty if the machine is listed
	// Template is the configuration of a claimed machine (package claim); nil without a claim. The
	// machine verifies the signature of the template and the certificates of the peer.
	Template *claim.Signed `json:"template,omitempty"`
	// Peer is the certificate chain of the control-plane machine in the TLS handshake, its own
	// certificate first. The handshake has proved that the peer has the key of this certificate.
	Peer []*x509.Certificate `json:"-"`
}

// Binding returns the secret value that identifies a connection at both ends. The handshake must be
// complete.
func Binding(state tls.ConnectionState) ([]byte, error) {
	if state.Version < tls.VersionTLS13 || state.NegotiatedProtocol != Protocol {
		return nil, errors.New("inventory: the connection has another protocol")
	}
	return state.ExportKeyingMaterial("EXPORTER-orlop-inventory", nil, sha256.Size)
}

// digest returns the signed value. The encoding is unambiguous: the first part ends with a newline,
// and each other part has a fixed length.
func digest(binding, text []byte) []byte {
	sum, inventory := sha256.New(), sha256.Sum256(text)
	for _, part := range [][]byte{[]byte(Protocol + "\n"), binding, inventory[:]} {
		sum.Write(part)
	}
	return sum.Sum(nil)
}

// NewRequest returns the request of a machine for a connection. The inventory is cut to its bounds.
// If the inventory is still too large, the request omits its disks and NICs.
func NewRequest(binding []byte, key *ecdsa.PrivateKey, h Host) (Request, error) {
	h = h.Bounded()
	text, err := json.Marshal(h)
	if err == nil && len(text) > maxHost {
		h.Disks, h.NICs = nil, nil
		text, err = json.Marshal(h)
	}
	if err != nil {
		return Request{}, fmt.Errorf("inventory: cannot encode: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return Request{}, fmt.Errorf("inventory: cannot encode the key: %w", err)
	}
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest(binding, text))
	if err != nil {
		return Request{}, fmt.Errorf("inventory: cannot sign: %w", err)
	}
	return Request{Key: public, Inventory: text, Signature: signature}, nil
}

// Verify returns the key and the inventory of a request. It returns an error if the signature was
// not made with this key for this connection.
func (r Request) Verify(binding []byte) (*ecdsa.PublicKey, Host, error) {
	parsed, err := x509.ParsePKIXPublicKey(r.Key)
	if err != nil {
		return nil, Host{}, fmt.Errorf("inventory: cannot parse the key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, Host{}, errors.New("inventory: the key is not of the kind P-256")
	}
	if len(binding) != sha256.Size || !ecdsa.VerifyASN1(key, digest(binding, r.Inventory), r.Signature) {
		return nil, Host{}, errors.New("inventory: the signature is not of this key and this connection")
	}
	h, err := ParseHost(r.Inventory)
	return key, h, err
}

// Send sends a request over a connection and returns the answer.
func Send(conn io.ReadWriter, r Request) (Answer, error) {
	var a Answer
	err := send(conn, r)
	if err == nil {
		err = receive(conn, &a, maxAnswer)
	}
	return a, err
}

// Serve receives one request from a connection and sends the answer that the function judge returns
// for it.
func Serve(conn io.ReadWriter, judge func(Request) Answer) error {
	var r Request
	if err := receive(conn, &r, maxMessage); err != nil {
		return err
	}
	return send(conn, judge(r))
}

// send writes a message as a line of JSON.
func send(conn io.Writer, message any) error {
	if err := json.NewEncoder(conn).Encode(message); err != nil {
		return fmt.Errorf("inventory: cannot send: %w", err)
	}
	return nil
}

func receive(conn io.Reader, message any, most int64) error {
	if err := json.NewDecoder(io.LimitReader(conn, most)).Decode(message); err != nil {
		return fmt.Errorf("inventory: cannot parse the message: %w", err)
	}
	return nil
}
