package api

import (
	"context"

	"github.com/orlop-os/orlop/pkg/api"
)

// InternalDeps are the dependencies of service ApidInternal.
type InternalDeps struct {
	// Pair claims an unclaimed machine.
	Pair func(ctx context.Context, r *api.PairRequest) *api.PairResponse
	// RequestJoin adds the join request of a machine without a ticket.
	RequestJoin func(r *api.RequestJoinRequest) *api.RequestJoinResponse
	// ReportInventory adds a machine without a configuration to the list of waiting machines.
	ReportInventory func(r *api.ReportInventoryRequest) *api.ReportInventoryResponse
}

// internalService is service ApidInternal. apid calls it itself, and never for a client.
type internalService struct {
	api.UnimplementedApidInternalServer
	deps InternalDeps
	log  *AuditLog
}

func (s internalService) Pair(ctx context.Context, r *api.PairRequest) (*api.PairResponse, error) {
	return s.deps.Pair(context.WithoutCancel(ctx), r), nil
}

func (s internalService) RequestJoin(_ context.Context, r *api.RequestJoinRequest) (*api.RequestJoinResponse, error) {
	return s.deps.RequestJoin(r), nil
}

func (s internalService) ReportInventory(_ context.Context, r *api.ReportInventoryRequest) (*api.ReportInventoryResponse, error) {
	return s.deps.ReportInventory(r), nil
}

func (s internalService) RecordRefusal(_ context.Context, r *api.RecordRefusalRequest) (*api.RecordRefusalResponse, error) {
	s.log.recordRefusal(r)
	return &api.RecordRefusalResponse{}, nil
}
