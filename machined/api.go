package main

import (
	"context"

	"google.golang.org/grpc"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
)

// The methods of the API: each calls the responsible code and translates its error. apid has
// authorized the call before; only root and apid can connect to the socket.

// register registers the services on the server.
func (m *machine) register(s *grpc.Server) {
	api.RegisterUpgradeServer(s, upgradeAPI{m: m})
	api.RegisterAuditServer(s, auditAPI{m: m})
	m.api.Register(s)
}

// caller returns the caller of a call, for events.
func caller(ctx context.Context) string { return callerid.FromContext(ctx).String() }

// endOfStream is the status of a stream that the caller ended.
func endOfStream(err error) error { return machinedapi.EndOfStream(err) }
