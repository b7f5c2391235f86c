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
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/audittest"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// unpaired returns the pairing of a machine that shows no code.
func unpaired() *ownership.Pairing {
	return ownership.New(ownership.Deps{Unreadable: func(*config.Config) bool { return false }})
}

// recording returns a machine with an audit log in directories of the test.
func recording(t *testing.T) *machine {
	t.Helper()
	m := &machine{pairing: unpaired(), reports: newReports()}
	dir := t.TempDir()
	if err := m.reports.auditLog.Open(machinedapi.AuditDirs{Changes: dir + "/changes", Refused: dir + "/refused", InProgress: dir + "/going"}); err != nil {
		t.Fatal(err)
	}
	return m
}

// interceptorOf returns the interceptor of a machine.
func interceptorOf(m *machine) machinedapi.Interceptor {
	return machinedapi.Interceptor{AuditLog: m.reports.auditLog, Audited: apid.Mutates(), RejectUnclaimed: m.pairing.RejectUnclaimed}
}

// TestRelayOnRecord checks that a relay is recorded with its caller and target, for every result.
func TestRelayOnRecord(t *testing.T) {
	m := recording(t)
	m.config.active, m.domains.network.State = activeconfig.New(activeconfig.Deps{}), cell.New(network.State{})
	m.setMembers(func(*membership.Deps) {})
	server := grpc.NewServer(grpc.StreamInterceptor(interceptorOf(m).Stream))
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
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), api.Caller{Lineage: "1a"}.Metadata()), 20*time.Second)
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
	_, refused := m.reports.auditLog.Records()
	for _, e := range audittest.Entries(t, refused, audit.Refused) {
		seen[e.Target+" "+e.Status] = true
	}
	// Each of the three relays has an entry for its start and an entry for its end.
	if want := "machine 10.0.0.12 FailedPrecondition"; len(seen) != 6 || !seen[want] {
		t.Errorf("the record has %v; want 6 entries, one of them %s", seen, want)
	}
}
