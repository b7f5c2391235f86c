package machinetest

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// Suspend implements api.ClusterServer. The only object of the cluster is the
// ValidatingWebhookConfiguration "policy".
func (s *clusterService) Suspend(_ context.Context, r *api.SuspendRequest) (*api.SuspendResponse, error) {
	if !strings.EqualFold(r.Kind, "validatingwebhookconfiguration") || r.Name != "policy" {
		return nil, status.Errorf(codes.FailedPrecondition, "%s %s: not found", r.Kind, r.Name)
	}
	s.suspended = &api.SuspendedObject{Kind: "validatingwebhookconfiguration", Name: r.Name, At: now, By: "CN=admin"}
	return &api.SuspendResponse{Object: s.suspended}, nil
}

// Resume implements api.ClusterServer.
func (s *clusterService) Resume(_ context.Context, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	if s.suspended == nil {
		return nil, status.Errorf(codes.NotFound, "%s %s: was not suspended on this machine", r.Kind, r.Name)
	}
	o := s.suspended
	s.suspended = nil
	return &api.ResumeResponse{Object: o}, nil
}

// ListSuspended implements api.ClusterServer.
func (s *clusterService) ListSuspended(context.Context, *api.ListSuspendedRequest) (*api.ListSuspendedResponse, error) {
	if s.suspended == nil {
		return &api.ListSuspendedResponse{}, nil
	}
	return &api.ListSuspendedResponse{Objects: []*api.SuspendedObject{s.suspended}}, nil
}
