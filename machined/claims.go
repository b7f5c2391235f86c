package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/hosts"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
)

// claimAuthor is the author of removals by claims in events and in the ledger.
const claimAuthor = "claims of machines"

// claimTicketTTL is the validity of the ticket of a claimed machine, which joins within seconds.
const claimTicketTTL = 10 * time.Minute

// newClaims makes the receiver of the claims of the controllers, on a control-plane machine.
func newClaims(m *machine) *hosts.Claims {
	return hosts.NewClaims(hosts.ClaimsDeps{
		Enabled: func() bool { return acceptsClaims(m.config.active.Current().Config) },
		Read:    func() ([]byte, error) { return readClaims(paths.KubeControllers) },
		Operators: func() ([]*x509.Certificate, error) {
			list, err := ownership.Operators(m.config.active.Current().Config)
			if err != nil {
				return nil, err
			}
			return pki.ParseCerts(list)
		},
		CheckRevoked: func(c *x509.Certificate) error {
			return trust.CheckRevoked(m.members.Ledger.Current().Revoked.Active(), c)
		},
		Pending: func() (all []claim.Member) {
			pending, err := m.members.Requests.ListPending()
			if err != nil {
				return nil // of a machine that accepts no join requests
			}
			for _, p := range pending.Machines {
				all = append(all, claim.Member{Name: p.Name, Key: p.Fingerprint})
			}
			return all
		},
		Approve: func(ctx context.Context, to claim.Member, by string) error {
			_, err := m.members.Requests.Approve(ctx, api.Caller{Subject: by}, &api.ApproveRequest{Name: to.Name, Fingerprint: to.Key, Ttl: durationpb.New(claimTicketTTL)})
			return err
		},
		Known: func(of claim.Member) bool {
			known := m.members.Ledger.Current()
			return known.NameInUse(of.Name, time.Now()) && (known.HasKey(of.Key) || !known.HasMember(of.Name))
		},
		Remove: func(ctx context.Context, of claim.Member) error { return removeClaimed(ctx, m, of) },
		Event:  m.reports.events.From("inventory"),
		Now:    time.Now,
		Rules:  newRuleDeps(m),
	})
}

// newRuleDeps makes the environment of approvals by rules.
func newRuleDeps(m *machine) hosts.RuleDeps {
	return hosts.RuleDeps{
		Host: func(key string) (inventory.Host, bool) { return m.domains.hosts.Host(key) },
		Matches: func(ctx context.Context, expression string, h inventory.Host) (bool, error) {
			return matchesHost(ctx, m.processes.commands.run, expression, h)
		},
		Approvals: func() trust.Membership { return m.members.Ledger.Current().Membership },
		Record:    func(ctx context.Context, a trust.Approval) error { return m.members.Server.RecordApproval(ctx, a) },
	}
}

// matchesHost evaluates the expression of a rule for an inventory. The orchestrator has the
// compiler (docs/decisions/0016-disk-expressions.md); its process has the rights of the API
// server's user, and no network peer reaches it.
func matchesHost(ctx context.Context, run nodespec.Command, expression string, h inventory.Host) (bool, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return false, err
	}
	a, err := nodespec.Run[nodespec.HostMatchResult](ctx, run, paths.UserAPI, "match-host", nodespec.HostMatchRequest{Expression: expression, Inventory: text})
	if err == nil && a.Problem != "" {
		err = errors.New("match: the expression " + a.Problem)
	}
	return a.Matches, err
}

// acceptsClaims reports whether a configuration lets sets of machines take waiting machines.
func acceptsClaims(c *config.Config) bool {
	return acceptsInventories(c) && c.Cluster.Spec.Kubernetes.MachineObjects.Claims
}

// readClaims reads the list of the controllers, to which the directory belongs.
func readClaims(dir string) ([]byte, error) {
	text, err := safefile.ReadUntrusted(dir, nodespec.ClaimsFile, claim.MaxList)
	if err != nil {
		return nil, fmt.Errorf("list of claims: %w", err)
	}
	return text, nil
}

// removeClaimed drains the node of a claimed machine and removes the machine from the cluster.
func removeClaimed(ctx context.Context, m *machine, of claim.Member) error {
	undo := func() {}
	if m.members.Ledger.Current().HasMember(of.Name) {
		order := drain.Order{Operation: removal, By: claimAuthor, Node: of.Name, Policy: config.Drain{Policy: config.DrainTimeout}}
		if _, err := m.domains.drain.Drain(ctx, order); err != nil {
			return err
		}
		undo = func() { m.domains.drain.Undo(order) }
	}
	if _, err := m.members.Server.RemoveMember(ctx, api.Caller{Subject: claimAuthor}, &api.RemoveMemberRequest{Name: of.Name}); err != nil {
		undo()
		return err
	}
	return nil
}

// adoptTemplate makes the configuration in the answer to an inventory active, on a machine without
// a configuration. Two authors are necessary: the operator of the machine, with a signature of the
// template, and a control-plane machine of the cluster that the template names.
func adoptTemplate(ctx context.Context, m *machine, from netip.Addr, answer inventory.Answer) error {
	if m.install.Began() {
		return nil
	}
	own, err := ownership.Owner()
	if err != nil {
		return err
	}
	if len(own) == 0 {
		return errors.New("this machine has no operator, so no signature is valid; an operator pairs it first (`orlopctl pair`)")
	}
	operators, err := pki.ParseCerts(own)
	if err != nil {
		return err
	}
	key := m.identity.Load()
	if key == nil {
		return errors.New("the machine key is not read yet")
	}
	documents, by, err := claimedDocuments(*answer.Template, operators, pki.KeyFingerprint(&key.Key.PublicKey), from, answer.Peer, time.Now())
	if err != nil {
		return err
	}
	caller := api.Caller{Subject: by.Subject.String(), Name: by.Subject.CommonName, Role: pki.RoleAdmin[len(pki.RolePrefix):], Serial: pki.Serial(by), Peer: from.String()}
	if i := slices.IndexFunc(operators, func(ca *x509.Certificate) bool { return pki.SignedBy(by, ca) }); i >= 0 {
		caller.Issuer = pki.Fingerprint(operators[i])
	}
	_, err = m.config.applier.applyFirst(metadata.NewIncomingContext(ctx, caller.Metadata()), "template", &api.ApplyRequest{Documents: documents, NoTrial: true})
	return err
}

// claimedDocuments returns the documents of a claimed machine with its name, and the certificate
// of their signature, after all checks that need no state of the machine.
func claimedDocuments(s claim.Signed, operators []*x509.Certificate, fingerprint string, from netip.Addr, peer []*x509.Certificate, now time.Time) ([]byte, *x509.Certificate, error) {
	t, by, err := s.Verify(operators, now)
	if err != nil {
		return nil, nil, err
	}
	documents, err := config.Merge(t.Documents, fmt.Appendf(nil, "kind: Machine\nmetadata: {name: %s}\n", t.NameOf(fingerprint)))
	if err != nil {
		return nil, nil, err
	}
	next, problems := config.Parse("template", documents)
	if err := problems.Err(); err != nil {
		return nil, nil, err
	}
	if !next.IsWorker() || next.Machine.Spec.Join == nil || !next.Machine.Spec.Join.Ticket.IsZero() {
		return nil, nil, errors.New("template: is not the configuration of a worker that requests to join; `orlopctl nodes template` makes one")
	}
	if err := pki.VerifyServer(peer, membership.MachinePool(next), from.WithZone("").String(), now); err != nil {
		return nil, nil, fmt.Errorf("the sender is no machine of the cluster that the template names: %w", err)
	}
	if pki.TicketOf(peer[0]) != "" {
		return nil, nil, errors.New("the sender is a worker; only a control-plane machine gives a configuration")
	}
	return documents, by, nil
}

// wipeRemoved erases this worker after its removal from the cluster, and powers it off, if its
// configuration says so.
func wipeRemoved(ctx context.Context, m *machine) error {
	c := m.config.active.Current().Config
	if c == nil || c.Machine.Spec.Join == nil || c.Machine.Spec.Join.OnRemoval != config.RemovalWipe {
		return nil
	}
	return m.power.Go(ctx, power.Away{To: power.PowerOff, Wipe: []string{layout.Data, layout.State}, Force: true, By: "its removal from the cluster"})
}
