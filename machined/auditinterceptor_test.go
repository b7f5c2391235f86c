package main

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/cell"
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

// TestRelayOnRecord checks that a relay is recorded with its caller and target, for every result.
func TestRelayOnRecord(t *testing.T) {
	m := recording(t, audit.DefaultSize)
	m.active, m.network.State = activeconfig.New(activeconfig.Deps{}), cell.New(network.State{})
	m.setMembers(func(*membership.Deps) {})
	server := grpc.NewServer(grpc.StreamInterceptor(auditInterceptor{m: m, audited: apid.Mutates()}.stream))
	t.Cleanup(server.Stop)
	machinedapi.New(machinedapi.Deps{Machine: machinedapi.MachineDeps{PeerEndpoint: m.members.Peers.Endpoint}}).Register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), callerid.Caller{Lineage: "1a"}.Metadata()), 20*time.Second)
	t.Cleanup(cancel)
	for target, code := range map[string]codes.Code{"10.0.0.12": codes.FailedPrecondition, "m2.example.com": codes.InvalidArgument, "127.0.0.1": codes.InvalidArgument} {
		stream, err := api.NewMachineClient(conn).Relay(ctx)
		if err == nil {
			err = stream.Send(&api.RelayData{Target: target})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != code {
			t.Errorf("%s: %v", target, err)
		}
	}
	seen := map[string]bool{}
	for _, e := range entries(t, m.callRecords.refused, audit.Refused) {
		seen[e.Target+" "+e.Status] = true
	}
	// start and end of each
	if want := "machine 10.0.0.12 FailedPrecondition"; len(seen) != 6 || !seen[want] {
		t.Errorf("%v; want %s", seen, want)
	}
}
