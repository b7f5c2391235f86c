package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/orlop-os/orlop/pkg/pairing"
	"github.com/orlop-os/orlop/pkg/pki"
)

// ErrClaimed is returned when a machine does not offer pairing, for example because it trusts an
// operator CA already.
var ErrClaimed = errors.New("it is claimed already, or does not support pairing")

// Pair claims the unclaimed machine at an address for the operator of a CA (PEM). code is the
// pairing code on the machine's console. It returns the fingerprint of the machine's key, for
// Endpoint.Fingerprint.
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

func pair(ctx context.Context, address string, ca []byte, code pairing.Code) (string, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	// The certificate is not trusted before the machine has proved, on this connection, that it
	// knows the code.
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{pairing.Protocol}})
	if err := conn.HandshakeContext(ctx); err != nil {
		if strings.Contains(err.Error(), noProtocol) {
			return "", ErrClaimed
		}
		return "", reasonOf(err)
	}
	state := conn.ConnectionState()
	binding, err := pairing.Binding(state)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	if err := code.Claim(conn, binding, ca); err != nil {
		return "", errors.Join(err, ctx.Err())
	}
	return pki.Fingerprint(state.PeerCertificates[0]), nil
}
