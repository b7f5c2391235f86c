package api

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/pkg/api"
)

// called is a call of a role, with a ticket for a member.
func called(t *testing.T, role, ticket string) context.Context {
	by := api.Caller{Role: role, Ticket: ticket, Name: "m2"}
	return metadata.NewIncomingContext(t.Context(), by.Metadata())
}
