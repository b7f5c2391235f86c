package api

import (
	"context"

	"github.com/orlop-os/orlop/pkg/api"
)

// Certificates issues, lists and revokes the certificates of callers (package membership of
// machined). The errors are gRPC statuses.
type Certificates interface {
	Issue(by api.Caller, r *api.IssueRequest) (*api.IssueResponse, error)
	Renew(by api.Caller, r *api.RenewRequest) (*api.IssueResponse, error)
	ListCertificates() *api.ListCertificatesResponse
	GetRevocations(r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error)
	Revoke(ctx context.Context, by api.Caller, r *api.RevokeRequest) (out *api.RevokeResponse, unchanged bool, err error)
}

type trustService struct {
	api.UnimplementedTrustServer
	certificates Certificates
}

func (s trustService) Issue(ctx context.Context, r *api.IssueRequest) (*api.IssueResponse, error) {
	return s.certificates.Issue(api.CallerFromContext(ctx), r)
}

func (s trustService) Renew(ctx context.Context, r *api.RenewRequest) (*api.IssueResponse, error) {
	return s.certificates.Renew(api.CallerFromContext(ctx), r)
}

func (s trustService) ListCertificates(context.Context, *api.ListCertificatesRequest) (*api.ListCertificatesResponse, error) {
	return s.certificates.ListCertificates(), nil
}

func (s trustService) GetRevocations(_ context.Context, r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
	return s.certificates.GetRevocations(r)
}

func (s trustService) Revoke(ctx context.Context, r *api.RevokeRequest) (*api.RevokeResponse, error) {
	out, unchanged, err := s.certificates.Revoke(ctx, api.CallerFromContext(ctx), r)
	if unchanged {
		SetUnchanged(ctx)
	}
	return out, err
}
