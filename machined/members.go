package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The membership of the cluster (machined/membership): its wiring, and its methods of the API.

// memberDeps are the dependencies of the membership.
func memberDeps(m *machine) membership.Deps {
	return membership.Deps{
		Config:      cell.Map(m.config, func(now applied) *config.Config { return now.config }),
		Addresses:   cell.Map(m.networkState, addressesOf),
		Files:       membership.Files{Ledger: paths.TrustLedger, Certificates: paths.Membership, OfflineAPI: paths.OfflineAPI},
		Installed:   m.bootMedium == "",
		Identity:    func() *ecdsa.PrivateKey { return m.identity.Load().Key },
		Certificate: servingCertificate,
		Transport:   membership.Transport{Dial: client.Dial, RequestJoin: client.RequestJoin},
		DeleteNodes: func(ctx context.Context, r nodespec.NodeGCRequest) ([]string, error) {
			return runCommand[[]string](ctx, m, paths.UserControllers, "delete-removed-nodes", r)
		},
		APIServerReady: m.apiServerReady,
		StopPods:       m.stopPods,
		Enforce:        m.enforceRevocations,
		Event:          m.events.add,
		Now:            time.Now,
		Floor:          func() time.Time { return m.timeFloor.Now(time.Now()) },
		Running:        m.runCtx,
	}
}

// addressesOf returns the addresses of a network state.
func addressesOf(state network.State) membership.Addresses {
	return membership.Addresses{All: ownAddresses(state), Reachable: state.NodeAddresses}
}

// servingCertificate returns the machine certificate with its key, as apid has them.
func servingCertificate() (tls.Certificate, error) {
	return tls.LoadX509KeyPair(filepath.Join(paths.ApidDir, apid.ServerCertFile), filepath.Join(paths.ApidDir, apid.ServerKeyFile))
}

// apiServerReady reports whether the API server of this machine is ready.
func (m *machine) apiServerReady() bool {
	list, _ := m.services.Status().Get()
	return slices.ContainsFunc(list, func(s supervise.Status) bool {
		return s.Name == nodeplan.ServiceKubeAPI && slices.ContainsFunc(s.Components, func(c supervise.Component) bool {
			return c.Name == componentAPIServer && c.Ready
		})
	})
}

// componentAPIServer is the component name of the API server.
const componentAPIServer = "kube-apiserver"

// enforceRevocations makes the revocations effective in apid and in the API server.
func (m *machine) enforceRevocations(ctx context.Context) error {
	m.reconcileMu.Lock()
	defer m.reconcileMu.Unlock()
	now, _ := m.config.Get()
	state, _ := m.networkState.Get()
	if err := m.configureAPI(ctx, now.config, state); err != nil {
		return err
	}
	if !now.config.IsControlPlane() {
		return nil
	}
	w := m.goal(now.config, state).want
	if errors.Is(w.NodeProblem, nodeplan.ErrNoAddress) || errors.Is(w.NodeProblem, nodeplan.ErrNoNode) {
		return nil // no API server runs yet
	}
	return m.convergeCredentials(ctx, w)
}

// callers returns the CAs of the callers that the machine accepts.
func (m *machine) callers(c *config.Config) (credentials.CallerCAs, error) {
	var out credentials.CallerCAs
	var err error
	if out.Operators, err = ownership.Operators(c); err != nil {
		return out, err
	}
	revoked, damaged := m.members.Ledger.Revocations()
	if c != nil && c.Cluster != nil {
		own := c.Cluster.Spec.PKI
		out.Machines = trusted(own.Machine.Cert, own.Accepted.Machine)
		// It is unknown which of the issued certificates were revoked, so none is valid; the
		// operators' own certificates stay valid.
		if !own.Client.Cert.IsZero() && damaged == nil {
			out.Clients = trusted(own.Client.Cert, own.Accepted.Client)
		}
	}
	out.JoinRequests = membership.AcceptsJoinRequests(c)
	out.Revoked, err = json.Marshal(revoked)
	return out, err
}

// memberID identifies the calling machine, for any of its certificates.
func memberID(ctx context.Context) string { return callerid.FromContext(ctx).ID() }

func (a clusterAPI) CreateTicket(ctx context.Context, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	return a.m.members.Server.CreateTicket(ctx, callerid.FromContext(ctx), r)
}

func (a clusterAPI) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	return a.m.members.Server.Join(ctx, callerid.FromContext(ctx), r)
}

func (a clusterAPI) ListMembers(context.Context, *api.ListMembersRequest) (*api.ListMembersResponse, error) {
	return a.m.members.Server.ListMembers(), nil
}

func (a clusterAPI) RemoveMember(ctx context.Context, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	return a.m.members.Server.RemoveMember(ctx, callerid.FromContext(ctx), r)
}

func (a clusterAPI) GetMembership(ctx context.Context, r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
	return a.m.members.Server.GetMembership(callerid.FromContext(ctx), r)
}

func (a clusterAPI) ReplicateMembership(ctx context.Context, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error) {
	return a.m.members.Server.ReplicateMembership(ctx, callerid.FromContext(ctx), r)
}

func (a clusterAPI) Vote(ctx context.Context, r *api.VoteRequest) (*api.VoteResponse, error) {
	return a.m.members.Server.Vote(callerid.FromContext(ctx), r)
}

func (a clusterAPI) ListPending(context.Context, *api.ListPendingRequest) (*api.ListPendingResponse, error) {
	return a.m.members.Requests.ListPending()
}

func (a clusterAPI) Approve(ctx context.Context, r *api.ApproveRequest) (*api.ApproveResponse, error) {
	unchanged, err := a.m.members.Requests.Approve(ctx, callerid.FromContext(ctx), r)
	if err != nil {
		return nil, err
	}
	if unchanged {
		setUnchanged(ctx)
	}
	return &api.ApproveResponse{}, nil
}

func (a clusterAPI) Deny(ctx context.Context, r *api.DenyRequest) (*api.DenyResponse, error) {
	return a.m.members.Requests.Deny(ctx, r)
}

func (a apidAPI) RequestJoin(_ context.Context, r *api.RequestJoinRequest) (*api.RequestJoinResponse, error) {
	return a.m.members.Requests.RequestJoin(r), nil
}

type trustAPI struct {
	api.UnimplementedTrustServer
	m *machine
}

func (a trustAPI) Issue(ctx context.Context, r *api.IssueRequest) (*api.IssueResponse, error) {
	return a.m.members.Server.Issue(callerid.FromContext(ctx), r)
}

func (a trustAPI) Renew(ctx context.Context, r *api.RenewRequest) (*api.IssueResponse, error) {
	return a.m.members.Server.Renew(callerid.FromContext(ctx), r)
}

func (a trustAPI) ListCertificates(context.Context, *api.ListCertificatesRequest) (*api.ListCertificatesResponse, error) {
	return a.m.members.Server.ListCertificates(), nil
}

func (a trustAPI) GetRevocations(_ context.Context, r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
	return a.m.members.Server.GetRevocations(r)
}

func (a trustAPI) Revoke(ctx context.Context, r *api.RevokeRequest) (*api.RevokeResponse, error) {
	out, unchanged, err := a.m.members.Server.Revoke(ctx, callerid.FromContext(ctx), r)
	if unchanged {
		setUnchanged(ctx)
	}
	return out, err
}
