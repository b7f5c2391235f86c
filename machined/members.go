package main

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a control-plane machine lets others into the cluster, and takes them out (docs/decisions/0028-joining.md). Who may come is decided by
// trust.Book; membership.go is the other side.

// memberLife is how long the certificates of a member are valid. They are renewed after two thirds of it, so a machine that was switched
// off for longer than a third needs no new ticket; one that was removed does not keep them that long, because they are revoked.
const memberLife = 90 * 24 * time.Hour

// issuing is the configuration of a machine that can let others in, or why it cannot.
func (a clusterAPI) issuing() (*config.Config, error) {
	now, _ := a.m.config.Get()
	switch c := now.config; {
	case c == nil || c.Cluster == nil:
		return nil, status.Error(codes.FailedPrecondition, "this machine belongs to no cluster; ask a control-plane machine")
	case c.Machine.Spec.Role != config.RoleControlPlane:
		return nil, status.Error(codes.FailedPrecondition, "this machine holds no key of the cluster; ask a control-plane machine")
	case c.Cluster.Spec.PKI.Client.Key.IsZero():
		return nil, status.Error(codes.FailedPrecondition, "this machine issues no tickets: its configuration has no client CA with its key (Cluster.spec.pki.client); `orlopctl gen secrets --client-ca` makes one")
	default:
		return c, nil
	}
}

func (a clusterAPI) Invite(ctx context.Context, r *api.InviteRequest) (*api.InviteResponse, error) {
	c, err := a.issuing()
	if err != nil {
		return nil, err
	}
	if reservedName(c, r.Name) {
		return nil, status.Errorf(codes.InvalidArgument, "machine %s: cannot be invited: it is the name of the control plane", r.Name)
	}
	life, err := trust.TicketLife(r.Life.AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	key, err := pki.ParseRequest(r.Request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	state, _ := a.m.networkState.Get()
	documents := workerDocuments(c, r.Name)
	if err := config.Check(documents).Err(); err != nil { // the name, usually
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	ca, err := authority(c.Cluster.Spec.PKI.Client)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "Cluster.spec.pki.client: %v", err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: r.Name, O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: life, Backdate: pki.CABackdate, For: key})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	serial := pki.Serial(leaf.Cert)
	ticket := trust.Issued{
		Serial: serial, Origin: serial, Name: r.Name, Role: trust.RoleJoin, At: time.Now().UTC(), Expires: leaf.Cert.NotAfter, Life: life,
		By: said(ctx, apid.MetadataSubject),
	}
	if err := a.m.book.update(func(b trust.Book) (trust.Book, error) { return b.Invite(ticket) }); err != nil {
		return nil, err
	}
	answer := &api.InviteResponse{Certificate: leaf.Cert.Raw, Documents: config.Marshal(documents)}
	for _, address := range nodeAddresses(state) {
		answer.From = append(answer.From, address.String())
	}
	return answer, nil
}

// workerDocuments is the configuration of a worker of this cluster, which holds none of its keys. The ticket is put into it by whoever
// has its key.
func workerDocuments(c *config.Config, name string) *config.Config {
	out := config.New(name, config.RoleWorker)
	if cas := c.Machine.Spec.Trust.OperatorCAs; len(cas) > 0 {
		out = out.WithOperatorCAs(cas...)
	}
	accepted := c.Cluster.Spec.PKI.Accepted
	pki := config.PKI{
		Kubernetes: config.CertKey{Cert: c.Cluster.Spec.PKI.Kubernetes.Cert},
		Machine:    config.CertKey{Cert: c.Cluster.Spec.PKI.Machine.Cert},
		Client:     config.CertKey{Cert: c.Cluster.Spec.PKI.Client.Cert},
	}
	pki.Accepted.Kubernetes, pki.Accepted.Machine, pki.Accepted.Client = accepted.Kubernetes, accepted.Machine, accepted.Client
	out = out.WithCluster(c.Cluster.Metadata.Name, c.Cluster.Spec.Endpoint, pki, config.EncryptionKey{})
	out.Cluster.Spec.Networks, out.Cluster.Spec.ControlPlanes = c.Cluster.Spec.Networks, c.Cluster.Spec.ControlPlanes
	out.Cluster.Spec.VirtualAddresses = c.Cluster.Spec.VirtualAddresses
	out.Cluster.Spec.Kubernetes.MaxPods = c.Cluster.Spec.Kubernetes.MaxPods
	return out
}

// update makes another book last, or says why not as a status. What it refuses changes nothing.
func (b *book) update(change func(trust.Book) (trust.Book, error)) error {
	b.Lock()
	defer b.Unlock()
	known := b.openLocked()
	if b.damaged != nil {
		return status.Error(codes.FailedPrecondition, "nothing is issued: "+b.damaged.Error()+"; `orlopctl trust revoke --new-list` begins a new list")
	}
	next, err := change(known)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := b.keepLocked(next); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// Join signs for the holder of a ticket, and for a member by the certificate that it has.
func (a clusterAPI) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	c, err := a.issuing()
	if err != nil {
		return nil, err
	}
	member := trust.Member{Name: said(ctx, apid.MetadataName), Renewed: time.Now().UTC()}
	role := pki.RolePrefix + said(ctx, apid.MetadataRole)
	switch role {
	case pki.RoleJoin:
		member.Ticket = said(ctx, apid.MetadataSerial)
	case pki.RoleMachine:
		if member.Ticket = said(ctx, apid.MetadataTicket); member.Ticket == "" {
			return nil, status.Error(codes.FailedPrecondition, "this certificate did not come by a ticket: it is a control-plane machine's, which issues its own")
		}
	default:
		return nil, status.Error(codes.FailedPrecondition, "this is for machines that join: people ask for a ticket (`orlopctl nodes add`)")
	}
	key, err := pki.ParseRequest(r.Machine)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	member.Key = pki.KeyFingerprint(key)
	peer, err := netip.ParseAddrPort(said(ctx, apid.MetadataPeer))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the caller's address cannot be read: %v", err)
	}
	// What a machine says of its own addresses does not count: it could be any other machine then.
	addresses := []netip.Addr{peer.Addr().Unmap()}
	member.Address = addresses[0].String()
	state, _ := a.m.networkState.Get()
	if err := notItsOwn(c, state, addresses[0]); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	// What is refused costs no signature, and nobody can have the book written over and over.
	a.m.book.Lock()
	_, err = a.m.book.openLocked().Admit(member, role == pki.RoleMachine)
	a.m.book.Unlock()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.book.renewals.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are asked for at present; try again")
	}
	answer, expires, err := sign(c, member, addresses, key, r.Leaves)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	member.Expires = expires
	// It is in the book before anybody has it, so that it can be revoked.
	if err := a.m.book.update(func(b trust.Book) (trust.Book, error) { return b.Admit(member, role == pki.RoleMachine) }); err != nil {
		return nil, err
	}
	a.m.events.add("cluster", "op", fmt.Sprintf("machine %s at %s has its certificates until %s", member.Name, member.Address, expires.Format(time.RFC3339)))
	return answer, nil
}

// notItsOwn refuses an address that is not the caller's alone: certificates with it would make him somebody else. He comes from this machine
// itself if somebody passes his call on here, and from a pod's address if he is one.
func notItsOwn(c *config.Config, state network.State, a netip.Addr) error {
	whose := ""
	if slices.Contains(ownAddresses(state), a) {
		whose = "this machine"
	}
	for _, r := range slices.Concat(c.Cluster.Spec.Networks.Pods, c.Cluster.Spec.Networks.Services) {
		if r.Contains(a) {
			whose = "a pod or a service"
		}
	}
	if a == c.Cluster.Spec.Endpoint.Addr() || slices.Contains(c.Cluster.Spec.ControlPlanes, a) || slices.Contains(c.Cluster.Spec.VirtualAddresses, a) {
		whose = "the control plane"
	}
	if a.IsLoopback() || !a.IsGlobalUnicast() {
		whose = "no machine alone"
	}
	if whose == "" {
		return nil
	}
	return fmt.Errorf("the call comes from %s, which is the address of %s; a machine joins from an address of its own", a, whose)
}

// reservedName tells whether certificates with a name would make their holder somebody else of the cluster.
func reservedName(c *config.Config, name string) bool {
	if name == c.Machine.Metadata.Name || name == "localhost" || name == "kubernetes" || strings.HasPrefix(name, "kubernetes.") {
		return true
	}
	return name == c.Cluster.Spec.Endpoint.Host || slices.Contains(c.Cluster.Spec.Kubernetes.APIServer.ExtraSANs, name)
}

// sign makes all certificates of a member.
func sign(c *config.Config, member trust.Member, addresses []netip.Addr, key *ecdsa.PublicKey, requests map[string][]byte) (*api.JoinResponse, time.Time, error) {
	var expires time.Time
	issue := func(pair config.CertKey, spec pki.Spec, key *ecdsa.PublicKey) ([]byte, error) {
		ca, err := authority(pair)
		if err != nil {
			return nil, err
		}
		spec.TTL, spec.Backdate, spec.For, spec.Ticket = memberLife, credentials.Backdate, key, member.Ticket
		leaf, err := ca.Issue(spec)
		if err != nil {
			return nil, err
		}
		if expires.IsZero() || leaf.Cert.NotAfter.Before(expires) {
			expires = leaf.Cert.NotAfter
		}
		return leaf.Cert.Raw, nil
	}
	out := &api.JoinResponse{Leaves: map[string][]byte{}}
	var err error
	if out.Machine, err = issue(c.Cluster.Spec.PKI.Machine, credentials.MachineLeaf(member.Name, addresses), key); err != nil {
		return nil, expires, err
	}
	for _, l := range credentials.NodeLeaves(member.Name, addresses) {
		key, err := pki.ParseRequest(requests[l.Cert])
		if err != nil {
			return nil, expires, fmt.Errorf("%s: %w", l.Cert, err)
		}
		if out.Leaves[l.Cert], err = issue(c.Cluster.Spec.PKI.Kubernetes, l.Spec, key); err != nil {
			return nil, expires, err
		}
	}
	return out, expires, nil
}

// forgetTime bounds deleting the Node; the API server may be down.
const forgetTime = 30 * time.Second

func (a clusterAPI) Members(context.Context, *api.MembersRequest) (*api.MembersResponse, error) {
	a.m.book.Lock()
	known := a.m.book.openLocked()
	a.m.book.Unlock()
	out := &api.MembersResponse{}
	for _, m := range known.Members {
		out.Members = append(out.Members, &api.Member{
			Name: m.Name, Ticket: m.Ticket, Fingerprint: m.Key, Address: m.Address,
			Joined: timestamppb.New(m.Joined), Renewed: timestamppb.New(m.Renewed), Expires: timestamppb.New(m.Expires),
		})
	}
	for _, t := range known.Open(time.Now()) {
		out.Tickets = append(out.Tickets, &api.Ticket{Serial: t.Serial, Name: t.Name, Expires: timestamppb.New(t.Expires), By: t.By})
	}
	return out, nil
}

// Remove is in force when it returns, but for the Node object, without which Kubernetes goes on expecting the machine.
func (a clusterAPI) Remove(ctx context.Context, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	if _, err := a.issuing(); err != nil {
		return nil, err
	}
	out := &api.RemoveMemberResponse{}
	err := a.m.book.update(func(b trust.Book) (next trust.Book, err error) {
		next, out.Tickets, err = b.Remove(r.Name, time.Now().UTC(), said(ctx, apid.MetadataSubject))
		return next, err
	})
	if err != nil {
		return nil, err
	}
	if err := a.m.enforce(context.WithoutCancel(ctx)); err != nil {
		return nil, status.Errorf(codes.Internal, "it is written down, but not in force yet: %v; it will be tried again within %s", err, lookAgain)
	}
	a.m.events.add("cluster", "op", "removed machine "+r.Name)
	forgetting, cancel := context.WithTimeout(ctx, forgetTime)
	defer cancel()
	if _, err := a.m.orchestrator(forgetting, paths.UserControllers, "forget-node", r.Name); err != nil {
		out.Node = err.Error()
	}
	return out, nil
}

// enforce makes what is revoked count no more, here and in the API server.
func (m *machine) enforce(ctx context.Context) error {
	m.settling.Lock()
	defer m.settling.Unlock()
	now, _ := m.config.Get()
	state, _ := m.networkState.Get()
	if err := m.openDoor(ctx, now.config, state); err != nil {
		return err
	}
	if now.config == nil || now.config.Cluster == nil || worker(now.config) {
		return nil
	}
	spec, err := nodeSpec(now.config, state, m.release)
	if err != nil {
		return nil // then there is no API server yet
	}
	return m.settleCredentials(ctx, now.config, spec)
}
