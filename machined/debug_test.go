package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/capture"
	"github.com/orlop-os/orlop/pkg/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// answers is the stream of a capture with a single request.
type answers struct {
	grpc.ServerStream
	ctx     context.Context
	request *api.CaptureRequest
	sent    chan *api.CaptureResponse
}

func (s *answers) Context() context.Context { return s.ctx }

func (s *answers) RecvMsg(m any) error {
	m.(*api.CaptureRequest).Link = s.request.Link
	return nil
}

func (s *answers) Send(r *api.CaptureResponse) error {
	select {
	case s.sent <- r:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func newDebug(t *testing.T) debugAPI {
	m := &machine{captures: make(chan struct{}, maxCaptures), events: newEventLog(), services: supervise.NewManager(supervise.Config{})}
	m.runCtx, m.cancelRun = context.WithCancelCause(t.Context())
	return debugAPI{m: m}
}

// TestCapture checks that a capture ends with enough packets, at its timeout, when the caller
// disconnects and at shutdown, and that at most two run.
func TestCapture(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.SetUp(t, "lo", true)
	a := newDebug(t)
	begin := func(r *api.CaptureRequest) (s *answers, leave func(), ended chan error) {
		t.Helper()
		s = &answers{request: r, sent: make(chan *api.CaptureResponse)}
		s.ctx, leave = context.WithCancel(t.Context())
		ended = make(chan error, 1)
		go func() { ended <- a.Capture(r, s) }()
		select {
		case first := <-s.sent:
			if first.LinkType != uint32(capture.Ethernet) || len(first.Packets) != 0 {
				t.Errorf("the first message is %v", first)
			}
		case err := <-ended:
			t.Fatal(err)
		}
		return s, leave, ended
	}
	ping := func() {
		conn, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
	}

	one, leave, ended := begin(&api.CaptureRequest{Link: "lo", Count: 3})
	ping()
	var packets []*api.Packet
	for len(packets) < 3 {
		packets = append(packets, (<-one.sent).Packets...)
		ping()
	}
	if err := <-ended; err != nil || len(packets) != 3 {
		t.Errorf("%d packets of 3, %v", len(packets), err)
	}
	leave()
	if p := packets[0]; p.TimeNs < time.Now().Add(-time.Minute).UnixNano() || int(p.Length) != len(p.Data) || len(p.Data) < 42 {
		t.Errorf("the first packet is %v", p)
	}

	timed, leave, ended := begin(&api.CaptureRequest{Link: "lo", Duration: durationpb.New(time.Millisecond)})
	if last := <-timed.sent; last.Dropped != 0 {
		t.Errorf("the last message is %v", last)
	}
	if err := <-ended; err != nil {
		t.Errorf("when the time is up: %v", err)
	}
	leave()

	_, leave, ended = begin(&api.CaptureRequest{Link: "lo"})
	_, leaveToo, endedToo := begin(&api.CaptureRequest{Link: "lo"})
	for _, c := range []struct {
		r    *api.CaptureRequest
		code codes.Code
		want string
	}{
		{&api.CaptureRequest{Link: "lo"}, codes.ResourceExhausted, "2 captures run at present"},
		{&api.CaptureRequest{Link: "lo", Duration: durationpb.New(maxCapture + 1)}, codes.InvalidArgument, "is not between 0 and 10m0s"},
		{&api.CaptureRequest{Link: "lo", Filter: []byte("x")}, codes.InvalidArgument, "1 bytes are not a program"},
		{&api.CaptureRequest{Link: "lo", Snaplen: 1 << 30}, codes.InvalidArgument, "exceed the limit of 262144"},
	} {
		if err := a.Capture(c.r, &answers{ctx: t.Context()}); status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%v: %v; want %q", c.r, err, c.want)
		}
	}
	leave()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("when the caller leaves: %v", err)
	}
	a.m.captures <- struct{}{} // waits until the place is free
	<-a.m.captures
	for _, c := range []struct {
		r    *api.CaptureRequest
		code codes.Code
	}{
		{&api.CaptureRequest{Link: "nope"}, codes.NotFound},
		{&api.CaptureRequest{Link: "lo", Filter: bytes.Repeat([]byte{0xff}, 8)}, codes.InvalidArgument},
	} {
		if err := a.Capture(c.r, &answers{ctx: t.Context()}); status.Code(err) != c.code {
			t.Errorf("%v: %v", c.r, err)
		}
	}
	a.m.cancelRun(nil)
	if err := <-endedToo; status.Code(err) != codes.Unavailable {
		t.Errorf("when the machine is shutting down: %v", err)
	}
	leaveToo()
	for range maxCaptures { // all are free again
		a.m.captures <- struct{}{}
	}
}

// TestProfile takes a profile of this process, under its name on a machine.
func TestProfile(t *testing.T) {
	a := newDebug(t)
	answer, err := a.Profile(t.Context(), &api.ProfileRequest{Process: processMachined, Kind: "goroutine"})
	if err != nil || !bytes.HasPrefix(answer.Profile, []byte{0x1f, 0x8b}) {
		t.Errorf("%v, %v", answer, err)
	}
	leaving, leave := context.WithCancel(t.Context())
	leave()
	if _, err := a.Profile(leaving, &api.ProfileRequest{Process: processMachined}); status.Code(err) != codes.Canceled {
		t.Errorf("a caller who has left: %v", err)
	}
	a.m.profileMu.Lock()
	for _, c := range []struct {
		r    *api.ProfileRequest
		code codes.Code
		want string
	}{
		{&api.ProfileRequest{Process: processMachined}, codes.ResourceExhausted, "another profile is being taken"},
		{&api.ProfileRequest{Process: "nope"}, codes.NotFound, `process "nope": has no profiles; processes with profiles: machined`},
		{&api.ProfileRequest{Process: processMachined, Kind: "nope"}, codes.InvalidArgument, "expected one of cpu, heap"},
	} {
		if _, err := a.Profile(t.Context(), c.r); status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%v: %v; want %q", c.r, err, c.want)
		}
	}
}

// TestCaptureIsOnRecord checks that the record of a stream contains its target.
func TestCaptureIsOnRecord(t *testing.T) {
	m := recording(t, audit.DefaultSize)
	g := auditInterceptor{m: m, audited: apid.Mutates()}
	stream := &answers{ctx: t.Context(), request: &api.CaptureRequest{Link: "eth0"}}
	err := g.stream(nil, stream, &grpc.StreamServerInfo{FullMethod: api.Debug_Capture_FullMethodName}, func(_ any, s grpc.ServerStream) error {
		return s.RecvMsg(new(api.CaptureRequest))
	})
	if err != nil {
		t.Fatal(err)
	}
	began, ended := entries(t, m.callRecords.refused, audit.Refused), entries(t, m.callRecords.changes, "")
	if len(began) != 1 || len(ended) != 1 || began[0].Status != audit.Started || began[0].Target != "link eth0" || ended[0].Target != "link eth0" {
		t.Errorf("%+v, %+v", began, ended)
	}
}
