package machinetest

import (
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// bundled returns the own CA of a cluster and the CAs that it also accepts, as PEM.
func bundled(own config.Certificate, accepted []config.Certificate) []byte {
	return pki.EncodeCerts(append(config.X509s(accepted), own.X509())...)
}

// certificates returns the value of topic "certificates": for each CA of the cluster, the CAs that
// the machine trusts and a certificate that the CA has issued.
func (f *Machine) certificates() any {
	list := []any{}
	c := f.Current()
	if c == nil || c.Cluster == nil {
		return list
	}
	own := c.Cluster.Spec.PKI
	for _, a := range []struct {
		name     string
		own      config.Certificate
		accepted []config.Certificate
	}{{"kubernetes", own.Kubernetes.Cert, own.Accepted.Kubernetes}, {"machine", own.Machine.Cert, own.Accepted.Machine}, {"client", own.Client.Cert, own.Accepted.Client}} {
		for _, cert := range append([]config.Certificate{a.own}, a.accepted...) {
			list = append(list, map[string]any{"file": a.name + ".pem", "authority": true, "serial": pki.Serial(cert.X509())})
		}
		list = append(list, map[string]any{"file": a.name + ".crt", "serial": "1", "issuerKey": hex.EncodeToString(a.own.X509().SubjectKeyId)})
	}
	return list
}

// trustService issues a certificate for every request. It has no ledger, so ListCertificates
// returns constant entries.
type trustService struct {
	api.UnimplementedTrustServer
	f      *Machine
	signed int // number of certificates with the default TTL
}

// Issue implements api.TrustServer.
func (s *trustService) Issue(_ context.Context, r *api.IssueRequest) (*api.IssueResponse, error) {
	return s.sign(pki.Spec{CN: r.Name}, r.Csr, r.Role, r.Ttl.AsDuration())
}

// Renew implements api.TrustServer.
func (s *trustService) Renew(ctx context.Context, r *api.RenewRequest) (*api.IssueResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	spec := pki.Spec{CN: md.Get(api.MetadataName)[0], Lineage: md.Get(api.MetadataLineage)[0], Root: md.Get(api.MetadataIssuer)[0]}
	return s.sign(spec, r.Csr, md.Get(api.MetadataRole)[0], r.Ttl.AsDuration())
}

func (s *trustService) sign(spec pki.Spec, request []byte, role string, ttl time.Duration) (*api.IssueResponse, error) {
	public, err := pki.ParseRequest(request)
	if err != nil {
		return nil, err
	}
	if ttl == 0 {
		s.signed++
		// Each certificate is valid for longer than the previous certificate, so a renewal always
		// extends the validity.
		ttl = time.Hour + time.Duration(s.signed)*time.Minute
	}
	spec.O, spec.Usage, spec.TTL, spec.For = []string{pki.RolePrefix + role}, pki.Client, ttl, public
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	leaf, err := s.f.clients.Issue(spec)
	if err != nil {
		return nil, err
	}
	return &api.IssueResponse{Certificate: leaf.Cert.Raw}, nil
}

// ListCertificates implements api.TrustServer.
func (s *trustService) ListCertificates(context.Context, *api.ListCertificatesRequest) (*api.ListCertificatesResponse, error) {
	at := timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	soon, far := timestamppb.New(at.AsTime().Add(time.Hour)), timestamppb.New(at.AsTime().AddDate(1000, 0, 0))
	return &api.ListCertificatesResponse{
		Issued: []*api.IssuedCertificate{
			{Serial: "1a", Lineage: "1a", Name: "dora", Role: "reader", At: at, Expires: soon, By: "CN=admin,O=orlop:admin"},
			{Serial: "1b", Lineage: "1a", Name: "dora", Role: "reader", At: at, Expires: far, By: "CN=dora,O=orlop:reader"},
			{Serial: "2c", Lineage: "2c", Name: "emil", Role: "admin", At: at, Expires: far, By: "CN=admin\x1b[31m"},
		},
		Revoked: []*api.Revocation{{Name: "emil", At: soon, By: "CN=admin,O=orlop:admin"}},
	}, nil
}

// Revoke implements api.TrustServer.
func (s *trustService) Revoke(_ context.Context, r *api.RevokeRequest) (*api.RevokeResponse, error) {
	if r.Restore && r.Name != "emil" {
		return nil, status.Errorf(codes.FailedPrecondition, "name %q: cannot restore: it is not revoked", r.Name)
	}
	return &api.RevokeResponse{Revocation: &api.Revocation{Lineage: r.Serial, Name: r.Name}}, nil
}
