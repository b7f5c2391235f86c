package debug

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/kernel/capture"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// newTools returns the tools of a machine without services, and a function that shuts the machine
// down.
func newTools(t *testing.T) (tools *Tools, shutDown func()) {
	stopping, shutDown := context.WithCancel(t.Context())
	return New(Deps{
		Stopping: stopping.Done(), Services: func() []supervise.Service { return nil }, Event: func(string, string, string) {},
	}), shutDown
}

// answers is the stream of a capture.
type answers struct {
	ctx  context.Context
	sent chan *api.CaptureResponse
}

func (s *answers) send(r *api.CaptureResponse) error {
	select {
	case s.sent <- r:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// TestCapture checks that a capture ends after the requested number of packets, at its timeout,
// when the caller disconnects, and at shutdown. At most two captures run at the same time.
func TestCapture(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.SetUp(t, "lo", true)
	a, shutDown := newTools(t)
	begin := func(r *api.CaptureRequest) (s *answers, leave func(), ended chan error) {
		t.Helper()
		s = &answers{sent: make(chan *api.CaptureResponse)}
		s.ctx, leave = context.WithCancel(t.Context())
		ended = make(chan error, 1)
		go func() { ended <- a.Capture(s.ctx, r, "a test", s.send) }()
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
		if err := a.Capture(t.Context(), c.r, "a test", nil); status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%v: %v; want %q", c.r, err, c.want)
		}
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("when the caller leaves: %v", err)
	}
	a.captures <- struct{}{} // waits until the place is free
	<-a.captures
	for _, c := range []struct {
		r    *api.CaptureRequest
		code codes.Code
	}{
		{&api.CaptureRequest{Link: "nope"}, codes.NotFound},
		{&api.CaptureRequest{Link: "lo", Filter: bytes.Repeat([]byte{0xff}, 8)}, codes.InvalidArgument},
	} {
		if err := a.Capture(t.Context(), c.r, "a test", nil); status.Code(err) != c.code {
			t.Errorf("%v: %v", c.r, err)
		}
	}
	failed := status.Error(codes.FailedPrecondition, "the link is down")
	send := func(*api.CaptureResponse) error { return failed }
	if err := a.Capture(t.Context(), &api.CaptureRequest{Link: "lo"}, "a test", send); status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "the link is down" {
		t.Errorf("when a message cannot be sent: %v", status.Convert(err))
	}
	shutDown()
	if err := <-endedToo; status.Code(err) != codes.Unavailable {
		t.Errorf("when the machine is shutting down: %v", err)
	}
	leaveToo()
	for range maxCaptures { // all places are free again
		a.captures <- struct{}{}
	}
}
