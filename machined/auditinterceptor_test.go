package main

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
)

// captureStream is the stream of a capture with a single request.
type captureStream struct {
	grpc.ServerStream
	ctx  context.Context
	link string
}

func (s captureStream) Context() context.Context { return s.ctx }

func (s captureStream) RecvMsg(m any) error {
	m.(*api.CaptureRequest).Link = s.link
	return nil
}

// TestCaptureIsOnRecord checks that the record of a stream contains its target.
func TestCaptureIsOnRecord(t *testing.T) {
	m := recording(t, audit.DefaultSize)
	g := auditInterceptor{m: m, audited: apid.Mutates()}
	stream := captureStream{ctx: t.Context(), link: "eth0"}
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
