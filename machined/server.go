package main

import (
	"context"
	"crypto/ecdsa"
	"errors"
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
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a control-plane machine admits machines into the cluster and removes them
// (docs/decisions/0028-joining.md). trust.Ledger decides which machine may join; quorum.go contains
// the votes of several control-plane machines; worker.go is the side of the worker.

// memberTTL is the TTL of a member's certificates. A member renews them after two thirds of it, so
// a machine that was off for less than a third needs no new ticket. A removed machine cannot use
// its certificates that long, because they are revoked.
const memberTTL = 90 * 24 * time.Hour

// issuingConfig returns the configuration of a machine that can admit others, or a status error.
func (a clusterAPI) issuingConfig() (*config.Config, error) {
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

func (a clusterAPI) CreateTicket(ctx context.Context, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	c, err := a.issuingConfig()
	if err != nil {
		return nil, err
	}
	if reservedName(c, a.m.ledger.current(), r.Name) {
		return nil, status.Errorf(codes.InvalidArgument, "machine %s: cannot create ticket: the control plane has this name", r.Name)
	}
	documents := workerDocuments(c, r.Name)
	if err := config.Check(documents).Err(); err != nil { // usually an invalid name
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// A Node of that name can still exist, with the pods of the former machine: their tokens would
	// be valid as long as it exists.
	removed := a.m.ledger.current().RemovedSince(time.Now().Add(-memberTTL), time.Now())
	if slices.ContainsFunc(removed, func(g trust.RemovedMachine) bool { return g.Name == r.Name }) {
		if _, err := a.m.deleteNodes(ctx, c, []string{r.Name}); err != nil {
			return nil, status.Errorf(codes.Unavailable, "machine %s: cannot create ticket yet: a machine of this name was removed, and its Node may still exist, with the tokens of its pods: %v; try again", r.Name, err)
		}
	}
	if len(r.Csr) == 0 { // the machine will send a join request
		if _, err := a.joinRequestsConfig(); err != nil {
			return nil, err
		}
		state, _ := a.m.networkState.Get()
		return &api.CreateTicketResponse{Documents: config.Marshal(documents), ControlPlanes: addressStrings(nodeAddresses(c, state))}, nil
	}
	ttl, err := trust.TicketTTL(r.Ttl.AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	key, err := pki.ParseRequest(r.Csr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	state, _ := a.m.networkState.Get()
	ca, err := authority(c.Cluster.Spec.PKI.Client)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "Cluster.spec.pki.client: %v", err)
	}
	vs := a.m.voters(c)
	ledgers, unreached := a.m.syncMemberships(ctx, vs.others, len(vs.others))
	var addresses []netip.Addr
	var voters []string
	for addr, id := range ledgers {
		if !slices.Contains(voters, id) {
			addresses, voters = append(addresses, addr), append(voters, id)
		}
	}
	if len(voters)+vs.selfVotes() < vs.majority() {
		return nil, noQuorum(len(voters)+vs.selfVotes(), vs, "store the ticket", unreached)
	}
	leaf, err := ca.Issue(pki.Spec{CN: r.Name, O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: ttl, Backdate: pki.CABackdate, For: key})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	ticket := trust.Ticket{
		Serial: pki.Serial(leaf.Cert), Name: r.Name, At: time.Now().UTC(), Expires: leaf.Cert.NotAfter, By: callerInfo(ctx, apid.MetadataSubject),
		Voters: voters, Quorum: vs.majority(),
	}
	addTicket := func(b trust.Ledger) (trust.Ledger, error) {
		if vs.self {
			ticket.Voters = append(slices.Clone(voters), b.ID)
		}
		return b.AddTicket(ticket)
	}
	if err := a.m.ledger.check(addTicket); err != nil {
		return nil, err
	}
	stored, unreached, refused := a.m.replicate(ctx, addresses, &api.ReplicateMembershipRequest{Membership: toMembership(trust.Membership{Tickets: []trust.Ticket{ticket}})}, ticket.Serial, len(addresses))
	if refused != nil {
		return nil, status.Error(codes.FailedPrecondition, refused.Error())
	}
	if len(stored)+vs.selfVotes() < vs.majority() {
		return nil, noQuorum(len(stored)+vs.selfVotes(), vs, "store the ticket", unreached)
	}
	if err := a.m.ledger.update(addTicket); err != nil {
		return nil, err
	}
	answer := &api.CreateTicketResponse{Certificate: leaf.Cert.Raw, Documents: config.Marshal(documents), ControlPlanes: addressStrings(nodeAddresses(c, state))}
	slices.Sort(stored)
	for _, address := range stored {
		if !slices.Contains(answer.ControlPlanes, address) && len(answer.ControlPlanes) < config.MaxFrom {
			answer.ControlPlanes = append(answer.ControlPlanes, address)
		}
	}
	return answer, nil
}

// addressStrings returns addresses as strings.
func addressStrings(addresses []netip.Addr) []string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return out
}

// noQuorum is the error if fewer control-plane machines than a majority answer.
func noQuorum(answered int, vs voters, what string, unreached []string) error {
	return status.Errorf(codes.Unavailable, "%d of %d control-plane machines %s; quorum: %d; try again when more of them answer (%s)", answered, vs.all(), what, vs.majority(), strings.Join(unreached, "; "))
}

// workerDocuments is the configuration of a worker of this cluster, without any key. The client
// that holds the key of the ticket adds the ticket.
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
	out.Cluster.Spec.VirtualAddresses, out.Cluster.Spec.External = c.Cluster.Spec.VirtualAddresses, c.Cluster.Spec.External
	out.Cluster.Spec.DNS, out.Cluster.Spec.LocalVolumes = c.Cluster.Spec.DNS, c.Cluster.Spec.LocalVolumes
	out.Cluster.Spec.JoinRequests = c.Cluster.Spec.JoinRequests
	out.Cluster.Spec.PodCertificates = c.Cluster.Spec.PodCertificates
	out.Cluster.Spec.Kubernetes.MaxPods = c.Cluster.Spec.Kubernetes.MaxPods
	return out
}

// current returns the present ledger.
func (b *ledger) current() trust.Ledger {
	b.Lock()
	defer b.Unlock()
	return b.currentLocked()
}

// update changes the ledger and stores it, or returns a status error. An error leaves the ledger
// unchanged.
func (b *ledger) update(change func(trust.Ledger) (trust.Ledger, error)) error {
	b.Lock()
	defer b.Unlock()
	next, err := b.changedLocked(change)
	if err != nil {
		return err
	}
	if err := b.storeLocked(next); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// check is update without the change.
func (b *ledger) check(change func(trust.Ledger) (trust.Ledger, error)) error {
	b.Lock()
	defer b.Unlock()
	_, err := b.changedLocked(change)
	return err
}

func (b *ledger) changedLocked(change func(trust.Ledger) (trust.Ledger, error)) (trust.Ledger, error) {
	known, err := b.withIDLocked()
	if b.damaged != nil {
		return known, status.Error(codes.FailedPrecondition, "no certificate is issued: "+b.damaged.Error()+"; `orlopctl trust revoke --new-list` starts a new list")
	}
	if err != nil {
		return known, status.Error(codes.Unavailable, err.Error())
	}
	known, _ = known.Prune(&b.session, time.Now())
	next, err := change(known)
	switch {
	case errors.Is(err, trust.ErrNoQuorum):
		return next, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return next, status.Error(codes.FailedPrecondition, err.Error())
	}
	return next, nil
}

// Join signs certificates for the holder of a ticket, and for a member with a valid certificate.
func (a clusterAPI) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	c, err := a.issuingConfig()
	if err != nil {
		return nil, err
	}
	member := trust.Member{Name: callerInfo(ctx, apid.MetadataName), Renewed: time.Now().UTC()}
	role := pki.RolePrefix + callerInfo(ctx, apid.MetadataRole)
	switch role {
	case pki.RoleJoin:
		member.Ticket = callerInfo(ctx, apid.MetadataSerial)
	case pki.RoleMachine:
		if member.Ticket = callerInfo(ctx, apid.MetadataTicket); member.Ticket == "" {
			return nil, status.Error(codes.FailedPrecondition, "this certificate has no ticket: it belongs to a control-plane machine, which issues its own")
		}
	default:
		return nil, status.Error(codes.FailedPrecondition, "only machines join: operators create a ticket (`orlopctl nodes add`)")
	}
	key, err := pki.ParseRequest(r.MachineCsr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	member.Key = pki.KeyFingerprint(key)
	known := role == pki.RoleMachine
	if known && member.Key != callerInfo(ctx, apid.MetadataKey) { // this check needs no ledger
		return nil, status.Error(codes.FailedPrecondition, "a machine can renew its certificates only for its present key")
	}
	peer, err := netip.ParseAddrPort(callerInfo(ctx, apid.MetadataPeer))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot read the caller's address: %v", err)
	}
	// The addresses that a machine claims are not trusted: they could be the addresses of any other
	// machine.
	addresses := []netip.Addr{peer.Addr().Unmap()}
	member.Address = addresses[0].String()
	state, _ := a.m.networkState.Get()
	if err := checkCallerAddress(c, state, addresses[0]); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	vote := func(b trust.Ledger) (trust.Ledger, error) {
		return b.Vote(member, known, &a.m.ledger.session, time.Now())
	}
	// A rejected call costs no signature, and no caller can cause repeated writes of the ledger or
	// calls to the other voters.
	if err := a.m.ledger.check(vote); err != nil {
		return nil, err
	}
	if !a.m.ledger.perKey.Allow("ticket "+member.Ticket) || !a.m.ledger.joins.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are requested at present; try again")
	}
	vs := a.m.voters(c)
	bindings, votes, err := a.collectVotes(ctx, vs, member, known, vote)
	if err != nil {
		return nil, err
	}
	answer, expires, err := sign(c, member, addresses, key, r.NodeCsrs)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	member.Expires = expires
	if err := a.storeMember(ctx, vs, member, known, bindings, votes); err != nil {
		return nil, err
	}
	a.m.events.add("cluster", "operation", fmt.Sprintf("machine %s at %s has its certificates until %s", member.Name, member.Address, expires.Format(time.RFC3339)))
	return answer, nil
}

// collectVotes records in this ledger that a machine wants to join, and requests votes from the
// others until a quorum votes for it. It returns their ticket bindings and the number of votes.
func (a clusterAPI) collectVotes(ctx context.Context, vs voters, member trust.Member, known bool, vote func(trust.Ledger) (trust.Ledger, error)) (bindings []trust.TicketBinding, votes int, err error) {
	used := false
	readUsed := func(b trust.Ledger) (trust.Ledger, error) {
		used = b.TicketUsed(member.Ticket)
		return b, nil
	}
	if err := a.m.ledger.check(readUsed); err != nil {
		return nil, 0, err
	}
	if known && !used { // other voters can know it
		synced, unreached := a.m.syncMemberships(ctx, vs.others, vs.majority()-vs.selfVotes())
		if len(synced)+vs.selfVotes() < vs.majority() {
			return nil, 0, noQuorum(len(synced)+vs.selfVotes(), vs, "answered whether they know the machine", unreached)
		}
	}
	var public trust.Membership
	ledgers := map[string]bool{} // IDs of the ledgers that voted for it
	err = a.m.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, err := vote(b)
		public, used = b.PublicForTicket(member.Ticket), b.TicketUsed(member.Ticket)
		if vs.self {
			ledgers[b.ID] = true
		}
		return b, err
	})
	if err != nil {
		return nil, 0, err
	}
	needed := vs.majority()
	// the ticket holds the quorum of the time of its issue
	if !known && !used && len(public.Tickets) == 1 {
		needed = public.Tickets[0].Quorum
	}
	r := &api.VoteRequest{Membership: toMembership(public), Candidate: toMember(member), HasCertificate: known}
	var against []string
	if len(ledgers) < needed {
		callAll(ctx, a.m, vs.others, func(ctx context.Context, c *client.Client) (*api.VoteResponse, error) {
			return c.Cluster.Vote(ctx, r)
		}, func(v peerAnswer[*api.VoteResponse]) bool {
			switch {
			case v.err != nil:
				against = append(against, peerError(v.from, v.err))
			case v.answer.RejectionReason != "":
				bindings = append(bindings, fromBindings(v.answer.Bindings)...)
				against = append(against, fmt.Sprintf("%s: %s", v.from, v.answer.RejectionReason))
			default:
				bindings = append(bindings, fromBindings(v.answer.Bindings)...)
				ledgers[v.answer.Ledger] = true
			}
			return len(ledgers) >= needed
		})
	}
	if votes = len(ledgers); votes >= needed {
		return bindings, votes, nil
	}
	// The reason for which no machine can join with this ticket says more than the number of votes.
	err = a.m.ledger.check(func(b trust.Ledger) (trust.Ledger, error) {
		return b.AdmitWithVotes(member, known, bindings, votes, needed, &a.m.ledger.session)
	})
	if err != nil && status.Code(err) != codes.Unavailable {
		return nil, 0, err
	}
	return nil, 0, noQuorum(votes, vs, "voted for "+member.Name, against)
}

// storeMember writes a member into this ledger and replicates it. When it returns, a majority of
// the ledgers contain the member. That is before the machine receives the certificates, so that
// they can be revoked, and so that no other machine gets the name or the address.
func (a clusterAPI) storeMember(ctx context.Context, vs voters, member trust.Member, known bool, bindings []trust.TicketBinding, votes int) error {
	var changed trust.Membership
	err := a.m.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, err := b.AdmitWithVotes(member, known, bindings, votes, vs.majority(), &a.m.ledger.session)
		changed = b.PublicForTicket(member.Ticket)
		return b, err
	})
	if err != nil {
		return err
	}
	stored, unreached, _ := a.m.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Membership: toMembership(changed)}, member.Ticket, vs.majority()-vs.selfVotes())
	if len(stored)+vs.selfVotes() < vs.majority() {
		return noQuorum(len(stored)+vs.selfVotes(), vs, "hold "+member.Name+" in their ledgers", unreached)
	}
	// An operator can have removed it meanwhile.
	return a.m.ledger.check(func(b trust.Ledger) (trust.Ledger, error) {
		if !b.TicketUsed(member.Ticket) {
			return b, fmt.Errorf("machine %s: it was removed while it joined; create another ticket", member.Name)
		}
		return b, nil
	})
}

// checkCallerAddress rejects a source address that is not the caller's alone: certificates for it
// would impersonate another machine. The source is this machine's address if a process here
// forwards the call, and an address of a pod if a pod calls.
func checkCallerAddress(c *config.Config, state network.State, a netip.Addr) error {
	owner := ""
	if slices.Contains(ownAddresses(state), a) {
		owner = "this machine"
	}
	for _, r := range slices.Concat(c.Cluster.Spec.Networks.Pods, c.Cluster.Spec.Networks.Services) {
		if r.Contains(a) {
			owner = "a pod or a service"
		}
	}
	if a == c.Cluster.Spec.Endpoint.Addr() || slices.Contains(c.Cluster.Spec.ControlPlanes, a) || slices.Contains(c.Cluster.Spec.VirtualAddresses, a) {
		owner = "the control plane"
	}
	// a certificate for one of these names impersonates the API server
	for _, name := range c.Cluster.Spec.Kubernetes.APIServer.ExtraSANs {
		if san, err := netip.ParseAddr(name); err == nil && san.Unmap() == a.Unmap() {
			owner = "the API server"
		}
	}
	if a.IsLoopback() || !a.IsGlobalUnicast() {
		owner = "no single machine"
	}
	if owner == "" {
		return nil
	}
	return fmt.Errorf("the call comes from %s, which is the address of %s; a machine joins from an address of its own", a, owner)
}

// reservedName reports whether certificates for a name would impersonate another part of the
// cluster. known has the names of the other control-plane machines that ran since they belong to
// the cluster.
func reservedName(c *config.Config, known trust.Ledger, name string) bool {
	for _, address := range c.Cluster.Spec.ControlPlanes {
		if plane, met := known.ControlPlanes[address.String()]; met && plane == name {
			return true
		}
	}
	// Services have certificates of the Kubernetes CA too, and their names have these suffixes
	// (DNS-Based Service Discovery of Kubernetes).
	if name == c.Machine.Metadata.Name || name == "localhost" || name == "kubernetes" || strings.HasPrefix(name, "kubernetes.") ||
		strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".svc."+c.Cluster.Spec.Networks.Domain) {
		return true
	}
	return name == c.Cluster.Spec.Endpoint.Host || slices.Contains(c.Cluster.Spec.Kubernetes.APIServer.ExtraSANs, name)
}

// sign issues all certificates of a member.
func sign(c *config.Config, member trust.Member, addresses []netip.Addr, key *ecdsa.PublicKey, requests map[string][]byte) (*api.JoinResponse, time.Time, error) {
	var expires time.Time
	issue := func(pair config.CertKey, spec pki.Spec, key *ecdsa.PublicKey) ([]byte, error) {
		ca, err := authority(pair)
		if err != nil {
			return nil, err
		}
		spec.TTL, spec.Backdate, spec.For, spec.Ticket = memberTTL, credentials.Backdate, key, member.Ticket
		leaf, err := ca.Issue(spec)
		if err != nil {
			return nil, err
		}
		if expires.IsZero() || leaf.Cert.NotAfter.Before(expires) {
			expires = leaf.Cert.NotAfter
		}
		return leaf.Cert.Raw, nil
	}
	out := &api.JoinResponse{NodeCertificates: map[string][]byte{}}
	var err error
	if out.MachineCertificate, err = issue(c.Cluster.Spec.PKI.Machine, credentials.MachineLeaf(member.Name, addresses), key); err != nil {
		return nil, expires, err
	}
	for _, l := range credentials.NodeLeaves(member.Name, addresses) {
		key, err := pki.ParseRequest(requests[l.Cert])
		if err != nil {
			return nil, expires, fmt.Errorf("%s: %w", l.Cert, err)
		}
		if out.NodeCertificates[l.Cert], err = issue(c.Cluster.Spec.PKI.Kubernetes, l.Spec, key); err != nil {
			return nil, expires, err
		}
	}
	return out, expires, nil
}

func (a clusterAPI) ListMembers(context.Context, *api.ListMembersRequest) (*api.ListMembersResponse, error) {
	known := a.m.ledger.current()
	out := &api.ListMembersResponse{}
	out.Members = toMembership(known.Public()).Members
	for _, t := range known.OpenTickets(time.Now()) {
		out.Tickets = append(out.Tickets, &api.Ticket{Serial: t.Serial, Name: t.Name, Expires: timestamppb.New(t.Expires), By: t.By})
	}
	return out, nil
}

// RemoveMember revokes a member here and on the other control-plane machines that answer before it
// returns. The Node object is the exception: Kubernetes expects the machine as long as the Node
// exists. Remove deletes it at once if the API server answers, and nodegc.go looks for it for some
// time afterwards. A caller can repeat the call for a removed machine. The work continues if the
// caller disconnects.
func (a clusterAPI) RemoveMember(ctx context.Context, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	c, err := a.issuingConfig()
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	vs := a.m.voters(c)
	// it may have joined a moment ago
	_, unreached := a.m.syncMemberships(ctx, vs.others, len(vs.others))
	out := &api.RemoveMemberResponse{}
	var removed []*api.Revocation
	err = a.m.ledger.update(func(b trust.Ledger) (next trust.Ledger, err error) {
		if next, out.Tickets, err = b.Remove(r.Name, time.Now().UTC(), callerInfo(ctx, apid.MetadataSubject)); err != nil && len(unreached) > 0 {
			return next, fmt.Errorf("%w; some control-plane machines do not answer, and may know it (%s)", err, strings.Join(unreached, "; "))
		}
		for _, v := range next.Revoked {
			if slices.Contains(out.Tickets, v.Lineage) {
				removed = append(removed, toAPIRevocation(v))
			}
		}
		return next, err
	})
	if err != nil {
		return nil, err
	}
	enforced := a.m.enforceRevocations(ctx)
	_, out.Unreached, _ = a.m.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Revocations: removed}, "", len(vs.others))
	a.m.nodeGC.restart(out.Tickets)
	if _, err := a.m.deleteNodes(ctx, c, []string{r.Name}); err != nil {
		out.NodeError = err.Error()
	}
	if enforced != nil {
		return nil, status.Errorf(codes.Internal, "it is stored, but not effective yet: %v; it is retried within %s", enforced, resyncInterval)
	}
	a.m.events.add("cluster", "operation", "removed machine "+r.Name)
	return out, nil
}

// enforceRevocations makes the revocations effective in apid and in the API server.
func (m *machine) enforceRevocations(ctx context.Context) error {
	m.reconcileMu.Lock()
	defer m.reconcileMu.Unlock()
	now, _ := m.config.Get()
	state, _ := m.networkState.Get()
	if err := m.configureAPI(ctx, now.config, state); err != nil {
		return err
	}
	if !isControlPlane(now.config) {
		return nil
	}
	w := m.goal(now.config, state).want
	if errors.Is(w.NodeProblem, nodeplan.ErrNoAddress) || errors.Is(w.NodeProblem, nodeplan.ErrNoNode) {
		return nil // no API server runs yet
	}
	return m.convergeCredentials(ctx, w)
}
