package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit/audittest"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
)

// fakeStream is a stream with only a context.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }

// TestCallPanics checks that a panic fails only the call in which it occurs. The audit log records
// the call with its caller, and the panic; an event has the stack. The health counts the panic, and
// a version on trial is rolled back.
func TestCallPanics(t *testing.T) {
	// The clock of synctest does not advance during a write, so a slow disk does not cause a
	// timeout of the audit log.
	synctest.Test(t, func(t *testing.T) {
		m := controlPlane(t)
		m.pairing, m.reports = unpaired(), recording(t).reports
		panics.OnPanic(m.reports.panics.Add)
		t.Cleanup(func() { panics.OnPanic(nil) })
		if have := (&api.HealthResponse{Healthy: true}); true {
			if health.Add(have, (events.PanicState{}).Check()); !have.Healthy || len(have.Checks) != 0 || (events.PanicState{}).Reason("2") != "" {
				t.Errorf("before the first panic: %v", have)
			}
		}

		g := interceptorOf(m)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(api.MetadataSubject, "CN=admin", api.MetadataRole, "admin"))
		var nothing *config.Config
		_, err := g.Unary(ctx, &api.ResetRequest{}, &grpc.UnaryServerInfo{FullMethod: api.Machine_Reboot_FullMethodName}, func(context.Context, any) (any, error) {
			return nothing.Machine.Metadata.Name, nil // as if the configuration had disappeared
		})
		if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "nil pointer") {
			t.Errorf("a call that panics: %v", err)
		}
		err = g.Stream(nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: api.Machine_Version_FullMethodName}, func(any, grpc.ServerStream) error { panic("a fake") })
		if status.Code(err) != codes.Internal {
			t.Errorf("a stream that panics: %v", err)
		}
		// The handler starts a goroutine that panics, and waits for its end.
		serve := machinedapi.Serve(m.power.Running().Done())
		version := func(err error) error {
			_, got := g.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: api.Machine_Version_FullMethodName}, func(context.Context, any) (any, error) { return nil, err })
			return got
		}
		err = version(serve(ctx, func(context.Context, func()) error { panic("a fake below") }))
		if status.Code(err) != codes.Internal {
			t.Errorf("a call with a goroutine that panics: %v", err)
		}
		if err := version(nil); err != nil {
			t.Errorf("the next call: %v", err)
		}

		now, _ := m.reports.panics.State().Get()
		have := &api.HealthResponse{Healthy: true}
		health.Add(have, now.Check())
		if why := now.Reason("2"); !strings.HasPrefix(why, "version 2 failed its checks: giving a bundle or an image: panic: ") {
			t.Errorf("the reason for the rollback of a version on trial is %q", why)
		}
		if now.Panics != 3 || !have.Healthy || len(have.Checks) != 1 || !strings.Contains(have.Checks[0].Detail, "panicked 3 times") {
			t.Errorf("after three panics: %+v, %v", now, have)
		}
		now.BackingOff = []string{"snapshots"}
		if health.Add(have, now.Check()); have.Healthy {
			t.Error("the machine is healthy although a task backs off")
		}
		stack := false
		for _, e := range m.reports.events.After(0) {
			stack = stack || e.Kind == "stack" && strings.Contains(e.Message, "TestCallPanics")
		}
		if !stack {
			t.Error("no event has the stack of the panic")
		}
		changes, _ := m.reports.auditLog.Records()
		got := map[string]int{}
		for _, e := range audittest.Entries(t, changes, "") {
			got[e.Role+" "+e.Method+" "+e.Status]++
		}
		if got["nobody panic Internal"] != 3 || got["admin "+api.Machine_Reboot_FullMethodName+" Internal"] == 0 {
			t.Errorf("the audit log has the entries %v", got)
		}
	})
}

// TestConfigurationGoes checks that no call panics or blocks if the configuration disappears
// between two steps of the call. This happens when a trial reverts to an unreadable configuration.
func TestConfigurationGoes(t *testing.T) {
	m := controlPlane(t)
	whole, _ := m.config.active.Cell().Get()
	_, request := newRequest(t)
	ctx, by := t.Context(), from(operator, "10.0.0.5:1")
	stop, flapping := make(chan struct{}), sync.WaitGroup{}
	flapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				m.config.active.Cell().Set(activeconfig.Active{Problem: "it cannot be read"})
				m.config.active.Cell().Set(whole)
			}
		}
	})
	for range 300 {
		_, _ = m.members.Server.CreateTicket(ctx, by, &api.CreateTicketRequest{Name: "w1", Csr: request})
		_, _ = m.members.Server.RemoveMember(ctx, by, &api.RemoveMemberRequest{Name: "nobody"})
		_, _ = m.members.Requests.Deny(ctx, &api.DenyRequest{Name: "w1"})
		_, _ = m.members.Server.GetMembership(by, &api.GetMembershipRequest{})
		m.members.NodeGC.Collect(t.Context())
		_, _ = m.domains.drain.Drain(t.Context(), drain.Order{})
	}
	close(stop)
	flapping.Wait()
}
