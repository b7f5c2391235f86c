package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/pki"
)

// ErrClaimed is returned when a machine does not offer pairing, for example because it trusts an
// operator CA already.
var ErrClaimed = errors.New("it is claimed already, or does not support pairing")

// Pair claims the unclaimed machine at an address for the operator of a CA (PEM). code is the
// pairing code on the machine's console. Pair returns the fingerprint of the machine's key, for use
// as Endpoint.Fingerprint.
func Pair(ctx context.Context, address string, ca []byte, code pairing.Code) (fingerprint string, err error) {
	if address, err = withPort(address); err != nil {
		return "", err
	}
	fingerprint, err = pair(ctx, address, ca, code)
	if err != nil {
		return "", fmt.Errorf("machine %s: cannot pair: %w", address, err)
	}
	return fingerprint, nil
}

func pair(ctx context.Context, address string, ca []byte, code pairing.Code) (fingerprint string, err error) {
	// The certificate is not trusted before the machine has proved, on this connection, that it
	// knows the code.
	err = exchange(ctx, address, unverifiedConfig(pairing.Protocol), ErrClaimed, func(conn *tls.Conn) error {
		state := conn.ConnectionState()
		binding, err := pairing.Binding(state)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUntrusted, err)
		}
		if err := code.Claim(conn, binding, ca); err != nil {
			return err
		}
		fingerprint = pki.Fingerprint(state.PeerCertificates[0])
		return nil
	})
	return fingerprint, err
}
