package secureboot

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// FromKey returns the signer for a certificate and its private RSA key (PEM, PKCS #8 or PKCS #1).
// It fails if the key is encrypted or belongs to another certificate.
func FromKey(certificate *x509.Certificate, text []byte) (Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return Signer{}, errors.New("a private key (PEM) expected")
	}
	var parsed any
	var err error
	switch {
	case block.Headers["DEK-Info"] != "" || block.Type == "ENCRYPTED PRIVATE KEY":
		return Signer{}, errors.New("the private key is encrypted; decrypt it for the build, or use a signing command")
	case block.Type == "RSA PRIVATE KEY":
		parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return Signer{}, fmt.Errorf("the private key cannot be parsed: %w", err)
	}
	key, ok := parsed.(*rsa.PrivateKey)
	if !ok {
		return Signer{}, errors.New("an RSA key expected")
	}
	if !key.PublicKey.Equal(certificate.PublicKey) {
		return Signer{}, fmt.Errorf("the private key does not belong to the certificate %q", certificate.Subject.String())
	}
	return Signer{Certificate: certificate, Key: key}, nil
}

const (
	// commandTimeout is the timeout of a signature. It is long because an operator may have to
	// touch a token.
	commandTimeout = 5 * time.Minute
	// outputTimeout is the time for which the output is read after the command has ended. An agent
	// that the command has started can hold the output open for ever.
	outputTimeout = time.Second
)

// FromCommand returns a signer that signs with a command: the name or path of a program, and its
// arguments. The program reads a SHA-256 digest (32 bytes) from its standard input, and writes the
// signature with RSA and PKCS #1 v1.5 to its standard output.
func FromCommand(certificate *x509.Certificate, command []string) Signer {
	return Signer{Certificate: certificate, Key: commandKey{certificate.PublicKey, command}}
}

// commandKey is a private key that only a command can use.
type commandKey struct {
	public  crypto.PublicKey
	command []string
}

func (k commandKey) Public() crypto.PublicKey { return k.public }

// Sign runs the command with the digest as its input, and returns its output.
func (k commandKey) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if opts.HashFunc() != crypto.SHA256 {
		return nil, fmt.Errorf("the signing command signs SHA-256 digests, not %s", opts.HashFunc())
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	var problem bytes.Buffer
	c := exec.CommandContext(ctx, k.command[0], k.command[1:]...)
	c.Stdin, c.Stderr, c.WaitDelay = bytes.NewReader(digest), &problem, outputTimeout
	out, err := c.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) { // Signer.sign verifies the output
		return nil, fmt.Errorf("signing command %s: %w: %s", k.command[0], err, strings.TrimSpace(problem.String()))
	}
	return out, nil
}
