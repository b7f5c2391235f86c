package api

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/pkg/api"
)

// called returns the context of a call by machine m2 with a role and a ticket.
func called(t *testing.T, role, ticket string) context.Context {
	by := api.Caller{Role: role, Ticket: ticket, Name: "m2"}
	return metadata.NewIncomingContext(t.Context(), by.Metadata())
}
