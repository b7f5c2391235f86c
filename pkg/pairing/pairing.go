// Package pairing is how a machine that belongs to nobody, and an operator who can see its console,
// get to know each other's keys.
//
// The machine shows a code that is good once. The operator's tool connects by TLS 1.3 without a
// client certificate, under a protocol name of its own (ALPN), and sends the operator's CA with a
// proof that it knows the code. The machine answers with a proof of the same. Each proof is an HMAC
// over a value that both ends derive from this one connection (exported keying material, RFC 8446,
// section 7.5, which depends on the machine's certificate too) and over the CA. So somebody in the
// middle has two connections with two values, and can pass on neither proof; a proof that was seen
// is worth nothing on another connection; and from a proof the code can be guessed only by trying
// all of them, which are 2^100. docs/decisions/0005-first-contact.md has the threats one by one.
//
// What either end keeps, and when a machine may be paired at all, is not decided here.
package pairing

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/orlop-os/orlop/pkg/jsonline"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Protocol is the name by which TLS agrees on pairing (ALPN, RFC 7301).
const Protocol = "orlop-pair/1"

// alphabet are the symbols of a code: Crockford's base 32, in which no two look alike.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

const (
	symbols = 20 // of a code: 100 bits
	group   = 5  // of them between two hyphens
)

// Code is what the machine shows and the operator types: "8M2QX-04TRA-…". The empty code is none,
// and proves nothing.
type Code string

// NewCode makes one.
func NewCode() Code {
	raw := make([]byte, symbols)
	rand.Read(raw) // it never fails
	var b strings.Builder
	for i, r := range raw {
		if i > 0 && i%group == 0 {
			b.WriteByte('-')
		}
		b.WriteByte(alphabet[int(r)%len(alphabet)]) // 256 is a multiple of 32
	}
	return Code(b.String())
}

// ParseCode reads a code as people type it: in any case, with or without hyphens and blanks, O for
// 0, and I or L for 1.
func ParseCode(text string) (Code, error) {
	var b strings.Builder
	n := 0
	for _, r := range strings.ToUpper(text) {
		switch r {
		case '-', ' ', '\t', '\r', '\n':
			continue
		case 'O':
			r = '0'
		case 'I', 'L':
			r = '1'
		}
		if !strings.ContainsRune(alphabet, r) {
			return "", fmt.Errorf("pairing code: %q is in none", r)
		}
		if n > 0 && n%group == 0 {
			b.WriteByte('-')
		}
		b.WriteRune(r)
		n++
	}
	if n != symbols {
		return "", fmt.Errorf("pairing code: it has %d letters and digits, and not %d", n, symbols)
	}
	return Code(b.String()), nil
}

// Claim is what the operator's tool sends.
type Claim struct {
	CA    []byte `json:"ca"`    // the operator's, in PEM
	Proof []byte `json:"proof"` // that the sender knows the code
}

// Answer is what the machine sends back.
type Answer struct {
	// that the machine knows it too; it belongs to the operator now
	Proof   []byte `json:"proof,omitempty"`
	Refusal string `json:"refusal,omitempty"` // otherwise why not, in a sentence
}

const (
	maxMessage = 64 << 10 // of either, in bytes
	maxRefusal = 200      // characters that are shown of what has come from somebody unproved
)

// Binding is what both ends of a connection know it by, and nobody else does. The handshake must be
// over.
func Binding(state tls.ConnectionState) ([]byte, error) {
	if state.Version < tls.VersionTLS13 || state.NegotiatedProtocol != Protocol {
		return nil, errors.New("pairing: the connection was not made for it")
	}
	return state.ExportKeyingMaterial("EXPORTER-orlop-pairing", nil, sha256.Size)
}

func (c Code) proof(by string, binding, ca []byte) []byte {
	digest := sha256.Sum256(ca)
	mac := hmac.New(sha256.New, []byte(c))
	// all of fixed length but the first, which ends
	for _, part := range [][]byte{[]byte(Protocol + " " + by + "\n"), binding, digest[:]} {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

const (
	byOperator = "operator"
	byMachine  = "machine"
)

// NewClaim is the operator's claim on a connection.
func (c Code) NewClaim(binding, ca []byte) Claim {
	return Claim{CA: ca, Proof: c.proof(byOperator, binding, ca)}
}

// Accepts tells whether whoever made a claim knows the code.
func (c Code) Accepts(binding []byte, claim Claim) bool {
	return c != "" && len(binding) == sha256.Size && hmac.Equal(claim.Proof, c.proof(byOperator, binding, claim.CA))
}

// NewAnswer is the machine's answer to a claim that it accepts.
func (c Code) NewAnswer(binding []byte, claim Claim) Answer {
	return Answer{Proof: c.proof(byMachine, binding, claim.CA)}
}

// ErrWrongMachine is why an answer is not believed.
var ErrWrongMachine = errors.New("pairing: what answers does not know the code, so it is not the machine whose console shows it; nothing was kept")

// RefusedError is what a machine says when it does not accept a claim; it is anybody's text, in
// printable ASCII.
type RefusedError string

func (r RefusedError) Error() string { return "pairing refused: " + string(r) }

// Claim sends the operator's CA over a connection and checks the answer. When it returns nil the
// machine belongs to the operator, and the certificate that the connection was made with is the
// machine's. After Refused and ErrWrongMachine it does not; after any other error it may: the
// answer was lost.
func (c Code) Claim(conn io.ReadWriter, binding, ca []byte) error {
	claim := c.NewClaim(binding, ca)
	if err := send(conn, claim); err != nil {
		return err
	}
	var answer Answer
	if err := receive(conn, &answer); err != nil {
		return err
	}
	if answer.Refusal != "" {
		return RefusedError(sanitize.ASCII(answer.Refusal, maxRefusal))
	}
	if c == "" || !hmac.Equal(answer.Proof, c.proof(byMachine, binding, ca)) {
		return ErrWrongMachine
	}
	return nil
}

// Serve takes one claim from a connection and sends what judge makes of it.
func Serve(conn io.ReadWriter, judge func(Claim) Answer) error {
	var claim Claim
	if err := receive(conn, &claim); err != nil {
		return err
	}
	return send(conn, judge(claim))
}

func send(conn io.Writer, message any) error { return jsonline.Send(conn, "pairing", message) }

func receive(conn io.Reader, message any) error {
	return jsonline.Receive(conn, "pairing", maxMessage, message)
}
