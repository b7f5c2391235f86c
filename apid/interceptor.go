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

// caller is the identity of a caller. The client certificate proves it.
type caller struct {
	subject, name, serial, origin, ticket, key, peer, issuer string
	// age of the connection at the start of the call, in milliseconds
	age string
	// present name of the method that the caller is authorized to call
	method string
	// key by which the active calls are counted (pki.HolderID)
	holder string
	role   api.Role
	// verified chain, from the client's certificate to the CA
	chain []*x509.Certificate
}

func (c caller) metadata() metadata.MD {
	return api.Caller{
		Subject: c.subject, Name: c.name, Role: c.roleName(), Serial: c.serial, Lineage: c.origin,
		Issuer: c.issuer, Ticket: c.ticket, Key: c.key, Peer: c.peer, Age: c.age,
	}.Metadata()
}

// changes reports whether the caller has the role operator or admin.
func (c caller) changes() bool { return !isNarrow(c.role) && c.role >= api.Role_ROLE_OPERATOR }

// roleName returns the role without its prefix, for example "admin"; "nobody" for a caller without
// a role.
func (c caller) roleName() string { return strings.TrimPrefix(organization(c.role), pki.RolePrefix) }

type callerKey struct{}

// callerOf returns the caller that the interceptor has stored in the context. The second result is
// false if the context has no caller.
func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// interceptor runs before every call: it identifies the caller, checks the role, and writes the log
// line.
type interceptor struct {
	roles    roleTable
	store    *store
	log      *slog.Logger
	internal api.ApidInternalClient
	callers  callers
	logLimit *rate.Limiter // limits the log lines for calls beyond the limit of a caller
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

// handle makes the call if the caller is authorized, and logs it. It first replaces a former name
// of a method, so all checks, log lines and the proxy use the present name only.
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
	// Every call is counted here, before handle can reject it, because a rejected call also uses
	// memory for some time.
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

// endedByApid returns the reason for which apid itself has ended a call. It returns nil if the call
// goes on, or if the client or a deadline has ended it.
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

// maxReason is the longest reason that machined records, in bytes. A reason may contain text of the
// caller.
const maxReason = 400

// recordTime is the longest time for machined to record a rejected call.
const recordTime = 2 * time.Second

// refused logs a call that apid has rejected or ended, and sends a RecordRefusal request to
// machined. It returns its argument why. machined itself records all calls that reach it.
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

// identify returns the caller without the role; the role depends on the current credentials. The
// handshake has verified the chain already. identify nevertheless rejects a connection without a
// chain, as a second line of defense.
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

// sanitized returns a text of at most 128 bytes that is safe for headers and logs.
func sanitized(text string) string { return sanitize.ASCII(text, 128) }

// callStream is a stream with the context of registerCall and the caller.
type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *callStream) Context() context.Context { return s.ctx }
