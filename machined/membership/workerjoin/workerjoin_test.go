package workerjoin

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// TestRequestTicket checks that a machine without certificates and without a valid ticket sends a
// join request if the cluster accepts requests. If the cluster does not, the machine reports the
// missing ticket. A machine with a valid ticket joins instead.
func TestRequestTicket(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	ca, err := pki.NewCA("clients", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := ca.Issue(pki.Spec{CN: "w1", O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := Facts{Now: now, Name: "w1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.21")}}
	if s := Next(f); s.Action != Idle || !strings.Contains(s.Reason.Error(), "there is no ticket") {
		t.Errorf("%+v", s)
	}
	f.JoinRequestsEnabled = true
	if s := Next(f); s.Action != RequestTicket || s.Usable || s.Reason == nil {
		t.Errorf("%+v", s)
	}
	f.Now, f.Ticket = ticket.Cert.NotBefore.Add(time.Minute), ticket.Cert
	if s := Next(f); s.Action != Join {
		t.Errorf("%+v", s)
	}
	f.Now = ticket.Cert.NotAfter // the ticket has expired
	if s := Next(f); s.Action != RequestTicket {
		t.Errorf("%+v", s)
	}
	f.Addresses = nil
	if s := Next(f); s.Action != Idle {
		t.Errorf("%+v", s)
	}
}
