package api

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestFromContext checks that CallerFromContext returns each field that apid sends, and ignores a
// field that is sent twice.
func TestFromContext(t *testing.T) {
	want := Caller{
		Subject: "CN=alice,O=orlop:admin", Name: "alice", Role: "admin", Serial: "1f", Lineage: "1e", Issuer: "sha256:00",
		Ticket: "7", Key: "sha256:11", Peer: "10.0.0.1:4711", Age: "25",
	}
	if got := CallerFromContext(metadata.NewIncomingContext(t.Context(), want.Metadata())); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	twice := metadata.Join(want.Metadata(), metadata.Pairs(MetadataRole, "reader"))
	if got := CallerFromContext(metadata.NewIncomingContext(t.Context(), twice)); got.Role != "" || got.IsAdmin() {
		t.Errorf("role sent twice: %+v", got)
	}
	if got := CallerFromContext(t.Context()); got != (Caller{}) {
		t.Errorf("without metadata: %+v", got)
	}
}

// TestRoles checks which callers IsAdmin, RequireMachine and RequireControlPlane accept.
func TestRoles(t *testing.T) {
	for _, c := range []struct {
		caller                       Caller
		admin, machine, controlPlane bool
	}{
		{Caller{Role: "admin"}, true, false, false},
		{Caller{Role: "reader"}, false, false, false},
		{Caller{Role: "machine", Name: "m1"}, false, true, true},
		{Caller{Role: "machine", Ticket: "7"}, false, true, false},
		{Caller{}, false, false, false},
	} {
		permits := func(err error) bool { return status.Code(err) != codes.PermissionDenied }
		if c.caller.IsAdmin() != c.admin || permits(c.caller.RequireMachine()) != c.machine || permits(c.caller.RequireControlPlane()) != c.controlPlane {
			t.Errorf("%+v", c.caller)
		}
	}
}

// TestString checks the text that events contain for a caller, with and without the caller's
// address.
func TestString(t *testing.T) {
	if got := (Caller{Subject: "CN=a", Peer: "10.0.0.1:1"}).String(); got != "CN=a from 10.0.0.1:1" {
		t.Error(got)
	}
	if got := (Caller{Subject: "CN=a"}).String(); got != "CN=a" {
		t.Error(got)
	}
}
