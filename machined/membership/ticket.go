package membership

import (
	"context"
	"crypto/x509"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a control-plane machine issues a ticket (docs/decisions/0028-joining.md):
//
//  1. The machine syncs with the others: the ledgers that answer become the voters of the ticket.
//  2. It checks the request. Only then it deletes the Node of a removed machine with this name.
//  3. More than half of the control plane stores the ticket.
//  4. The machine stores the ticket in its own ledger, and the operator gets the ticket.

// CreateTicket issues a ticket for a worker. Without a CSR it returns only the configuration of a
// worker that sends a join request.
func (s *Server) CreateTicket(ctx context.Context, by api.Caller, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	c, err := s.issuingConfig()
	if err != nil {
		return nil, err
	}
	documents, err := s.newDocuments(c, r.Name)
	if err != nil {
		return nil, err
	}
	out := &api.CreateTicketResponse{Documents: documents, ControlPlanes: s.addresses(c)}
	if len(r.Csr) == 0 { // the machine will send a join request
		if _, err := s.requests.config(); err != nil {
			return nil, err
		}
		if err := s.deleteFormerNode(ctx, c, r.Name); err != nil {
			return nil, err
		}
		return out, nil
	}
	var stored []string
	if out.Certificate, stored, err = s.issueTicket(ctx, c, by, r); err != nil {
		return nil, err
	}
	for _, address := range stored {
		if !slices.Contains(out.ControlPlanes, address) && len(out.ControlPlanes) < config.MaxFrom {
			out.ControlPlanes = append(out.ControlPlanes, address)
		}
	}
	return out, nil
}

// newDocuments returns the configuration of a new worker.
func (s *Server) newDocuments(c *config.Config, name string) ([]byte, error) {
	if err := s.facts(c).checkName(s.ledger.Current(), name, "cannot create ticket"); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	documents := workerDocuments(c, name)
	if err := config.Check(documents).Err(); err != nil { // usually an invalid name
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return config.Marshal(documents), nil
}

// deleteFormerNode deletes the Node of a removed machine with the name of a new worker. The Node
// can still exist, with the pods of the former machine. The tokens of these pods would be valid as
// long as the Node exists.
func (s *Server) deleteFormerNode(ctx context.Context, c *config.Config, name string) error {
	if !slices.ContainsFunc(s.nodeGC.removedMachines(), func(g trust.RemovedMachine) bool { return g.Name == name }) {
		return nil
	}
	if _, err := s.nodeGC.Delete(ctx, c, []string{name}); err != nil {
		return status.Errorf(codes.Unavailable, "machine %s: cannot create ticket yet: a machine of this name was removed, and its Node may still exist, with the tokens of its pods: %v; try again", name, err)
	}
	return nil
}

// issueTicket returns a ticket, and the addresses of the other machines that store it, sorted.
func (s *Server) issueTicket(ctx context.Context, c *config.Config, by api.Caller, r *api.CreateTicketRequest) (cert []byte, stored []string, err error) {
	sign, err := newTicketSigner(c, r)
	if err != nil {
		return nil, nil, err
	}
	vs := s.quorum.voters(c)
	others, ids, err := s.ticketVoters(ctx, vs)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := sign.issue()
	if err != nil {
		return nil, nil, err
	}
	request := ticketIssued{votes: vs.self, ticket: trust.Ticket{
		Serial: pki.Serial(leaf), Name: r.Name, At: s.deps.Now().UTC(), Expires: leaf.NotAfter, By: by.Subject, Voters: ids, Quorum: vs.majority(),
	}}
	checked, err := s.check(c, request)
	if err != nil {
		return nil, nil, err
	}
	if err := s.deleteFormerNode(ctx, c, r.Name); err != nil {
		return nil, nil, err
	}
	if stored, err = s.storeTicket(ctx, vs, others, checked.ledger.PublicForTicket(request.ticket.Serial), request.ticket.Serial); err != nil {
		return nil, nil, err
	}
	if _, err := s.apply(c, request); err != nil {
		return nil, nil, err
	}
	return leaf.Raw, stored, nil
}

// ticketVoters syncs with the other voters. It returns the addresses and the ledger IDs of the
// voters that answered. If several addresses have the same ledger, only the first is returned.
func (s *Server) ticketVoters(ctx context.Context, vs voters) (addresses []netip.Addr, ids []string, err error) {
	ledgers, failed := s.quorum.sync(ctx, vs.others, len(vs.others))
	for _, addr := range slices.SortedFunc(maps.Keys(ledgers), netip.Addr.Compare) {
		if id := ledgers[addr]; !slices.Contains(ids, id) {
			addresses, ids = append(addresses, addr), append(ids, id)
		}
	}
	if err := vs.check(len(ids), "store the ticket", failed); err != nil {
		return nil, nil, err
	}
	return addresses, ids, nil
}

// storeTicket sends a ticket to others, and returns the addresses of the machines that store it,
// sorted. Together with this machine, they are a quorum.
func (s *Server) storeTicket(ctx context.Context, vs voters, others []netip.Addr, ticket trust.Membership, serial string) ([]string, error) {
	stored, failed, refused := s.quorum.replicate(ctx, others, &api.ReplicateMembershipRequest{Membership: toMembership(ticket)}, serial, len(others))
	if refused != nil {
		return nil, status.Error(codes.FailedPrecondition, refused.Error())
	}
	if err := vs.check(len(stored), "store the ticket", failed); err != nil {
		return nil, err
	}
	slices.Sort(stored)
	return stored, nil
}

// ticketSigner signs a ticket.
type ticketSigner struct {
	ca   *pki.CA // client CA
	spec pki.Spec
}

// newTicketSigner checks the request for a ticket.
func newTicketSigner(c *config.Config, r *api.CreateTicketRequest) (ticketSigner, error) {
	ttl, err := trust.TicketTTL(r.Ttl.AsDuration())
	if err != nil {
		return ticketSigner{}, status.Error(codes.InvalidArgument, err.Error())
	}
	key, err := pki.ParseRequest(r.Csr)
	if err != nil {
		return ticketSigner{}, status.Error(codes.InvalidArgument, err.Error())
	}
	ca, err := pki.ParseCA(c.Cluster.Spec.PKI.Client.PEM())
	if err != nil {
		return ticketSigner{}, status.Errorf(codes.Internal, "Cluster.spec.pki.client: %v", err)
	}
	return ticketSigner{ca, pki.Spec{CN: r.Name, O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: ttl, Backdate: pki.CABackdate, For: key}}, nil
}

func (t ticketSigner) issue() (*x509.Certificate, error) {
	leaf, err := t.ca.Issue(t.spec)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return leaf.Cert, nil
}

// workerDocuments is the configuration of a worker of this cluster, without any key. The client
// that holds the key of the ticket adds the ticket.
func workerDocuments(c *config.Config, name string) *config.Config {
	out := config.New(name, config.RoleWorker)
	if cas := c.Machine.Spec.Trust.OperatorCAs; len(cas) > 0 {
		out = out.WithOperatorCAs(cas...)
	}
	out.Machine.Spec.Trust.Approvals = c.Machine.Spec.Trust.Approvals
	accepted := c.Cluster.Spec.PKI.Accepted
	pki := config.PKI{
		Kubernetes: config.CertKey{Cert: c.Cluster.Spec.PKI.Kubernetes.Cert},
		Machine:    config.CertKey{Cert: c.Cluster.Spec.PKI.Machine.Cert},
		Client:     config.CertKey{Cert: c.Cluster.Spec.PKI.Client.Cert},
	}
	pki.Accepted.Kubernetes, pki.Accepted.Machine, pki.Accepted.Client = accepted.Kubernetes, accepted.Machine, accepted.Client
	out = out.WithCluster(c.Cluster.Metadata.Name, c.Cluster.Spec.Endpoint, pki, config.EncryptionKey{})
	out.Cluster.Spec.Networks, out.Cluster.Spec.ControlPlanes = c.Cluster.Spec.Networks, c.Cluster.Spec.ControlPlanes
	out.Cluster.Spec.VirtualAddresses, out.Cluster.Spec.External = c.Cluster.Spec.VirtualAddresses, c.Cluster.Spec.External
	out.Cluster.Spec.DNS, out.Cluster.Spec.LocalVolumes = c.Cluster.Spec.DNS, c.Cluster.Spec.LocalVolumes
	out.Cluster.Spec.JoinRequests = c.Cluster.Spec.JoinRequests
	out.Cluster.Spec.PodCertificates = c.Cluster.Spec.PodCertificates
	was, is := &c.Cluster.Spec.Kubernetes, &out.Cluster.Spec.Kubernetes
	is.MaxPods, is.MachineObjects, is.FeatureGates, is.Kubelet = was.MaxPods, was.MachineObjects, was.FeatureGates, was.Kubelet
	return out
}
