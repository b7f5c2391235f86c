package main

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/panics"
)

// guard stands before every call that comes from apid: it has the call recorded (audit.go), and a
// panic end only that (program.go).
type guard struct {
	m       *machine
	audited func(method string) bool // apid.Mutates
}

func (g guard) unary(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	err = g.pass(ctx, info.FullMethod, func(ctx context.Context, o *ongoing) error {
		if err := o.begin(target(r, nil), false); err != nil {
			return err
		}
		err := panics.Do("call "+info.FullMethod, func() (err error) { answer, err = handle(ctx, r); return err })
		o.about(target(r, answer))
		return err
	})
	return answer, err
}

func (g guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return g.pass(stream.Context(), info.FullMethod, func(ctx context.Context, o *ongoing) error {
		return panics.Do("call "+info.FullMethod, func() error { return handle(srv, &notedStream{ServerStream: stream, ctx: ctx, of: o}) })
	})
}

// pass makes a call. What is given to it is nil for a call that is not on record.
func (g guard) pass(ctx context.Context, method string, call func(context.Context, *ongoing) error) error {
	if err := g.m.beforeOwner(method); err != nil {
		return err
	}
	if !g.audited(method) {
		return failedProgram(call(ctx, nil))
	}
	o := &ongoing{m: g.m, start: time.Now(), call: audit.Call{
		Subject: said(ctx, apid.MetadataSubject), Serial: said(ctx, apid.MetadataSerial), Role: said(ctx, apid.MetadataRole),
		Peer: said(ctx, apid.MetadataPeer), Method: method,
	}}
	err := failedProgram(call(context.WithValue(ctx, ongoingKey{}, o), o))
	o.end(err)
	return err
}

// ongoing is a call that is on record. Its methods may be called at once, and on nil, which is a
// call that is not.
type ongoing struct {
	m     *machine
	start time.Time
	call  audit.Call

	once      sync.Once
	refused   error // why it could not begin
	target    atomic.Pointer[string]
	sent      atomic.Bool // the caller has had an answer
	unchanged atomic.Bool // the handler says that it did nothing
}

type ongoingKey struct{}

// didNothing says that the call of a context, which succeeds, has changed nothing.
func didNothing(ctx context.Context) {
	if o, ok := ctx.Value(ongoingKey{}).(*ongoing); ok {
		o.unchanged.Store(true)
	}
}

// about notes what the call is about.
func (o *ongoing) about(what string) {
	if o != nil {
		o.target.Store(&what)
	}
}

// begin writes down that the call begins, and what it is about; told: in the record too. A call
// that changes something and cannot be written down is refused.
func (o *ongoing) begin(what string, told bool) error {
	if o == nil {
		return nil
	}
	o.once.Do(func() {
		o.about(what)
		o.call.Target = what
		if mayChange(o.call.Role) {
			o.call.ID = rand.Text()[:16]
		}
		if err := o.m.recordBeginning(o.call, told); err != nil && !unstoppable[o.call.Method] {
			o.m.events.add("audit", "failure", err.Error())
			o.call.ID, o.refused = "", status.Errorf(codes.Unavailable,
				"%s: refused, nothing was changed: the record of calls cannot be written (%v); make room on STATE, or restart the machine", o.call.Method, err)
		}
	})
	return o.refused
}

// unstoppable are the calls that are made although the record cannot be written: those by which a
// machine with a bad disk is switched off, restarted or reset, by which a stolen certificate is
// revoked, by which an object that keeps Kubernetes from serving is taken out, and by which it is
// found out what is wrong, as far as everybody who may look may look at that.
var unstoppable = map[string]bool{
	api.Machine_Reboot_FullMethodName: true, api.Machine_Shutdown_FullMethodName: true, api.Machine_Reset_FullMethodName: true,
	api.Trust_Revoke_FullMethodName: true, api.Cluster_Suspend_FullMethodName: true, api.Cluster_Resume_FullMethodName: true,
	api.Machine_ReadFile_FullMethodName: true, api.Machine_ListFiles_FullMethodName: true, api.Machine_Relay_FullMethodName: true,
}

// recordBeginning writes down that a call begins. First what could not be written before.
func (m *machine) recordBeginning(c audit.Call, told bool) error {
	r := m.calls
	if r.changes == nil {
		return errNoRecord
	}
	r.mu.Lock()
	err := r.flushLocked()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if c.ID != "" {
		if err := r.going.Begin(time.Now(), bounded(c)); err != nil {
			return err
		}
	}
	if told {
		c.Status = audit.Started
		m.recordRefused(c)
	}
	return nil
}

// end records what came of the call.
func (o *ongoing) end(err error) {
	c := o.call
	if about := o.target.Load(); about != nil {
		c.Target = *about
	}
	code := status.Code(err)
	c.Status, c.Duration = code.String(), time.Since(o.start)
	if err != nil {
		c.Reason = status.Convert(err).Message()
	}
	w := weigh(c, code, o.sent.Load(), o.unchanged.Load())
	if o.refused != nil || w == doubtful && !o.m.calls.spare.allowed(whose(c)) {
		w = nothing
	}
	if w != nothing {
		o.m.record(c)
		return
	}
	o.m.recordRefused(c)
	if c.ID != "" {
		if err := o.m.calls.going.End(c.ID); err != nil {
			o.m.events.add("audit", "failure", err.Error())
		}
	}
}

// notedStream is a stream of a call, which begins with its first request.
type notedStream struct {
	grpc.ServerStream
	ctx context.Context
	of  *ongoing
}

// Context implements grpc.ServerStream.
func (s *notedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *notedStream) RecvMsg(request any) error {
	if err := s.ServerStream.RecvMsg(request); err != nil {
		return err
	}
	if s.of == nil {
		return nil
	}
	return s.of.begin(target(request, nil), true)
}

// SendMsg implements grpc.ServerStream.
func (s *notedStream) SendMsg(answer any) error {
	if s.of != nil {
		s.of.sent.Store(true)
	}
	return s.ServerStream.SendMsg(answer)
}
