package apid

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

// door wraps gRPC's TLS so that a refused handshake leaves a line in the log: to the client it is only a failed
// handshake, and the machine's operator wants to know why.
type door struct {
	credentials.TransportCredentials
	log   *slog.Logger
	lines *rate.Limiter // a stranger must not be able to fill the log
}

func newDoor(config *tls.Config, log *slog.Logger) *door {
	return &door{
		TransportCredentials: credentials.NewTLS(config),
		log:                  log,
		lines:                rate.NewLimiter(rate.Every(time.Second), 10),
	}
}

// ServerHandshake implements credentials.TransportCredentials.
func (d *door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	kept := &keptConn{Conn: raw}
	conn, info, err := d.TransportCredentials.ServerHandshake(kept)
	kept.closes.Store(true)
	if err != nil {
		if d.lines.Allow() {
			d.log.Warn("handshake refused", "peer", raw.RemoteAddr().String(), "reason", err.Error())
		}
		linger(raw)
	}
	return conn, info, err
}

// keptConn stays open when gRPC's TLS closes it after a refused handshake, so that linger can do its work first.
type keptConn struct {
	net.Conn
	closes atomic.Bool
}

// Close implements net.Conn.
func (c *keptConn) Close() error {
	if !c.closes.Load() {
		return nil
	}
	return c.Conn.Close()
}

// linger lets the TLS alert reach the client before the connection is closed. A TLS 1.3 client sends its first data
// before it knows that it was refused; closing with that data unread would make the kernel send a reset, and the
// client's kernel would throw the alert away.
func linger(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		if raw.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
			// However it ends, the connection is closed next.
			_, _ = io.CopyN(io.Discard, raw, lingerBytes)
		}
	}
}

// Clone implements credentials.TransportCredentials.
func (d *door) Clone() credentials.TransportCredentials {
	return &door{TransportCredentials: d.TransportCredentials.Clone(), log: d.log, lines: d.lines}
}
