package membership

import (
	"context"
	"crypto/x509"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestMembers creates a ticket for a machine. The machine joins, renews its certificates, and is
// removed. The test checks that no other machine can use the ticket or the name.
func TestMembers(t *testing.T) {
	a := controlPlane(t)
	request := func(key *pki.Leaf) []byte {
		var err error
		if key.Key == nil {
			if key.Key, err = pki.NewKey(); err != nil {
				t.Fatal(err)
			}
		}
		der, err := pki.NewRequest(key.Key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	var ticketKey pki.Leaf
	invited, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request(&ticketKey)})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := x509.ParseCertificate(invited.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	c, problems := config.Parse("w1", invited.Documents)
	if len(problems) > 0 || strings.Contains(string(invited.Documents), "KEY-") || invited.ControlPlanes[0] != "10.0.0.11" {
		t.Fatalf("%v, %s", problems, invited.Documents)
	}
	// asks sends the request of a machine and processes the answer.
	asks := func(cert *x509.Certificate, identity *pki.Leaf, peer string) (Certificates, error) {
		r := &api.JoinRequest{MachineCsr: request(identity), NodeCsrs: map[string][]byte{}}
		got := Certificates{Machine: &pki.Leaf{Key: identity.Key}, Node: nodespec.IssuedCerts{}}
		for _, l := range nodespec.NodeLeaves("w1", nil) {
			got.Node[l.Cert] = &pki.Leaf{}
			r.NodeCsrs[l.Cert] = request(got.Node[l.Cert])
		}
		answer, err := a.Join(from(cert, peer), r)
		if err != nil {
			return got, err
		}
		err = got.add(answer, c)
		return got, err
	}
	var own, thief pki.Leaf
	held, err := asks(ticket, &own, "[::ffff:10.0.0.21]:4711")
	if err != nil {
		t.Fatal(err)
	}
	if ips := held.Machine.Cert.IPAddresses; len(ips) != 2 || ips[1].String() != "10.0.0.21" || pki.TicketOf(held.Machine.Cert) != pki.Serial(ticket) {
		t.Errorf("the machine's certificate is for %v, by ticket %s", ips, pki.TicketOf(held.Machine.Cert))
	}
	for name, want := range map[string]string{nodespec.KubeletCert: "CN=system:node:w1,O=system:nodes", nodespec.NodeAgentCert: "CN=orlop:node-agent:w1,O=orlop:node-agents"} {
		if got := held.Node[name].Cert; got.Subject.String() != want || pki.TicketOf(got) != pki.Serial(ticket) {
			t.Errorf("%s is for %s", name, got.Subject)
		}
	}
	// The stored certificates are readable.
	file := filepath.Join(t.TempDir(), "state", "membership.json")
	if err := held.store(file); err != nil {
		t.Fatal(err)
	}
	if again, err := readCertificates(file, own.Key); err != nil || !again.Machine.Cert.Equal(held.Machine.Cert) || len(again.Node) != len(held.Node) {
		t.Errorf("the stored certificates: %v, %v", again, err)
	}
	var stranger pki.Leaf
	request(&stranger)
	if _, err := readCertificates(file, stranger.Key); err == nil {
		t.Error("the stored certificates of another machine are accepted")
	}

	// The machine calls again with its ticket, as if the answer was lost. Then it calls with its
	// certificate from another address.
	if _, err := asks(ticket, &own, "10.0.0.21:4712"); err != nil {
		t.Error(err)
	}
	if held, err = asks(held.Machine.Cert, &own, "10.0.0.22:1"); err != nil || held.Machine.Cert.IPAddresses[1].String() != "10.0.0.22" {
		t.Error(held.Machine.Cert.IPAddresses, err)
	}

	refused := func(why string, err error) {
		t.Helper()
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q, got %v", why, err)
		}
	}
	_, err = asks(ticket, &thief, "10.0.0.66:1")
	refused("another machine has used it", err)
	_, err = asks(admin, &thief, "10.0.0.66:1")
	refused("operators create a ticket", err)
	// This call has the certificate of the machine, but the CSR of another key.
	_, err = asks(held.Machine.Cert, &thief, "10.0.0.66:1")
	refused("only for its present key", err)
	_, err = a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: "w1", Csr: request(&ticketKey)})
	refused("a member has this name", err)
	for _, name := range []string{"m1", "W1", "", "a b"} {
		if _, err := a.CreateTicket(from(admin, "10.0.0.5:1"), &api.CreateTicketRequest{Name: name, Csr: request(&ticketKey)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("name %q: %v", name, err)
		}
	}
	list := a.Server.ListMembers()
	if len(list.Members) != 1 || len(list.Tickets) != 0 || list.Members[0].Address != "10.0.0.22" {
		t.Errorf("%v", list)
	}

	a.Ledger.mu.Lock()
	known := a.Ledger.currentLocked()
	a.Ledger.mu.Unlock()
	next, tickets, err := known.Remove("w1", time.Now(), "admin")
	if err != nil || len(tickets) != 1 {
		t.Fatal(tickets, err)
	}
	for _, cert := range []*x509.Certificate{ticket, held.Machine.Cert, held.Node[nodespec.KubeletCert].Cert, held.Node[nodespec.ProxyCert].Cert} {
		if trust.CheckRevoked(next.Revoked, cert) == nil {
			t.Errorf("the certificate %s is valid after the removal", cert.Subject)
		}
	}
	if _, err := next.AddTicket(trust.Ticket{Serial: "1a", Name: "w1", Voters: []string{next.ID}, Quorum: 1}); err != nil {
		t.Errorf("after the removal, no ticket for the name can be issued: %v", err)
	}
}

// TestCheckCallerAddress checks that no machine can join from an address that belongs to the
// control plane, the API server or a pod, regardless of the notation of the address in the
// configuration.
func TestCheckCallerAddress(t *testing.T) {
	at := netip.MustParseAddr
	c := &config.Config{Cluster: &config.Cluster{}}
	spec := &c.Cluster.Spec
	spec.ControlPlanes, spec.VirtualAddresses = []netip.Addr{at("10.0.0.11")}, []netip.Addr{at("10.0.0.9")}
	spec.Networks.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	spec.Kubernetes.APIServer.ExtraSANs = []string{"api.example.com", "192.0.2.10", "2001:DB8:0::7", "::ffff:192.0.2.11"}
	for address, whose := range map[string]string{
		"10.0.0.20": "", "2001:db8::8": "",
		"10.0.0.11": "the control plane", "10.0.0.9": "the control plane", "10.244.3.4": "a pod or a service", "127.0.0.1": "no single machine",
		"192.0.2.10": "the API server", "2001:db8::7": "the API server", "192.0.2.11": "the API server",
	} {
		err := checkCallerAddress(c, nil, at(address))
		if (err == nil) != (whose == "") || err != nil && !strings.Contains(err.Error(), whose) {
			t.Errorf("%s: %v, want %q", address, err, whose)
		}
	}
}

// TestRejectedCalls checks that a rejected call of CreateTicket deletes no Node, and that a
// rejected call of Join does not bind the ticket to a key.
func TestRejectedCalls(t *testing.T) {
	a := controlPlane(t)
	operator := from(admin, "10.0.0.5:1")
	deleted := 0
	a.deleteNodes = func(_ context.Context, names []string) ([]string, error) { deleted++; return names, nil }
	recordRemovals(t, a, time.Now(), "w1")
	_, request := newRequest(t)
	for name, r := range map[string]*api.CreateTicketRequest{
		"a TTL that is too long":          {Name: "w1", Csr: request, Ttl: durationpb.New(1000 * time.Hour)},
		"an invalid CSR":                  {Name: "w1", Csr: []byte("none")},
		"join requests that are disabled": {Name: "w1"},
	} {
		if _, err := a.CreateTicket(operator, r); err == nil || deleted > 0 {
			t.Errorf("%s: %v, %d Nodes deleted", name, err, deleted)
		}
	}
	made, err := a.CreateTicket(operator, &api.CreateTicketRequest{Name: "w1", Csr: request})
	if err != nil || deleted != 1 {
		t.Fatalf("%v, %d Nodes deleted", err, deleted)
	}
	ticket, err := x509.ParseCertificate(made.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Join(from(ticket, "10.0.0.21:1"), &api.JoinRequest{MachineCsr: request, NodeCsrs: map[string][]byte{nodespec.KubeletCert: []byte("none")}})
	if known := a.Ledger.Current(); status.Code(err) != codes.InvalidArgument || len(known.Bindings) > 0 {
		t.Errorf("a call of Join with an invalid CSR: %v, bindings %v", err, known.Bindings)
	}
}
