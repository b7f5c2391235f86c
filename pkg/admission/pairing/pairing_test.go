package pairing

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

func TestCode(t *testing.T) {
	seen := map[Code]bool{}
	for range 100 {
		c := NewCode()
		if again, err := ParseCode(string(c)); err != nil || again != c || seen[c] {
			t.Fatalf("the code %s is parsed as %s, error %v; NewCode returned it before: %t", c, again, err, seen[c])
		}
		seen[c] = true
	}
	for text, want := range map[string]Code{
		"01234-56789-ABCDE-FGHJK":    "01234-56789-ABCDE-FGHJK",
		" 0l2345 6789abcde fghjk\n":  "01234-56789-ABCDE-FGHJK",
		"O1234-56789-abcde-fghjk":    "01234-56789-ABCDE-FGHJK",
		"01234-56789-ABCDE-FGHJ":     "",
		"01234-56789-ABCDE-FGHJK-0":  "",
		"01234-56789-ABCDE-FGHJU":    "", // U is not a symbol
		"":                           "",
		"01234-56789-ABCDE-FGHJ\x00": "",
	} {
		if got, err := ParseCode(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// connect makes a TLS connection to a server with a self-signed certificate, as a machine has it.
// It returns both ends, and the binding that each end computes.
func connect(t *testing.T) (client, server *tls.Conn, clientBinding, serverBinding []byte) {
	t.Helper()
	leaf, err := pki.SelfSigned(pki.Spec{CN: "machine", Usage: pki.Server, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	client = tls.Client(a, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{Protocol}, MinVersion: tls.VersionTLS13})
	server = tls.Server(b, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}}, NextProtos: []string{Protocol}, SessionTicketsDisabled: true})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	if clientBinding, err = Binding(client.ConnectionState()); err != nil {
		t.Fatal(err)
	}
	if serverBinding, err = Binding(server.ConnectionState()); err != nil {
		t.Fatal(err)
	}
	return client, server, clientBinding, serverBinding
}

// machine returns a handler that answers claims as a machine with the pairing code c does. It
// stores the CA of an accepted claim in *owner.
func machine(c Code, binding []byte, owner *[]byte) func(Claim) Answer {
	return func(claim Claim) Answer {
		if !c.Accepts(binding, claim) {
			return Answer{Refusal: "wrong code"}
		}
		*owner = claim.CA
		return c.NewAnswer(binding, claim)
	}
}

func TestPair(t *testing.T) {
	code, ca := NewCode(), []byte("a CA")
	for _, c := range []struct {
		name          string
		typed         Code
		says, belongs string
	}{
		{"right", code, "", "a CA"},
		{"wrong", NewCode(), "pairing refused: wrong code", ""},
		{"no code", "", "pairing refused: wrong code", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, server, cb, sb := connect(t)
			if !bytes.Equal(cb, sb) {
				t.Fatal("the two ends compute different bindings for the same connection")
			}
			var owner []byte
			done := make(chan error, 1)
			go func() { done <- Serve(server, machine(code, sb, &owner)) }()
			err := c.typed.Claim(client, cb, ca)
			if got := text(err); got != c.says || string(owner) != c.belongs {
				t.Errorf("error %q, owner of the machine %q", got, owner)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestInTheMiddle: neither end trusts an attacker that terminates both connections and forwards all
// messages, unchanged or with another CA.
func TestInTheMiddle(t *testing.T) {
	code := NewCode()
	for name, change := range map[string]func(Claim) Claim{
		"unchanged claim":    func(c Claim) Claim { return c },
		"CA of the attacker": func(c Claim) Claim { c.CA = []byte("his"); return c },
	} {
		t.Run(name, func(t *testing.T) {
			operator, toOperator, ob, tob := connect(t)
			toMachine, atMachine, tmb, mb := connect(t)
			if bytes.Equal(ob, mb) || bytes.Equal(tob, tmb) {
				t.Fatal("two connections have the same binding")
			}
			var owner []byte
			done := make(chan error, 2)
			go func() { done <- Serve(atMachine, machine(code, mb, &owner)) }()
			go func() {
				var claim Claim
				err := receive(toOperator, &claim)
				if err == nil {
					err = send(toMachine, change(claim))
				}
				var answer Answer
				if err == nil {
					err = receive(toMachine, &answer)
				}
				answer.Refusal = "" // the attacker suppresses the rejection
				done <- errors.Join(err, send(toOperator, answer))
			}()
			if err := code.Claim(operator, ob, []byte("a CA")); !errors.Is(err, ErrWrongMachine) {
				t.Errorf("the operator: %v", err)
			}
			if owner != nil {
				t.Errorf("the machine belongs to %q", owner)
			}
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestProofs: a proof is valid for a single connection, CA and direction.
func TestProofs(t *testing.T) {
	code := NewCode()
	binding, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	claim := code.NewClaim(binding, []byte("a CA"))
	if !code.Accepts(binding, claim) {
		t.Error("Accepts rejects a valid claim")
	}
	for name, c := range map[string]struct {
		code    Code
		binding []byte
		claim   Claim
	}{
		"a claim of another connection":     {code, other, claim},
		"another CA":                        {code, binding, Claim{[]byte("another"), claim.Proof}},
		"another code":                      {NewCode(), binding, claim},
		"the proof of the machine's answer": {code, binding, Claim{claim.CA, code.NewAnswer(binding, claim).Proof}},
		"no proof":                          {code, binding, Claim{CA: claim.CA}},
		"no code":                           {"", binding, Code("").NewClaim(binding, claim.CA)},
		"no binding":                        {code, nil, code.NewClaim(nil, claim.CA)},
	} {
		if c.code.Accepts(c.binding, c.claim) {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestBindingIsForPairingOnly(t *testing.T) {
	if _, err := Binding(tls.ConnectionState{Version: tls.VersionTLS13, NegotiatedProtocol: "h2"}); err == nil {
		t.Error("Binding accepts a connection of another protocol")
	}
}

// FuzzServe: for every input, Serve returns an error or refuses the claim because of a wrong code,
// and the machine stays unclaimed.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"ca":"YSBDQQ==","proof":"AAAA"}`))
	f.Add([]byte(`{"ca":[1]}`))
	f.Add([]byte("\x00"))
	code := NewCode()
	f.Fuzz(func(t *testing.T, message []byte) {
		var owner []byte
		var out bytes.Buffer
		err := Serve(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(message), &out}, machine(code, make([]byte, 32), &owner))
		if owner != nil || err == nil && !strings.Contains(out.String(), "wrong code") {
			t.Errorf("input %q: owner of the machine %q, answer %q, error %v", message, owner, out.String(), err)
		}
	})
}
