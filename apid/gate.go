package apid

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// The metadata by which machined learns who calls. The values are printable ASCII of at most 128
// bytes.
const (
	// the certificate's subject as RFC 2253 writes it: "CN=alice,O=orlop:admin"
	MetadataSubject = "orlop-subject"
	MetadataSerial  = "orlop-serial" // its serial number, hexadecimal
	MetadataRole    = "orlop-role"   // "machine", or one of pki.Roles
	MetadataPeer    = "orlop-peer"   // address and port that the call comes from
	MetadataAge     = "orlop-age"    // for how long the connection has been open, in milliseconds
	MetadataName    = "orlop-name"   // the common name in it
	// serial number of what it was renewed from (pki.Origin); its own if it was not
	MetadataLineage = "orlop-origin"
	// serial number of the ticket by which a machine came to the cluster (pki.TicketOf); empty for
	// all others
	MetadataTicket = "orlop-ticket"
	MetadataKey    = "orlop-key" // fingerprint of the certificate's key (pki.Fingerprint)
	// fingerprint (pki.Fingerprint) of the CA that vouches for what it was renewed from, or for
	// itself
	MetadataIssuer = "orlop-issuer"
)

// caller is who makes a call, as proven by the certificate.
type caller struct {
	subject, name, serial, origin, ticket, key, peer, issuer string
	// of the connection when the call came, in milliseconds
	age string
	// whose calls are counted together (pki.CommonNameOf)
	holder string
	role   api.Role
	// the client's certificate first, the CA last
	chain []*x509.Certificate
}

func (c caller) metadata() metadata.MD {
	return metadata.Pairs(
		MetadataSubject, c.subject,
		MetadataName, c.name,
		MetadataLineage, c.origin,
		MetadataSerial, c.serial,
		MetadataTicket, c.ticket,
		MetadataKey, c.key,
		MetadataRole, c.roleName(),
		MetadataPeer, c.peer,
		MetadataAge, c.age,
		MetadataIssuer, c.issuer,
	)
}

// changes tells an operator or admin from those who may only look, or do one thing, and from
// machines.
func (c caller) changes() bool { return !isNarrow(c.role) && c.role >= api.Role_ROLE_OPERATOR }

// roleName is "admin", or "nobody".
func (c caller) roleName() string { return strings.TrimPrefix(organisation(c.role), pki.RolePrefix) }

type callerKey struct{}

// callerOf returns the caller that the gate has put into the context.
func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// gate stands before every call, whichever service it is for: it asks who calls, whether the role
// is enough, and writes the audit line.
type gate struct {
	roles   roleTable
	store   *store
	log     *slog.Logger
	judge   api.DoorClient
	callers callers
	lines   *rate.Limiter // of calls that are too many: they must not fill the log
}

func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	err = g.pass(ctx, info.FullMethod, func(ctx context.Context) error {
		var err error
		resp, err = handler(ctx, req)
		return err
	})
	return resp, err
}

func (g *gate) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return g.pass(stream.Context(), info.FullMethod, func(ctx context.Context) error {
		return handler(srv, &callStream{ServerStream: stream, ctx: ctx})
	})
}

// pass makes the call if the caller may, and audits it.
func (g *gate) pass(ctx context.Context, method string, call func(context.Context) error) error {
	start := time.Now()
	who, err := identify(ctx)
	if err != nil {
		return g.refused(ctx, "call refused", who, method, start, err)
	}
	held, role, release, err := g.store.hold(ctx, who.chain)
	who.role = role
	if err == nil {
		defer release()
	}
	most := maxCalls
	if who.changes() {
		most = maxCallsOperator
	}
	// Before anything else, because to refuse a call takes a moment, too, for which it holds what
	// was sent.
	leave, busy := g.callers.enter(who.holder, most)
	if busy != nil {
		busy = status.Error(codes.ResourceExhausted, busy.Error())
		if g.lines.Allow() {
			return g.refused(ctx, "call refused", who, method, start, busy)
		}
		return busy
	}
	defer leave()
	if err != nil {
		return g.refused(ctx, "call refused", who, method, start, status.Error(codes.Unauthenticated, err.Error()))
	}
	if err := refusal(g.roles.check(method, who.role)); err != nil {
		return g.refused(ctx, "call refused", who, method, start, err)
	}
	err = panics.Do("call "+shown(method), func() error { return call(context.WithValue(held, callerKey{}, who)) })
	if failed := (*panics.Error)(nil); errors.As(err, &failed) {
		return g.refused(ctx, "call failed", who, method, start, status.Error(codes.Internal, failed.Error()))
	}
	if ended := endedByDoor(held); err != nil && ended != nil {
		return g.refused(ctx, "call ended", who, method, start, status.Error(codes.Unauthenticated, "the call was ended: "+ended.Error()))
	}
	if g.roles.mutates(method) {
		g.audit("call", who, method, start, err)
	}
	return err
}

func refusal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.PermissionDenied, err.Error())
}

// endedByDoor returns why apid itself ended a call, or nil.
func endedByDoor(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return nil
	}
	return cause
}

func (g *gate) audit(what string, who caller, method string, start time.Time, err error) {
	line := []any{
		"subject", who.subject, "serial", who.serial, "peer", who.peer, "method", method,
		"outcome", status.Code(err).String(), "duration", time.Since(start).Round(time.Microsecond).String(),
	}
	if err != nil {
		line = append(line, "reason", status.Convert(err).Message())
	}
	g.log.Info(what, line...)
}

// maxReason is how much of a reason is recorded, in bytes: the caller's own words can be in it.
const maxReason = 400

// recordTime bounds having a refusal recorded.
const recordTime = 2 * time.Second

// refused logs a call that did not come to machined, or not to its end, has machined record it, and
// returns why. machined records all others itself.
func (g *gate) refused(ctx context.Context, what string, who caller, method string, start time.Time, why error) error {
	g.audit(what, who, method, start, why)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	_, err := g.judge.Refused(ctx, &api.RefusedRequest{
		Subject: who.subject, Serial: who.serial, Role: who.roleName(), Peer: who.peer, Method: shown(method),
		Outcome: status.Code(why).String(), Reason: sanitize.ASCII(sanitize.Line(status.Convert(why).Message()), maxReason), DurationNs: int64(time.Since(start)),
	})
	if err != nil {
		g.log.Warn("audit: a refused call is not recorded", "method", method, "reason", status.Convert(err).Message())
	}
	return why
}

// identify reads the caller from the connection, all but the role, which the present credentials
// decide. The handshake has verified the chain already; a connection without one cannot get here,
// and is refused all the same.
func identify(ctx context.Context) (caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, status.Error(codes.Unauthenticated, "the connection has no peer")
	}
	who := caller{peer: shown(p.Addr.String()), age: ageOf(p.Addr)}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return who, status.Error(codes.Unauthenticated, "a client certificate of this machine's operator is needed")
	}
	who.chain = info.State.VerifiedChains[0]
	who.subject = shown(who.chain[0].Subject.String())
	who.name = shown(who.chain[0].Subject.CommonName)
	origin, root := pki.LineageOf(who.chain[0])
	who.serial, who.origin, who.ticket = pki.Serial(who.chain[0]), shown(origin), shown(pki.TicketOf(who.chain[0]))
	who.holder, who.key = pki.CommonNameOf(who.chain[0]), pki.Fingerprint(who.chain[0])
	who.issuer = shown(cmp.Or(root, pki.Fingerprint(who.chain[len(who.chain)-1])))
	return who, nil
}

// shown makes a text fit for a header and for a log.
func shown(text string) string { return sanitize.ASCII(text, 128) }

// callStream is a stream with the context that the gate made for it.
type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *callStream) Context() context.Context { return s.ctx }
