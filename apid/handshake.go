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

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
)

// serverCredentials wraps gRPC's TLS credentials and logs the reason of each rejected handshake.
// The client sees only a failed handshake, so the operator needs the log. serverCredentials also
// serves the connections without a client certificate.
type serverCredentials struct {
	credentials.TransportCredentials
	log      *slog.Logger
	logLimit *rate.Limiter // limits the log lines that a client without a certificate can cause
	internal api.ApidInternalClient
	store    *store
	slots    chan struct{} // semaphore: one entry for each handshake that uses the CPU
}

func newServerCredentials(store *store, log *slog.Logger, internal api.ApidInternalClient) *serverCredentials {
	return &serverCredentials{
		TransportCredentials: credentials.NewTLS(store.tlsConfig()),
		store:                store,
		log:                  log,
		logLimit:             newLogLimit(),
		internal:             internal,
		slots:                make(chan struct{}, max(1, runtime.NumCPU()/2)),
	}
}

// ServerHandshake implements credentials.TransportCredentials.
func (d *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	wrapped := &handshakeConn{Conn: raw, slots: d.slots}
	wrapped.begin()
	var conn net.Conn
	var info credentials.AuthInfo
	err := panics.Do("handshake", func() (err error) { conn, info, err = d.TransportCredentials.ServerHandshake(wrapped); return err })
	wrapped.end()
	if info, ok := info.(credentials.TLSInfo); ok && err == nil && len(info.State.VerifiedChains) == 0 {
		err = panics.Do("first contact", func() error {
			switch info.State.NegotiatedProtocol {
			case joinrequest.Protocol:
				return d.requestJoin(conn)
			case inventory.Protocol:
				return d.reportInventory(conn, info.State)
			}
			return d.pair(conn, info.State)
		})
	}
	if limited, ok := raw.(*limitedConn); ok && err == nil {
		if info, ok := info.(credentials.TLSInfo); ok {
			err = d.admit(limited, info.State.VerifiedChains[0])
		}
	}
	wrapped.closes.Store(true)
	if err != nil {
		switch {
		case errors.Is(err, errPaired):
			d.log.Info("paired", "peer", raw.RemoteAddr().String())
		// machined logs these requests
		case errors.Is(err, errJoinRequested), errors.Is(err, errInventoryReported):
		case d.logLimit.Allow():
			d.log.Warn("handshake refused", "peer", raw.RemoteAddr().String(), "reason", err.Error())
		}
		linger(raw)
	}
	return conn, info, err
}

// admit counts a connection with a verified chain against the limits. It also registers the
// connection, which the store closes after the chain has become invalid.
func (d *serverCredentials) admit(c *limitedConn, chain []*x509.Certificate) error {
	kind := userKind
	if d.store.isMachine(chain) {
		kind = machineKind
	}
	// Nothing depends on the error of Close.
	forget := d.store.registerConn(chain, func() { _ = c.Close() })
	err := c.authenticate(kind, pki.HolderID(chain[0]), forget)
	if err != nil {
		forget()
	}
	return err
}

// errPaired ends a connection after pairing, because a connection for pairing permits no calls.
var errPaired = errors.New("the connection was for pairing")

// pair forwards the pairing request of a client without a certificate to machined. It always
// returns an error, which ends the connection; errPaired means success.
func (d *serverCredentials) pair(conn net.Conn, state tls.ConnectionState) error {
	binding, err := pairing.Binding(state)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	refusal := ""
	err = pairing.Serve(conn, func(c pairing.Claim) pairing.Answer {
		a, err := d.internal.Pair(ctx, &api.PairRequest{ChannelBinding: binding, Ca: c.CA, Proof: c.Proof, Peer: sanitized(conn.RemoteAddr().String())})
		if err != nil {
			a = &api.PairResponse{Refusal: "the machine cannot answer at present; try again"}
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

// errJoinRequested ends a connection after a join request, because a connection for a join request
// permits no calls.
var errJoinRequested = errors.New("the connection was for a join request")

// requestJoin forwards the join request of a machine without a ticket to machined. It always
// returns an error, which ends the connection; errJoinRequested means that the machine got an
// answer.
func (d *serverCredentials) requestJoin(conn net.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	err := joinrequest.Serve(conn, func(r joinrequest.Request) joinrequest.Answer {
		a, err := d.internal.RequestJoin(ctx, &api.RequestJoinRequest{Name: r.Name, Csr: r.CSR, Peer: sanitized(conn.RemoteAddr().String())})
		if err != nil {
			return joinrequest.Answer{State: joinrequest.Rejected, Reason: "the machine cannot answer at present; try again"}
		}
		return joinrequest.Answer{State: joinrequest.State(a.State), Certificate: a.Certificate, Reason: a.Reason}
	})
	return cmp.Or(err, errJoinRequested)
}

// errInventoryReported ends a connection after an inventory, because a connection for an inventory
// permits no calls.
var errInventoryReported = errors.New("the connection was for an inventory")

// reportInventory forwards the inventory of a machine without a configuration to machined. It
// always returns an error, which ends the connection; errInventoryReported means that the machine
// got an answer.
func (d *serverCredentials) reportInventory(conn net.Conn, state tls.ConnectionState) error {
	binding, err := inventory.Binding(state)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	err = inventory.Serve(conn, func(r inventory.Request) inventory.Answer {
		a, err := d.internal.ReportInventory(ctx, &api.ReportInventoryRequest{
			ChannelBinding: binding, Key: r.Key, Inventory: r.Inventory, Signature: r.Signature, Peer: sanitized(conn.RemoteAddr().String()),
		})
		if err != nil {
			return inventory.Answer{Reason: "the machine cannot answer at present; try again"}
		}
		answer := inventory.Answer{Listed: a.Listed, Reason: a.Reason}
		if len(a.Documents) > 0 {
			answer.Template = &claim.Signed{Documents: a.Documents, Signature: a.Signature}
		}
		return answer
	})
	return cmp.Or(err, errInventoryReported)
}

// handshakeConn is a connection during its handshake. After a rejected handshake gRPC calls Close;
// handshakeConn then stays open until linger has run. handshakeConn also limits the number of
// handshakes that use the CPU at a time, because the signatures of many handshakes would slow down
// all active calls. A handshake that waits for data of its client releases its slot.
type handshakeConn struct {
	net.Conn
	closes      atomic.Bool
	slots       chan struct{}
	handshaking bool // true during the handshake; only one goroutine reads then
}

func (c *handshakeConn) begin() {
	c.handshaking = true
	c.slots <- struct{}{}
}

func (c *handshakeConn) end() {
	c.handshaking = false
	<-c.slots
}

// Read implements net.Conn.
func (c *handshakeConn) Read(b []byte) (int, error) {
	if c.handshaking {
		<-c.slots
		defer func() { c.slots <- struct{}{} }()
	}
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *handshakeConn) Close() error {
	if !c.closes.Load() {
		return nil
	}
	return c.Conn.Close()
}

// linger gives the client time to read the TLS alert before the connection is closed. A TLS 1.3
// client sends its first data before it gets the alert. If apid closed the connection with this
// data unread, the kernel would send a TCP reset, and the client's kernel would discard the alert.
func linger(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		if raw.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
			// The caller closes the connection next, also after an error.
			_, _ = io.CopyN(io.Discard, raw, lingerBytes)
		}
	}
}

// Clone implements credentials.TransportCredentials.
func (d *serverCredentials) Clone() credentials.TransportCredentials {
	return &serverCredentials{TransportCredentials: d.TransportCredentials.Clone(), log: d.log, logLimit: d.logLimit, internal: d.internal, store: d.store, slots: d.slots}
}
