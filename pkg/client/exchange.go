package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
)

// exchange connects to an address by TLS, for a protocol other than that of the management API, and
// passes the connection to the function do. The end of ctx closes the connection. disabled is the
// error for a machine that does not offer the protocol.
func exchange(ctx context.Context, address string, config *tls.Config, disabled error, do func(*tls.Conn) error) error {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		if strings.Contains(err.Error(), noProtocol) {
			return disabled
		}
		return reasonOf(err)
	}
	if err = do(conn); err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// unverifiedConfig is the configuration of a connection to a machine that the caller cannot
// authenticate yet.
func unverifiedConfig(protocol string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}}
}
