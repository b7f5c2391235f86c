package apid

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/joinrequest"
	"github.com/orlop-os/orlop/pkg/pairing"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
)

// door wraps gRPC's TLS so that a refused handshake leaves a line in the log: to the client it is
// only a failed handshake, and the machine's operator wants to know why.
type door struct {
	credentials.TransportCredentials
	log   *slog.Logger
	lines *rate.Limiter // a stranger must not be able to fill the log
	judge api.DoorClient
	store *store
	turns chan struct{} // holds one for each handshake that is being computed
}

func newDoor(store *store, log *slog.Logger, judge api.DoorClient) *door {
	return &door{
		TransportCredentials: credentials.NewTLS(store.tlsConfig()),
		store:                store,
		log:                  log,
		lines:                newLines(),
		judge:                judge,
		turns:                make(chan struct{}, max(1, runtime.NumCPU()/2)),
	}
}

// ServerHandshake implements credentials.TransportCredentials.
func (d *door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	kept := &keptConn{Conn: raw, turns: d.turns}
	kept.begin()
	var conn net.Conn
	var info credentials.AuthInfo
	err := panics.Do("handshake", func() (err error) { conn, info, err = d.TransportCredentials.ServerHandshake(kept); return err })
	kept.end()
	if info, ok := info.(credentials.TLSInfo); ok && err == nil && len(info.State.VerifiedChains) == 0 {
		err = panics.Do("first contact", func() error {
			if info.State.NegotiatedProtocol == joinrequest.Protocol {
				return d.ask(conn)
			}
			return d.pair(conn, info.State)
		})
	}
	if limited, ok := raw.(*limitedConn); ok && err == nil {
		if info, ok := info.(credentials.TLSInfo); ok {
			err = d.admit(limited, info.State.VerifiedChains[0])
		}
	}
	kept.closes.Store(true)
	if err != nil {
		switch {
		case errors.Is(err, errPaired):
			d.log.Info("paired", "peer", raw.RemoteAddr().String())
		case errors.Is(err, errAsked): // machined says what there is to say
		case d.lines.Allow():
			d.log.Warn("handshake refused", "peer", raw.RemoteAddr().String(), "reason", err.Error())
		}
		linger(raw)
	}
	return conn, info, err
}

// admit counts a connection of somebody whose chain was verified, and has it end when that counts
// no more.
func (d *door) admit(c *limitedConn, chain []*x509.Certificate) error {
	kind := callerKind
	if d.store.isMachine(chain) {
		kind = machineKind
	}
	// nobody is there to be told that it failed
	forget := d.store.keep(chain, func() { _ = c.Close() })
	err := c.prove(kind, pki.CommonNameOf(chain[0]), forget)
	if err != nil {
		forget()
	}
	return err
}

// errPaired ends a connection that was for pairing: there are no calls on it.
var errPaired = errors.New("it was for pairing")

// pair has machined judge what comes over a connection without a client certificate. It never
// returns nil.
func (d *door) pair(conn net.Conn, state tls.ConnectionState) error {
	binding, err := pairing.Binding(state)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	refusal := ""
	err = pairing.Serve(conn, func(c pairing.Claim) pairing.Answer {
		a, err := d.judge.Pair(ctx, &api.PairRequest{Binding: binding, Ca: c.CA, Proof: c.Proof, Peer: shown(conn.RemoteAddr().String())})
		if err != nil {
			a = &api.PairResponse{Refusal: "the machine cannot tell at present; try again"}
		}
		refusal = a.Refusal
		return pairing.Answer{Proof: a.Proof, Refusal: a.Refusal}
	})
	switch {
	case err != nil:
		return err
	case refusal != "":
		return errors.New("pairing: " + refusal)
	}
	return errPaired
}

// errAsked ends a connection over which a machine has asked to be let in: there are no calls on it.
var errAsked = errors.New("it was for asking to be let in")

// ask has machined judge what comes over a connection of a machine without a ticket. It never
// returns nil.
func (d *door) ask(conn net.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	err := joinrequest.Serve(conn, func(r joinrequest.Request) joinrequest.Answer {
		a, err := d.judge.Ask(ctx, &api.AskRequest{Name: r.Name, Request: r.CSR, Peer: shown(conn.RemoteAddr().String())})
		if err != nil {
			return joinrequest.Answer{State: joinrequest.Rejected, Reason: "the machine cannot tell at present; try again"}
		}
		return joinrequest.Answer{State: joinrequest.State(a.Standing), Certificate: a.Certificate, Reason: a.Reason}
	})
	return cmp.Or(err, errAsked)
}

// keptConn is a connection during its handshake. It stays open when gRPC's TLS closes it after a
// refused one, so that linger can do its work first. And it takes turns with the others: a
// handshake is some milliseconds of signatures, and strangers who ask for many would otherwise slow
// down every call that goes on. While it waits for its client it has no turn.
type keptConn struct {
	net.Conn
	closes atomic.Bool
	turns  chan struct{}
	shakes bool // the handshake goes on, in the one goroutine that reads
}

func (c *keptConn) begin() {
	c.shakes = true
	c.turns <- struct{}{}
}

func (c *keptConn) end() {
	c.shakes = false
	<-c.turns
}

// Read implements net.Conn.
func (c *keptConn) Read(b []byte) (int, error) {
	if c.shakes {
		<-c.turns
		defer func() { c.turns <- struct{}{} }()
	}
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *keptConn) Close() error {
	if !c.closes.Load() {
		return nil
	}
	return c.Conn.Close()
}

// linger lets the TLS alert reach the client before the connection is closed. A TLS 1.3 client
// sends its first data before it knows that it was refused; closing with that data unread would
// make the kernel send a reset, and the client's kernel would throw the alert away.
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
	return &door{TransportCredentials: d.TransportCredentials.Clone(), log: d.log, lines: d.lines, judge: d.judge, store: d.store, turns: d.turns}
}
