// Package pairing implements the protocol by which an unclaimed machine, and an operator at its
// console, authenticate each other's keys.
//
// The machine shows a pairing code for single use. The operator's tool connects by TLS 1.3 without
// a client certificate, with its own ALPN protocol name. It sends the operator's CA with a proof
// that it knows the code. The machine answers with a proof that it knows the code, too. Each proof
// is an HMAC, with the code as its key, over the CA and over a value that both ends derive from
// this connection: exported keying material (RFC 8446, section 7.5), which also depends on the
// machine's certificate. An attacker in the middle has two connections with two values, and can
// forward neither proof. A recorded proof is useless on another connection. An attacker who has a
// proof can find the code only by trying all 2^100 codes. docs/decisions/0005-first-contact.md
// lists the threats.
//
// The package stores nothing. Its callers decide when a machine can be paired, and store the
// result.
package pairing

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Protocol is the ALPN protocol name (RFC 7301).
const Protocol = "orlop-pair/1"

// alphabet contains the symbols of a code: those of Crockford's base 32, which omits symbols that
// look alike.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

const (
	symbols = 20 // length of a code: 100 bits
	group   = 5  // symbols between two hyphens
)

// Code is the pairing code that the machine shows and the operator types: "8M2QX-04TRA-…". The
// empty code accepts no proof.
type Code string

// NewCode returns a new random code.
func NewCode() Code {
	raw := make([]byte, symbols)
	rand.Read(raw) // never fails
	var b strings.Builder
	for i, r := range raw {
		if i > 0 && i%group == 0 {
			b.WriteByte('-')
		}
		// All symbols are equally likely, because 256 is a multiple of 32.
		b.WriteByte(alphabet[int(r)%len(alphabet)])
	}
	return Code(b.String())
}

// ParseCode parses a code that an operator has typed. It accepts capital and small letters, with or
// without hyphens and blanks. It reads O as 0, and I and L as 1.
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
			return "", fmt.Errorf("pairing code: invalid character %q", r)
		}
		if n > 0 && n%group == 0 {
			b.WriteByte('-')
		}
		b.WriteRune(r)
		n++
	}
	if n != symbols {
		return "", fmt.Errorf("pairing code: %d letters and digits, expected %d", n, symbols)
	}
	return Code(b.String()), nil
}

// Claim is the message of the operator's tool.
type Claim struct {
	CA    []byte `json:"ca"`    // the operator's CA in PEM
	Proof []byte `json:"proof"` // proof that the sender knows the code
}

// Answer is the message of the machine.
type Answer struct {
	// Proof shows that the machine also knows the code. If the answer contains it, the operator has
	// claimed the machine.
	Proof   []byte `json:"proof,omitempty"`
	Refusal string `json:"refusal,omitempty"` // reason for a rejection, in a sentence; else empty
}

const (
	maxMessage = 64 << 10 // maximum size of each of the two messages, in bytes
	maxRefusal = 200      // maximum number of characters of Answer.Refusal that are shown
)

// Binding returns the secret value that identifies a connection at both ends. The handshake must be
// complete.
func Binding(state tls.ConnectionState) ([]byte, error) {
	if state.Version < tls.VersionTLS13 || state.NegotiatedProtocol != Protocol {
		return nil, errors.New("pairing: the connection has another protocol")
	}
	return state.ExportKeyingMaterial("EXPORTER-orlop-pairing", nil, sha256.Size)
}

// proof returns the proof that the sender knows the code. The parameter `by` is the sender:
// byOperator or byMachine.
func (c Code) proof(by string, binding, ca []byte) []byte {
	digest := sha256.Sum256(ca)
	mac := hmac.New(sha256.New, []byte(c))
	// The sequence of parts is unambiguous, because the first part ends with a newline, and the
	// other parts have a fixed length.
	for _, part := range [][]byte{[]byte(Protocol + " " + by + "\n"), binding, digest[:]} {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

const (
	byOperator = "operator"
	byMachine  = "machine"
)

// NewClaim returns the operator's claim for a connection.
func (c Code) NewClaim(binding, ca []byte) Claim {
	return Claim{CA: ca, Proof: c.proof(byOperator, binding, ca)}
}

// Accepts reports whether the sender of a claim knows the code.
func (c Code) Accepts(binding []byte, claim Claim) bool {
	return c != "" && len(binding) == sha256.Size && hmac.Equal(claim.Proof, c.proof(byOperator, binding, claim.CA))
}

// NewAnswer returns the machine's answer to an accepted claim.
func (c Code) NewAnswer(binding []byte, claim Claim) Answer {
	return Answer{Proof: c.proof(byMachine, binding, claim.CA)}
}

// ErrWrongMachine is returned by Code.Claim if the proof in the answer is wrong.
var ErrWrongMachine = errors.New("pairing: the peer does not know the code, so it is not the machine whose console shows it; nothing was stored")

// RefusedError is the reason why a machine rejects a claim. The text is from an unauthenticated
// peer, and was reduced to printable ASCII.
type RefusedError string

func (r RefusedError) Error() string { return "pairing refused: " + string(r) }

// Claim sends the operator's CA over a connection and checks the answer. If it returns nil, the
// operator has claimed the machine, and the server certificate of the connection belongs to the
// machine. After RefusedError and ErrWrongMachine the machine is not claimed. After any other error
// the machine may be claimed, because its answer may be lost.
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

// Serve receives a claim from a connection, calls answer(claim), and sends the result.
func Serve(conn io.ReadWriter, answer func(Claim) Answer) error {
	var claim Claim
	if err := receive(conn, &claim); err != nil {
		return err
	}
	return send(conn, answer(claim))
}

// send writes a message as a line of JSON.
func send(conn io.Writer, message any) error {
	if err := json.NewEncoder(conn).Encode(message); err != nil {
		return fmt.Errorf("pairing: cannot send: %w", err)
	}
	return nil
}

func receive(conn io.Reader, message any) error {
	if err := json.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(message); err != nil {
		return fmt.Errorf("pairing: cannot parse the message of the peer: %w", err)
	}
	return nil
}
