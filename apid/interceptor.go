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

// caller is the identity of a caller, as proven by the certificate.
type caller struct {
	subject, name, serial, origin, ticket, key, peer, issuer string
	// of the connection at the start of the call, in milliseconds
	age string
	// authorized method of the call, by its present name
	method string
	// key by which calls are counted (pki.HolderID)
	holder string
	role   api.Role
	// the client's certificate first, the CA last
	chain []*x509.Certificate
}

func (c caller) metadata() metadata.MD {
	return api.Caller{
		Subject: c.subject, Name: c.name, Role: c.roleName(), Serial: c.serial, Lineage: c.origin,
		Issuer: c.issuer, Ticket: c.ticket, Key: c.key, Peer: c.peer, Age: c.age,
	}.Metadata()
}

// changes reports whether the caller is an operator or admin, and not a reader, a machine or a
// narrow role.
func (c caller) changes() bool { return !isNarrow(c.role) && c.role >= api.Role_ROLE_OPERATOR }

// roleName is "admin", or "nobody".
func (c caller) roleName() string { return strings.TrimPrefix(organization(c.role), pki.RolePrefix) }

type callerKey struct{}

// callerOf returns the caller that the interceptor has stored in the context.
func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// interceptor intercepts every call of every service: it identifies the caller, checks the role,
// and writes the audit line.
type interceptor struct {
	roles    roleTable
	store    *store
	log      *slog.Logger
	internal api.ApidInternalClient
	callers  callers
	logLimit *rate.Limiter // limits the lines for excess calls, so that they cannot fill the log
}

func (g *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	err = g.handle(ctx, info.FullMethod, func(ctx context.Context) error {
		var err error
		resp, err = handler(ctx, req)
		return err
	})
	return resp, err
}

func (g *interceptor) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return g.handle(stream.Context(), info.FullMethod, func(ctx context.Context) error {
		return handler(srv, &callStream{ServerStream: stream, ctx: ctx})
	})
}

// handle makes the call if the caller is authorized, and audits it.
// A former name of a method is replaced first, so that all decisions, records and the proxy see the
// present name only.
func (g *interceptor) handle(ctx context.Context, method string, call func(context.Context) error) error {
	start := time.Now()
	method = api.PresentName(method)
	c, err := identify(ctx)
	if err != nil {
		return g.refused(ctx, "call refused", c, method, start, err)
	}
	held, role, release, err := g.store.registerCall(ctx, c.chain)
	c.role = role
	if err == nil {
		defer release()
	}
	most := maxCalls
	if c.changes() {
		most = maxCallsOperator
	}
	// This comes first, because the rejection of a call also takes time, in which the call holds
	// its data.
	endCall, busy := g.callers.acquire(c.holder, most)
	if busy != nil {
		busy = status.Error(codes.ResourceExhausted, busy.Error())
		if g.logLimit.Allow() {
			return g.refused(ctx, "call refused", c, method, start, busy)
		}
		return busy
	}
	defer endCall()
	if err != nil {
		return g.refused(ctx, "call refused", c, method, start, status.Error(codes.Unauthenticated, err.Error()))
	}
	if err := refusal(g.roles.check(method, c.role)); err != nil {
		return g.refused(ctx, "call refused", c, method, start, err)
	}
	c.method = method
	err = panics.Do("call "+sanitized(method), func() error { return call(context.WithValue(held, callerKey{}, c)) })
	if failed := (*panics.Error)(nil); errors.As(err, &failed) {
		return g.refused(ctx, "call failed", c, method, start, status.Error(codes.Internal, failed.Error()))
	}
	if ended := endedByApid(held); err != nil && ended != nil {
		return g.refused(ctx, "call ended", c, method, start, status.Error(codes.Unauthenticated, "the call was ended: "+ended.Error()))
	}
	if g.roles.mutates(method) {
		g.audit("call", c, method, start, err)
	}
	return err
}

func refusal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.PermissionDenied, err.Error())
}

// endedByApid returns why apid itself ended a call, or nil.
func endedByApid(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return nil
	}
	return cause
}

func (g *interceptor) audit(what string, c caller, method string, start time.Time, err error) {
	line := []any{
		"subject", c.subject, "serial", c.serial, "peer", c.peer, "method", method,
		"outcome", status.Code(err).String(), "duration", time.Since(start).Round(time.Microsecond).String(),
	}
	if err != nil {
		line = append(line, "reason", status.Convert(err).Message())
	}
	g.log.Info(what, line...)
}

// maxReason is the recorded length of a reason, in bytes: it may contain text of the caller.
const maxReason = 400

// recordTime is the time limit for recording a rejected call.
const recordTime = 2 * time.Second

// refused logs a call that did not reach machined or did not complete, has machined record it, and
// returns the error. machined records all other calls itself.
func (g *interceptor) refused(ctx context.Context, what string, c caller, method string, start time.Time, why error) error {
	g.audit(what, c, method, start, why)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	_, err := g.internal.RecordRefusal(ctx, &api.RecordRefusalRequest{
		Subject: c.subject, Serial: c.serial, Role: c.roleName(), Peer: c.peer, Method: sanitized(method),
		Outcome: status.Code(why).String(), Reason: sanitize.ASCII(sanitize.Line(status.Convert(why).Message()), maxReason), DurationNs: int64(time.Since(start)),
	})
	if err != nil {
		g.log.Warn("audit: a refused call is not recorded", "method", method, "reason", status.Convert(err).Message())
	}
	return why
}

// identify reads the caller from the connection, except the role, which the current credentials
// decide. The handshake has already verified the chain; identify also rejects a connection without
// a chain, although none can reach it.
func identify(ctx context.Context) (caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, status.Error(codes.Unauthenticated, "the connection has no peer")
	}
	c := caller{peer: sanitized(p.Addr.String()), age: ageOf(p.Addr)}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return c, status.Error(codes.Unauthenticated, "a client certificate of this machine's operator is required")
	}
	c.chain = info.State.VerifiedChains[0]
	c.subject = sanitized(c.chain[0].Subject.String())
	c.name = sanitized(c.chain[0].Subject.CommonName)
	origin, root := pki.LineageOf(c.chain[0])
	c.serial, c.origin, c.ticket = pki.Serial(c.chain[0]), sanitized(origin), sanitized(pki.TicketOf(c.chain[0]))
	c.holder, c.key = pki.HolderID(c.chain[0]), pki.Fingerprint(c.chain[0])
	c.issuer = sanitized(cmp.Or(root, pki.Fingerprint(c.chain[len(c.chain)-1])))
	return c, nil
}

// sanitized sanitizes a text for headers and logs.
func sanitized(text string) string { return sanitize.ASCII(text, 128) }

// callStream is a stream with the context of the interceptor.
type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *callStream) Context() context.Context { return s.ctx }
