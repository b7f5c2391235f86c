package main

import (
	"context"

	"github.com/orlop-os/orlop/pkg/api"
)

// apidAPI serves the calls of apid on its own behalf.
type apidAPI struct {
	api.UnimplementedApidInternalServer
	m *machine
}

func (a apidAPI) Pair(ctx context.Context, r *api.PairRequest) (*api.PairResponse, error) {
	return a.m.pairing.Pair(context.WithoutCancel(ctx), r), nil
}
