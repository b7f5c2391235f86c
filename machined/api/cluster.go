package api

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// Members are the members of the cluster (package membership of machined). The errors are gRPC
// statuses.
type Members interface {
	CreateTicket(ctx context.Context, by api.Caller, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error)
	Join(ctx context.Context, by api.Caller, r *api.JoinRequest) (*api.JoinResponse, error)
	ListMembers() *api.ListMembersResponse
	RemoveMember(ctx context.Context, by api.Caller, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error)
	GetMembership(by api.Caller, r *api.GetMembershipRequest) (*api.GetMembershipResponse, error)
	ReplicateMembership(ctx context.Context, by api.Caller, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error)
	Vote(by api.Caller, r *api.VoteRequest) (*api.VoteResponse, error)
}

// ClusterHealth is the health of the whole cluster (package clusterhealth of machined). The errors
// are gRPC statuses.
type ClusterHealth interface {
	ClusterHealth(ctx context.Context, r *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error)
	ReportMachine(ctx context.Context, by api.Caller, r *api.ReportMachineRequest) (*api.ReportMachineResponse, error)
}

// JoinRequests are the requests of machines without a ticket (package membership of machined). The
// errors are gRPC statuses.
type JoinRequests interface {
	ListPending() (*api.ListPendingResponse, error)
	Approve(ctx context.Context, by api.Caller, r *api.ApproveRequest) (unchanged bool, err error)
	Deny(ctx context.Context, r *api.DenyRequest) (*api.DenyResponse, error)
}

// ClusterDeps are the dependencies of service Cluster.
type ClusterDeps struct {
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// WatchHealth calls each with the health, now and after each change, until each returns false.
	WatchHealth   func(ctx context.Context, each func(*api.HealthResponse) (more bool, err error)) error
	ClusterHealth ClusterHealth
	Members       Members
	// DrainMember evicts the pods of another machine before its removal, and continues if the
	// caller disconnects. undo makes the node schedulable again if the removal fails.
	DrainMember  func(node string, policy config.Drain, by string) (undo func(), err error)
	JoinRequests JoinRequests
	Suspended    Suspended
}

// Suspended are the suspended Kubernetes objects of this machine. The errors are gRPC statuses.
type Suspended interface {
	Suspend(ctx context.Context, by api.Caller, r *api.SuspendRequest) (*api.SuspendResponse, error)
	Resume(ctx context.Context, by api.Caller, r *api.ResumeRequest) (*api.ResumeResponse, error)
	List() (*api.ListSuspendedResponse, error)
}

type clusterService struct {
	api.UnimplementedClusterServer
	deps  ClusterDeps
	event func(source, kind, message string)
}

func (s clusterService) Health(r *api.HealthRequest, stream grpc.ServerStreamingServer[api.HealthResponse]) error {
	var last *api.HealthResponse
	err := s.deps.WatchHealth(stream.Context(), func(health *api.HealthResponse) (more bool, err error) {
		if last == nil || !proto.Equal(last, health) {
			if err := stream.Send(health); err != nil {
				return false, err
			}
			last = health
		}
		return !r.Once && !health.Healthy, nil
	})
	return endOfStream(err)
}

func (s clusterService) ClusterHealth(ctx context.Context, r *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error) {
	return s.deps.ClusterHealth.ClusterHealth(ctx, r)
}

func (s clusterService) ReportMachine(ctx context.Context, r *api.ReportMachineRequest) (*api.ReportMachineResponse, error) {
	return s.deps.ClusterHealth.ReportMachine(ctx, api.CallerFromContext(ctx), r)
}

func (s clusterService) CreateTicket(ctx context.Context, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	return s.deps.Members.CreateTicket(ctx, api.CallerFromContext(ctx), r)
}

func (s clusterService) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	return s.deps.Members.Join(ctx, api.CallerFromContext(ctx), r)
}

func (s clusterService) ListMembers(context.Context, *api.ListMembersRequest) (*api.ListMembersResponse, error) {
	return s.deps.Members.ListMembers(), nil
}

func (s clusterService) RemoveMember(ctx context.Context, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	by := api.CallerFromContext(ctx)
	if r.Drain == nil {
		return s.deps.Members.RemoveMember(ctx, by, r)
	}
	policy, err := drainPolicy(r.Drain)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(s.deps.Members.ListMembers().GetMembers(), func(m *api.Member) bool { return m.Name == r.Name }) {
		return nil, status.Errorf(codes.NotFound, "removal: no machine %s has joined, so its pods cannot be evicted; repeat the call without a drain to remove its tickets", r.Name)
	}
	undo, err := s.deps.DrainMember(r.Name, policy, by.String())
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "removal refused: %v", err)
	}
	// The removal continues even if the caller has disconnected during the drain.
	answer, err := s.deps.Members.RemoveMember(context.WithoutCancel(ctx), by, r)
	if err != nil {
		undo()
	}
	return answer, err
}

func (s clusterService) GetMembership(ctx context.Context, r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
	return s.deps.Members.GetMembership(api.CallerFromContext(ctx), r)
}

func (s clusterService) ReplicateMembership(ctx context.Context, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error) {
	return s.deps.Members.ReplicateMembership(ctx, api.CallerFromContext(ctx), r)
}

func (s clusterService) Vote(ctx context.Context, r *api.VoteRequest) (*api.VoteResponse, error) {
	return s.deps.Members.Vote(api.CallerFromContext(ctx), r)
}

func (s clusterService) ListPending(context.Context, *api.ListPendingRequest) (*api.ListPendingResponse, error) {
	return s.deps.JoinRequests.ListPending()
}

func (s clusterService) Approve(ctx context.Context, r *api.ApproveRequest) (*api.ApproveResponse, error) {
	unchanged, err := s.deps.JoinRequests.Approve(ctx, api.CallerFromContext(ctx), r)
	if err != nil {
		return nil, err
	}
	if unchanged {
		SetUnchanged(ctx)
	}
	return &api.ApproveResponse{}, nil
}

func (s clusterService) Deny(ctx context.Context, r *api.DenyRequest) (*api.DenyResponse, error) {
	return s.deps.JoinRequests.Deny(ctx, r)
}

func (s clusterService) Suspend(ctx context.Context, r *api.SuspendRequest) (*api.SuspendResponse, error) {
	return s.deps.Suspended.Suspend(ctx, api.CallerFromContext(ctx), r)
}

func (s clusterService) Resume(ctx context.Context, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	return s.deps.Suspended.Resume(ctx, api.CallerFromContext(ctx), r)
}

func (s clusterService) ListSuspended(context.Context, *api.ListSuspendedRequest) (*api.ListSuspendedResponse, error) {
	return s.deps.Suspended.List()
}
