package api

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Interceptor wraps every call of a local client, such as apid: it records the call (AuditLog), and
// a panic ends only the call.
type Interceptor struct {
	AuditLog *AuditLog
	// Audited reports whether the calls of a method are recorded.
	Audited func(method string) bool
	// RejectUnclaimed rejects a call that an unclaimed machine does not admit.
	RejectUnclaimed func(method string) error
	// CheckApproval rejects a guarded call without an approval; nil: no method is guarded.
	CheckApproval CheckApproval
	// caller is the caller of all calls; nil: the metadata of each call name its caller.
	caller *api.Caller
}

// Unary wraps a call with one request and one answer.
func (g Interceptor) Unary(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	err = g.handle(ctx, info.FullMethod, func(ctx context.Context, o *recordedCall) error {
		if err := o.begin(target(info.FullMethod, r, nil), false); err != nil {
			return err
		}
		err := panics.Do("call "+info.FullMethod, func() (err error) {
			if err = g.checkApproval(ctx, info.FullMethod, r); err == nil {
				answer, err = handle(ctx, r)
			}
			return err
		})
		o.setTarget(target(info.FullMethod, r, answer))
		return err
	})
	return answer, err
}

// Stream wraps a call with a stream.
func (g Interceptor) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return g.handle(stream.Context(), info.FullMethod, func(ctx context.Context, o *recordedCall) error {
		return panics.Do("call "+info.FullMethod, func() error {
			return handle(srv, &recordedStream{ServerStream: stream, ctx: ctx, of: o, check: g.checkFirst(ctx, info.FullMethod)})
		})
	})
}

// handle runs a call. If the call is not recorded, handle passes nil to the function call.
func (g Interceptor) handle(ctx context.Context, method string, call func(context.Context, *recordedCall) error) error {
	if err := g.RejectUnclaimed(method); err != nil {
		return err
	}
	if g.caller != nil {
		ctx = metadata.NewIncomingContext(ctx, g.caller.Metadata())
	}
	if !g.Audited(method) {
		return plainStatus(panicError(call(ctx, nil)))
	}
	by := api.CallerFromContext(ctx)
	o := &recordedCall{log: g.AuditLog, start: time.Now(), call: audit.Call{Subject: by.Subject, Serial: by.Serial, Role: by.Role, Peer: by.Peer, Method: method}}
	err := plainStatus(panicError(call(context.WithValue(ctx, recordedCallKey{}, o), o)))
	o.end(err)
	return err
}

// recordedCall is a call that is recorded. Its methods are safe for concurrent use, and for nil,
// which is a call that is not recorded.
type recordedCall struct {
	log   *AuditLog
	start time.Time
	call  audit.Call

	once      sync.Once
	rejected  error // why the call was rejected at its start
	target    atomic.Pointer[string]
	sent      atomic.Bool            // the caller has received an answer
	unchanged atomic.Bool            // the handler changed no data
	approvers atomic.Pointer[string] // names
}

type recordedCallKey struct{}

// SetUnchanged marks the call of a context, which succeeds, as a call that changed no data.
func SetUnchanged(ctx context.Context) {
	if o, ok := ctx.Value(recordedCallKey{}).(*recordedCall); ok {
		o.unchanged.Store(true)
	}
}

// setTarget stores the target of the call.
func (o *recordedCall) setTarget(what string) {
	if o != nil {
		o.target.Store(&what)
	}
}

// begin records the start and the target of the call in the journal. If inRecord is true, it also
// records them in the record of rejected calls and starts. If the audit log cannot be written,
// begin rejects the call, unless its audit rule is optional.
func (o *recordedCall) begin(target string, inRecord bool) error {
	if o == nil {
		return nil
	}
	o.once.Do(func() {
		o.setTarget(target)
		o.call.Target = target
		if mayChange(o.call.Role) {
			o.call.ID = rand.Text()[:16]
		}
		c := o.call
		if err := o.log.within(func(ctx context.Context) error { return o.log.recordStart(ctx, c, inRecord) }); err != nil && !api.AuditRuleOf(o.call.Method).GetOptional() {
			o.log.deps.Event("failure", err.Error())
			o.call.ID, o.rejected = "", status.Errorf(codes.Unavailable,
				"%s: refused, nothing was changed: cannot write the audit log (%v); free space on STATE, or reboot the machine", o.call.Method, err)
		}
	})
	return o.rejected
}

// recordStart writes the ended calls that could not be written before, and then records the start
// of a call. If ctx ends during the wait, the call was already rejected or runs without its start
// in the journal. recordStart then removes a start that it has written: otherwise the next boot
// would record the call as interrupted.
func (l *AuditLog) recordStart(ctx context.Context, c audit.Call, inRecord bool) error {
	if l.changes == nil {
		return errNoRecord
	}
	if err := l.flush(); err != nil {
		return err
	}
	if c.ID != "" {
		if err := l.inProgress.Begin(time.Now(), bounded(c)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), l.inProgress.End(c.ID))
		}
	}
	if inRecord {
		c.Status = audit.Started
		l.RecordRefused(c)
	}
	return nil
}

// end records the result of the call.
func (o *recordedCall) end(err error) {
	c := o.call
	if about := o.target.Load(); about != nil {
		c.Target = *about
	}
	code := status.Code(err)
	c.Status, c.Duration = code.String(), time.Since(o.start)
	if err != nil {
		c.Reason = status.Convert(err).Message()
	}
	if by := o.approvers.Load(); by != nil {
		c.Approvers = *by
	}
	w := effectOf(c, code, o.sent.Load(), o.unchanged.Load())
	if o.rejected != nil || w == effectPossible && !o.log.changesLimit.Allow(callerKey(c)) {
		w = effectNone
	}
	if w != effectNone {
		o.log.Record(c)
		return
	}
	o.log.RecordRefused(c)
	if c.ID != "" {
		if err := o.log.within(func(context.Context) error { return o.log.inProgress.End(c.ID) }); err != nil {
			o.log.deps.Event("failure", err.Error())
		}
	}
}

// recordedStream is the stream of a call. The call starts with the first request on the stream.
type recordedStream struct {
	grpc.ServerStream
	ctx   context.Context
	of    *recordedCall
	check func(request any) error // rejects the stream by its first request
}

// Context implements grpc.ServerStream.
func (s *recordedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *recordedStream) RecvMsg(request any) error {
	if err := s.ServerStream.RecvMsg(request); err != nil {
		return err
	}
	if s.of != nil {
		if err := s.of.begin(target(s.of.call.Method, request, nil), true); err != nil {
			return err
		}
	}
	return s.check(request)
}

// SendMsg implements grpc.ServerStream.
func (s *recordedStream) SendMsg(answer any) error {
	if s.of != nil {
		s.of.sent.Store(true)
	}
	return s.ServerStream.SendMsg(answer)
}

// panicError returns the error for the caller of a call that panicked.
func panicError(err error) error {
	if e := (*panics.Error)(nil); errors.As(err, &e) {
		return status.Error(codes.Internal, e.Error()+"; the events contain the stack (`orlopctl events`)")
	}
	return err
}

// statusPrefix is the text that gRPC puts before the message of a status in an error.
var statusPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// plainStatus removes gRPC's prefix from the message of an error. The message has the prefix if the
// error wraps, joins or quotes a status.
func plainStatus(err error) error {
	if err == nil || !statusPrefix.MatchString(status.Convert(err).Message()) {
		return err
	}
	s := status.Convert(err).Proto()
	s.Message = statusPrefix.ReplaceAllString(s.Message, "")
	return status.FromProto(s).Err()
}
