package hosts

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// claimsTest is a control-plane machine with a list of claims, which its controllers have written.
type claimsTest struct {
	*Claims
	t        *testing.T
	now      time.Time
	admin    *pki.Leaf
	disabled bool
	list     *claim.List
	readErr  error
	revoked  bool
	pending  []claim.Member
	known    []claim.Member
	fails    error // the error of an approval or a removal
	did      []string
	events   []string
	// The next fields are for approval rules.
	hosts     map[string]inventory.Host
	ledger    trust.Ledger
	matches   func(expression string, h inventory.Host) (bool, error)
	evaluated int
	recordErr error
}

func newClaimsTest(t *testing.T) *claimsTest {
	t.Helper()
	ca, err := pki.NewCA("operator", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := &claimsTest{t: t, now: time.Now().Truncate(time.Second)}
	if c.admin, err = ca.Issue(pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: 12 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	c.Claims = NewClaims(ClaimsDeps{
		Enabled: func() bool { return !c.disabled },
		Read: func() ([]byte, error) {
			if c.readErr != nil {
				return nil, c.readErr
			}
			return c.list.Encode()
		},
		Operators: func() ([]*x509.Certificate, error) { return []*x509.Certificate{ca.Cert}, nil },
		CheckRevoked: func(*x509.Certificate) error {
			if c.revoked {
				return errors.New("revoked")
			}
			return nil
		},
		Pending: func() []claim.Member { return c.pending },
		Approve: func(_ context.Context, m claim.Member, by string) error {
			c.did = append(c.did, "approve "+m.Name+" "+m.Key+" by "+by)
			return c.fails
		},
		Known:  func(m claim.Member) bool { return slices.Contains(c.known, m) },
		Remove: func(_ context.Context, m claim.Member) error { c.did = append(c.did, "remove "+m.Name); return c.fails },
		Event:  func(kind, message string) { c.events = append(c.events, kind+": "+message) },
		Now:    func() time.Time { return c.now },
		Rules: RuleDeps{
			Host: func(key string) (inventory.Host, bool) { h, found := c.hosts[key]; return h, found },
			Matches: func(_ context.Context, expression string, h inventory.Host) (bool, error) {
				c.evaluated++
				return c.matches(expression, h)
			},
			Approvals: func() trust.Membership { return c.ledger.Membership },
			Record: func(_ context.Context, a trust.Approval) error {
				next, err := c.ledger.AddApproval(a)
				c.ledger = next
				return cmp.Or(err, c.recordErr)
			},
		},
	})
	c.list = &claim.List{Written: c.now, Templates: map[string]claim.Signed{"workers": c.sign("rack7", c.admin)}}
	return c
}

func (c *claimsTest) sign(prefix string, by *pki.Leaf) claim.Signed {
	c.t.Helper()
	s, err := claim.Sign(claim.Template{Documents: []byte("kind: Machine\n"), Prefix: prefix, Expires: c.now.Add(time.Hour)}, by, c.now)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// step makes one pass over the list and returns the operations and the events of this pass.
func (c *claimsTest) step() string {
	c.did, c.events = nil, nil
	c.pass(c.t.Context())
	c.running.Wait()
	return strings.Join(append(c.did, c.events...), "; ")
}

var one = claim.Member{Name: "rack7-01234567", Key: "sha256:0123456789abcdef"}

// TestClaims checks that a claimed machine gets its template and is admitted. The name of the
// machine must be derived from its key, and an operator must have signed the template.
func TestClaims(t *testing.T) {
	c := newClaimsTest(t)
	c.pending = []claim.Member{{Name: "other", Key: one.Key}, one, {Name: "rack7-89abcdef", Key: "sha256:89abcdef"}}
	if got := c.step(); got != "" || c.Offer(one.Key) != nil {
		t.Errorf("without a claim: %s", got)
	}
	c.list.Claims = []claim.Claim{{Member: one, Template: "workers"}}
	if got := c.step(); got != "approve rack7-01234567 sha256:0123456789abcdef by CN=alice,O=orlop:admin" {
		t.Error(got)
	}
	if o := c.Offer(one.Key); o == nil || string(o.Documents) != "kind: Machine\n" || c.Offer("sha256:89abcdef") != nil {
		t.Errorf("%+v", o)
	}
	c.fails = errors.New("no quorum")
	if got := c.step(); !strings.HasSuffix(got, "; failure: machine rack7-01234567: cannot admit: no quorum") {
		t.Error(got)
	}
	if got := c.step(); strings.Contains(got, "failure") {
		t.Errorf("the same problem is reported by a second event: %s", got)
	}
	c.fails = nil
	for _, r := range []struct {
		name   string
		change func()
		want   string
	}{
		{"disabled", func() { c.disabled = true }, ""},
		{"no controllers", func() { c.disabled, c.readErr = false, fs.ErrNotExist }, ""},
		{"unreadable", func() { c.readErr = errors.New("broken") }, "failure: broken"},
		{"old", func() { c.readErr = nil; c.list.Written = c.now.Add(-2 * time.Minute) }, ""},
		{"revoked", func() { c.list.Written, c.revoked = c.now, true }, "failure: OrlopMachineTemplate workers: revoked"},
		{"a name that does not belong to the key", func() { c.revoked = false; c.list.Claims[0].Name = "cp1" }, "failure: machine cp1: the name does not belong to its key and its template"},
		{"another prefix", func() { c.list.Claims[0].Member = claim.Member{Name: "x-01234567", Key: one.Key} }, "failure: machine x-01234567: the name does not belong to its key and its template"},
		{"no template", func() { c.list.Claims = []claim.Claim{{Member: one, Template: "none"}} }, ""},
		{"another operator", func() {
			c.list.Claims[0].Template, c.list.Templates = "workers", map[string]claim.Signed{"workers": newClaimsTest(t).sign("rack7", newClaimsTest(t).admin)}
		}, "failure: OrlopMachineTemplate workers: template: the certificate of its signature is not of an operator"},
	} {
		r.change()
		if got := c.step(); !strings.HasPrefix(got, r.want) || r.want == "" && got != "" || c.Offer(one.Key) != nil {
			t.Errorf("%s: %s, offer %v", r.name, got, c.Offer(one.Key))
		}
	}
}

// TestRemovals checks that only a member with a name derived from its key, as by a claim, is
// removed, and that a failed removal is repeated after removalInterval.
func TestRemovals(t *testing.T) {
	c := newClaimsTest(t)
	named := claim.Member{Name: "worker-1", Key: one.Key}
	c.known = []claim.Member{one, named}
	c.list.Removals = []claim.Member{named, {Name: "rack7-89abcdef", Key: "sha256:89abcdef"}, {Name: "-01234567", Key: one.Key}, {Name: "rack7-", Key: "sha256:"}}
	if got := c.step(); strings.Contains(got, "remove rack7") || !strings.Contains(got, "machine worker-1: cannot remove: it does not come from a claim") {
		t.Error(got)
	}
	c.list.Removals = []claim.Member{one}
	if got := c.step(); got != "remove rack7-01234567" {
		t.Error(got)
	}
	c.fails = errors.New("no quorum")
	const failed = "remove rack7-01234567; failure: machine rack7-01234567: cannot remove: no quorum; it is tried again in 1m0s"
	// A removal evicts the pods of the node, so it is not attempted in each pass.
	for i, want := range []string{failed, "", failed} {
		if i == 2 {
			c.now = c.now.Add(removalInterval)
			c.list.Written = c.now
		}
		if got := c.step(); got != want {
			t.Errorf("pass %d: %s", i, got)
		}
	}
}

// TestManyProblems checks that a pass over a list with many problems adds few events, because many
// events would displace others. Later passes report the other problems. Each problem is reported
// once.
func TestManyProblems(t *testing.T) {
	c := newClaimsTest(t)
	const problems = 12
	for i := range problems {
		c.list.Claims = append(c.list.Claims, claim.Claim{Member: claim.Member{Name: fmt.Sprintf("cp%d", i), Key: one.Key}, Template: "workers"})
	}
	c.list.Claims = append(c.list.Claims, c.list.Claims[0])
	reported := map[string]int{}
	for _, want := range []int{10, 0, 1, 1, 0} {
		c.step()
		if len(c.events) != want {
			t.Errorf("%d events, want %d: %q", len(c.events), want, c.events)
		}
		for _, e := range c.events {
			reported[e]++
		}
		if want < 10 {
			c.now = c.now.Add(10 * time.Second)
			c.list.Written = c.now
		}
	}
	for e, n := range reported {
		if n != 1 {
			t.Errorf("%s: %d times", e, n)
		}
	}
	if len(reported) != problems {
		t.Errorf("%d of %d problems are reported", len(reported), problems)
	}
}
