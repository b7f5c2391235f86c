package membership

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// event is an event that package membership has added.
type event struct{ source, kind, message string }

// machine is a simulated machine: the Members of this package, with replaced dependencies.
type machine struct {
	*Members
	t         *testing.T
	deps      Deps
	config    *cell.Cell[*config.Config]
	addresses *cell.Cell[Addresses]
	identity  *ecdsa.PrivateKey
	net       *network
	// A test can replace these functions.
	deleteNodes func(context.Context, []string) ([]string, error)
	enforce     func() error
	stopPods    func() error
	wipe        func() error

	mu     sync.Mutex
	events []event
}

// newMachine returns a machine with a configuration. Its files are in dir.
func newMachine(t *testing.T, dir string, c *config.Config, net *network, addrs ...netip.Addr) *machine {
	t.Helper()
	identity, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{
		t: t, config: cell.New(c), addresses: cell.New(at(addrs...)), identity: identity, net: net,
		// By default, the API server has no Nodes.
		deleteNodes: func(context.Context, []string) ([]string, error) { return nil, nil },
		enforce:     func() error { return nil },
		stopPods:    func() error { return nil },
		wipe:        func() error { return nil },
	}
	m.deps = Deps{
		Config:      cell.Map(m.config, func(c *config.Config) *config.Config { return c }),
		Addresses:   cell.Map(m.addresses, func(a Addresses) Addresses { return a }),
		Files:       Files{Ledger: filepath.Join(dir, "trust", "ledger.json"), Certificates: filepath.Join(dir, "state", "membership.json"), OfflineAPI: filepath.Join(dir, "offline")},
		Installed:   true,
		Identity:    func() *ecdsa.PrivateKey { return m.identity },
		Certificate: m.certificate,
		Transport:   Transport{Dial: net.dialer(m), RequestJoin: net.joiner(m)},
		DeleteNodes: func(ctx context.Context, r nodespec.NodeGCRequest) ([]string, error) {
			return m.deleteNodes(ctx, r.Names)
		},
		APIServerReady: func() bool { return true },
		Removal: Removal{
			StopPods: func(context.Context) error { return m.stopPods() },
			Wipe:     func(context.Context) error { return m.wipe() },
		},
		Enforce: func(context.Context) error { return m.enforce() },
		Event: func(source, kind, message string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events = append(m.events, event{source, kind, message})
		},
		Now:     time.Now,
		Running: t.Context(),
	}
	m.start()
	for _, a := range addrs {
		net.machines[a] = m
	}
	return m
}

// The function at returns the Addresses of a machine with these addresses, which are all reachable.
func at(addrs ...netip.Addr) Addresses {
	return Addresses{All: addrs, Reachable: func([]netip.Addr) []netip.Addr { return addrs }}
}

// start simulates a start of machined. The state in memory is lost; the files on STATE remain.
func (m *machine) start() { m.Members = New(m.deps) }

// own returns all addresses of the machine.
func (m *machine) own() []netip.Addr {
	now, _ := m.addresses.Get()
	return now.All
}

// added returns the number of events that contain a text.
func (m *machine) added(text string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		if strings.Contains(e.message, text) {
			n++
		}
	}
	return n
}

// certificate returns the machine certificate that apid presents to its clients.
func (m *machine) certificate() (tls.Certificate, error) {
	c, _ := m.config.Get()
	if c.IsWorker() {
		s, _ := m.Worker.State.Get()
		return tls.Certificate{Certificate: [][]byte{s.Certs.Machine.Cert.Raw}, PrivateKey: m.identity}, nil
	}
	ca, err := pki.ParseCA(c.Cluster.Spec.PKI.Machine.PEM())
	if err != nil {
		return tls.Certificate{}, err
	}
	spec := nodespec.MachineLeaf(c.Machine.Metadata.Name, m.own())
	spec.Key, spec.TTL = m.identity, 365*24*time.Hour
	leaf, err := ca.Issue(spec)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}, nil
}

// The next methods call the methods of the API as machined does.

func (m *machine) CreateTicket(by api.Caller, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	return m.Server.CreateTicket(m.t.Context(), by, r)
}

func (m *machine) Join(by api.Caller, r *api.JoinRequest) (*api.JoinResponse, error) {
	return m.Server.Join(m.t.Context(), by, r)
}

func (m *machine) RemoveMember(by api.Caller, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	return m.Server.RemoveMember(m.t.Context(), by, r)
}

func (m *machine) ReplicateMembership(by api.Caller, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error) {
	return m.Server.ReplicateMembership(m.t.Context(), by, r)
}

// The function by returns the caller that presents a certificate.
func by(cert *x509.Certificate) api.Caller {
	role := ""
	lineage, root := pki.LineageOf(cert)
	if len(cert.Subject.Organization) > 0 {
		role = strings.TrimPrefix(cert.Subject.Organization[0], pki.RolePrefix)
	}
	return api.Caller{
		Subject: cert.Subject.String(), Name: cert.Subject.CommonName, Role: role, Serial: pki.Serial(cert), Lineage: lineage,
		Issuer: cmp.Or(root, "sha256:"+strings.Repeat("0", 64)),
	}
}

// The function from returns the caller that presents a certificate and calls from the address peer.
func from(cert *x509.Certificate, peer string) api.Caller {
	c := by(cert)
	c.Peer, c.Ticket, c.Key = peer, pki.TicketOf(cert), pki.Fingerprint(cert)
	return c
}

// called returns a caller named m2 that has a role and whose certificate contains a ticket.
func called(role, ticket string) api.Caller {
	return api.Caller{Role: role, Ticket: ticket, Name: "m2"}
}

// admin is the certificate of an operator.
var admin = &x509.Certificate{Subject: pkix.Name{CommonName: "admin", Organization: []string{pki.RoleAdmin}}, SerialNumber: big.NewInt(1)}

// newRequest returns a new key and a CSR for it.
func newRequest(t *testing.T) (key *ecdsa.PrivateKey, request []byte) {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key, requestFor(t, key)
}

// requestFor returns a CSR for a key.
func requestFor(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	request, err := pki.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// newPair returns the certificate and the key of a new CA.
func newPair(t *testing.T, name string) config.CertKey {
	t.Helper()
	ca, err := pki.NewCA(name, 1000*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := config.NewCertKey(string(ca.CertPEM()), string(ca.KeyPEM()))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// clusterConfig returns the configuration of a control-plane machine.
func clusterConfig(t *testing.T, name string) *config.Config {
	t.Helper()
	endpoint, err := config.ParseEndpoint("https://10.0.0.11:6443")
	if err != nil {
		t.Fatal(err)
	}
	return config.New(name, config.RoleControlPlane).WithCluster("orlop", endpoint, config.PKI{
		Kubernetes: newPair(t, "kubernetes"), Machine: newPair(t, "machines"), Etcd: newPair(t, "etcd"), Client: newPair(t, "clients"),
	}, config.EncryptionKey{})
}

// controlPlane returns the only control-plane machine of a cluster, at 10.0.0.11.
func controlPlane(t *testing.T) *machine {
	t.Helper()
	return newMachine(t, t.TempDir(), clusterConfig(t, "m1"), newNetwork(), netip.MustParseAddr("10.0.0.11"))
}

// configuration returns the configuration of a machine.
func (m *machine) configuration() *config.Config {
	c, _ := m.config.Get()
	return c
}

// three returns a control plane of three machines, at 10.0.0.11 to 10.0.0.13. They reach each
// other, except the machines whose addresses a test adds to off.
func three(t *testing.T) (machines []*machine, off *sync.Map) {
	t.Helper()
	net, whole := newNetwork(), clusterConfig(t, "m1")
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)})
		whole.Cluster.Spec.ControlPlanes = append(whole.Cluster.Spec.ControlPlanes, addr)
		machines = append(machines, newMachine(t, t.TempDir(), whole, net, addr))
	}
	return machines, &net.off
}

// network connects the machines of a test by their addresses, without sockets.
type network struct {
	machines map[netip.Addr]*machine
	off      sync.Map // addresses of machines that are off
	// reaches reports whether packets of a machine reach an address; nil for all
	reaches func(from *machine, to netip.Addr) bool
	// delay is called before each dial and each call; nil for none
	delay func(to netip.Addr)
}

func newNetwork() *network { return &network{machines: map[netip.Addr]*machine{}} }

// find returns the machine at an address, or the error of a dial.
func (n *network) find(from *machine, address string) (*machine, netip.Addr, error) {
	host := address
	if p, err := netip.ParseAddrPort(address); err == nil {
		host = p.Addr().String()
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil, addr, fmt.Errorf("machine %s: cannot connect: %w", address, err)
	}
	if n.delay != nil {
		n.delay(addr)
	}
	to := n.machines[addr]
	if _, off := n.off.Load(addr); off || to == nil || n.reaches != nil && !n.reaches(from, addr) {
		return nil, addr, fmt.Errorf("machine %s: cannot connect: %w: no answer", addr, client.ErrUnreachable)
	}
	return to, addr, nil
}

// dialer returns the function Transport.Dial of the machine from. It checks the certificates of
// both sides as apid and package client do.
func (n *network) dialer(from *machine) func(context.Context, client.Endpoint) (*client.Client, error) {
	return func(_ context.Context, e client.Endpoint) (*client.Client, error) {
		to, addr, err := n.find(from, e.Address)
		if err != nil {
			return nil, err
		}
		if err := n.verify(to, e); err != nil {
			return nil, fmt.Errorf("machine %s: cannot connect: %w", addr, err)
		}
		cert, err := x509.ParseCertificate(e.Cert.Certificate[0])
		if err != nil {
			return nil, err
		}
		revoked, _ := to.Ledger.Revocations()
		if err := trust.CheckRevoked(revoked, cert); err != nil {
			if errors.Is(err, trust.ErrRevocationsLost) {
				return nil, fmt.Errorf("machine %s: cannot connect: %w", addr, err)
			}
			return nil, fmt.Errorf("machine %s: cannot connect: %w: %w", addr, client.ErrRefused, client.ErrRevoked)
		}
		return client.Over(&line{net: n, from: from, addr: addr, cert: cert}), nil
	}
}

// verify checks the certificate of the called machine to, as its caller does.
func (n *network) verify(to *machine, e client.Endpoint) error {
	own, err := to.certificate()
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		return err
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: e.CA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return fmt.Errorf("%w: %w", client.ErrUntrusted, err)
	}
	if e.Accepts == nil {
		return nil
	}
	return e.Accepts(cert)
}

// joiner returns the function Transport.RequestJoin of the machine from.
func (n *network) joiner(from *machine) func(context.Context, client.Endpoint, joinrequest.Request) (joinrequest.Answer, error) {
	return func(_ context.Context, e client.Endpoint, r joinrequest.Request) (joinrequest.Answer, error) {
		to, addr, err := n.find(from, e.Address)
		if err != nil {
			return joinrequest.Answer{}, err
		}
		if err := n.verify(to, e); err != nil {
			return joinrequest.Answer{}, fmt.Errorf("machine %s: cannot connect: %w", addr, err)
		}
		a := to.Requests.RequestJoin(&api.RequestJoinRequest{Name: r.Name, Csr: r.CSR, Peer: from.own()[0].String() + ":1"})
		return joinrequest.Answer{State: joinrequest.State(a.State), Certificate: a.Certificate, Reason: a.Reason}, nil
	}
}

// line is a connection of one machine (from) to another (addr).
type line struct {
	net  *network
	from *machine
	addr netip.Addr
	cert *x509.Certificate // the certificate of the caller
}

// Invoke makes a call. It implements grpc.ClientConnInterface.
func (l *line) Invoke(ctx context.Context, method string, request, answer any, _ ...grpc.CallOption) error {
	to, _, err := l.net.find(l.from, l.addr.String())
	if err != nil {
		return status.Error(codes.Unavailable, "it is off")
	}
	revoked, _ := to.Ledger.Revocations()
	if err := trust.CheckRevoked(revoked, l.cert); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	caller := from(l.cert, l.from.own()[0].String()+":1")
	got, err := to.serve(ctx, caller, method, proto.Clone(request.(proto.Message)))
	if err != nil {
		return status.Convert(err).Err()
	}
	proto.Merge(answer.(proto.Message), got)
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (l *line) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

// serve answers a call of another machine.
func (m *machine) serve(ctx context.Context, caller api.Caller, method string, r proto.Message) (proto.Message, error) {
	switch method {
	case api.Cluster_Join_FullMethodName:
		return m.Server.Join(ctx, caller, r.(*api.JoinRequest))
	case api.Cluster_GetMembership_FullMethodName:
		return m.Server.GetMembership(caller, r.(*api.GetMembershipRequest))
	case api.Cluster_ReplicateMembership_FullMethodName:
		return m.Server.ReplicateMembership(ctx, caller, r.(*api.ReplicateMembershipRequest))
	case api.Cluster_Vote_FullMethodName:
		return m.Server.Vote(caller, r.(*api.VoteRequest))
	case api.Trust_GetRevocations_FullMethodName:
		return m.Server.GetRevocations(r.(*api.GetRevocationsRequest))
	}
	return nil, status.Error(codes.Unimplemented, method)
}

// issuing returns a control-plane machine that can issue client certificates only: its cluster has
// no other CA. The path of its ledger is file.
func issuing(t *testing.T, file string) *machine {
	t.Helper()
	c := config.New("m1", config.RoleControlPlane)
	c.Cluster = &config.Cluster{}
	c.Cluster.Spec.PKI.Client = newPair(t, "clients")
	m := newMachine(t, t.TempDir(), c, newNetwork())
	return m.with(file)
}

// The method with restarts a machine. Its ledger is then in another file.
func (m *machine) with(file string) *machine {
	m.deps.Files.Ledger = file
	m.start()
	return m
}
