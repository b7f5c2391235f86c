package machinetest

import (
	"cmp"
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// CreateTicket implements api.ClusterServer. It issues a ticket, signed by the client CA, to every
// caller. Without a CSR, it returns only the configuration of a worker that sends a join request.
func (s *clusterService) CreateTicket(_ context.Context, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	cluster := s.f.Current()
	if cluster == nil || cluster.Cluster == nil {
		return nil, status.Error(codes.FailedPrecondition, "this machine belongs to no cluster; ask a control-plane machine")
	}
	spec := cluster.Cluster.Spec
	worker := config.New(r.Name, config.RoleWorker).WithCluster(cluster.Cluster.Metadata.Name, spec.Endpoint, config.PKI{
		Kubernetes: config.CertKey{Cert: spec.PKI.Kubernetes.Cert}, Machine: config.CertKey{Cert: spec.PKI.Machine.Cert},
	}, config.EncryptionKey{})
	if len(r.Csr) == 0 {
		if !spec.JoinRequests {
			return nil, status.Error(codes.FailedPrecondition, "no machine can ask to be let in: set Cluster.spec.joinRequests")
		}
		worker.Cluster.Spec.JoinRequests = true
		return &api.CreateTicketResponse{Documents: config.Marshal(worker), ControlPlanes: []string{"10.0.0.11"}}, nil
	}
	key, err := pki.ParseRequest(r.Csr)
	if err != nil {
		return nil, err
	}
	leaf, err := s.f.clients.Issue(pki.Spec{CN: r.Name, O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: cmp.Or(r.Ttl.AsDuration(), time.Hour), For: key})
	if err != nil {
		return nil, err
	}
	s.f.mu.Lock()
	s.f.calls.ticket = true
	s.f.mu.Unlock()
	return &api.CreateTicketResponse{Certificate: leaf.Cert.Raw, Documents: config.Marshal(worker), ControlPlanes: []string{"10.0.0.11"}}, nil
}

// ListMembers implements api.ClusterServer.
func (s *clusterService) ListMembers(context.Context, *api.ListMembersRequest) (*api.ListMembersResponse, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if !s.f.calls.ticket {
		return &api.ListMembersResponse{}, nil
	}
	at := timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	return &api.ListMembersResponse{
		Members: []*api.Member{{Name: "w1", Ticket: "1a", Fingerprint: "sha256:00", Address: "10.0.0.21\x1b[31m", Joined: at, Renewed: at, Expires: at}},
		Tickets: []*api.Ticket{{Serial: "2b", Name: "w2", Expires: at, By: "CN=admin,O=orlop:admin"}},
	}, nil
}

// RemoveMember implements api.ClusterServer.
func (s *clusterService) RemoveMember(_ context.Context, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	if r.Name != "w1" {
		return nil, status.Errorf(codes.FailedPrecondition, "machine %q: cannot be removed: it is not a member", r.Name)
	}
	if err := checkDrain("removal", r.Drain); err != nil {
		return nil, err
	}
	return &api.RemoveMemberResponse{Tickets: []string{"1a"}, NodeError: "the API server does not answer"}, nil
}

// asks is the key fingerprint of machine w5, which has sent a join request.
var asks = "sha256:" + strings.Repeat("ab", 32)

// ListPending implements api.ClusterServer.
func (s *clusterService) ListPending(context.Context, *api.ListPendingRequest) (*api.ListPendingResponse, error) {
	return &api.ListPendingResponse{Machines: []*api.PendingMachine{
		{Name: "w5", Address: "10.0.0.25", Fingerprint: asks, Since: timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))},
	}}, nil
}

// Approve implements api.ClusterServer.
func (s *clusterService) Approve(_ context.Context, r *api.ApproveRequest) (*api.ApproveResponse, error) {
	if r.Name != "w5" || r.Fingerprint != asks {
		return nil, status.Errorf(codes.FailedPrecondition, "machine %s: no join request here at present", r.Name)
	}
	return &api.ApproveResponse{}, nil
}

// Deny implements api.ClusterServer.
func (s *clusterService) Deny(_ context.Context, r *api.DenyRequest) (*api.DenyResponse, error) {
	if r.Name != "w5" || r.Fingerprint != asks {
		return nil, status.Errorf(codes.FailedPrecondition, "machine %s: no join request here at present", r.Name)
	}
	return &api.DenyResponse{Unreached: []string{"10.0.0.12: it does not answer"}}, nil
}
