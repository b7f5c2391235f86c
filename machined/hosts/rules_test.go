package hosts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/pki"
)

// key returns the key fingerprint of machine n.
func key(n int) string { return fmt.Sprintf("sha256:%08x%056x", n, 0) }

// claimed returns the claim of machine n, which names an approval rule; "" if it names none.
func claimed(n int, rule string) claim.Claim {
	return claim.Claim{Member: claim.Member{Name: claim.Name("rack7", key(n)), Key: key(n)}, Template: "workers", Rule: rule}
}

func (c *claimsTest) signRule(r claim.Rule, by *pki.Leaf) claim.SignedRule {
	c.t.Helper()
	if r.Expires.IsZero() {
		r.Expires = c.now.Add(30 * time.Minute)
	}
	s, err := claim.SignRule(r, by, c.now)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// serials returns a rule that lists serial numbers and approves at most maximum machines.
func serials(maximum int, all ...string) claim.Rule {
	r := claim.Rule{Maximum: maximum}
	for _, s := range all {
		r.Machines = append(r.Machines, claim.Identity{Serial: s})
	}
	return r
}

// newRulesTest returns a control-plane machine to which machine 1 with the serial number SN-1 has
// sent its inventory, and a list that claims it by the rule "rack".
func newRulesTest(t *testing.T) *claimsTest {
	t.Helper()
	c := newClaimsTest(t)
	c.matches = func(string, inventory.Host) (bool, error) { return true, nil }
	c.hosts = map[string]inventory.Host{key(1): {Serial: "SN-1", CPUs: 4}}
	c.list.Rules = map[string]claim.SignedRule{"rack": c.signRule(serials(1, "SN-1", "SN-2"), c.admin)}
	c.list.Claims = []claim.Claim{claimed(1, "rack")}
	return c
}

// TestRules checks the conditions for the approval of a claim by a rule.
func TestRules(t *testing.T) {
	const refused = "failure: machine rack7-00000001: OrlopApprovalRule rack does not approve it: "
	for _, r := range []struct {
		name   string
		change func(*testing.T, *claimsTest)
		want   string // start of the event; "": approved; "none": not approved, and no event
	}{
		{"valid", func(*testing.T, *claimsTest) {}, ""},
		{"an expression that is true", func(_ *testing.T, c *claimsTest) {
			rule := serials(1, "SN-1")
			rule.Match = "host.cpus == 4"
			c.list.Rules["rack"] = c.signRule(rule, c.admin)
			c.matches = func(expression string, h inventory.Host) (bool, error) {
				return expression == "host.cpus == 4" && h.CPUs == 4, nil
			}
		}, ""},
		{"an expression that is false", func(_ *testing.T, c *claimsTest) {
			rule := serials(1, "SN-1")
			rule.Match = "false"
			c.list.Rules["rack"] = c.signRule(rule, c.admin)
			c.matches = func(string, inventory.Host) (bool, error) { return false, nil }
		}, refused + "its inventory does not match the expression"},
		{"an expression without a value", func(_ *testing.T, c *claimsTest) {
			rule := serials(1, "SN-1")
			rule.Match = "1 / 0 > 0"
			c.list.Rules["rack"] = c.signRule(rule, c.admin)
			c.matches = func(string, inventory.Host) (bool, error) { return false, errors.New("division by zero") }
		}, refused + "division by zero"},
		{"another serial number", func(_ *testing.T, c *claimsTest) {
			c.hosts[key(1)] = inventory.Host{Serial: "SN-9", UUID: "4c4c"}
		}, refused + `the rule lists neither its serial number "SN-9" nor its UUID "4c4c"`},
		{"no inventory", func(_ *testing.T, c *claimsTest) { delete(c.hosts, key(1)) }, refused + "it sends no inventory to this control-plane machine"},
		{"expired", func(_ *testing.T, c *claimsTest) {
			c.now = c.now.Add(30 * time.Minute)
			c.list.Written = c.now
		}, "failure: OrlopApprovalRule rack: rule: expired at"},
		{"another operator", func(t *testing.T, c *claimsTest) {
			c.list.Rules["rack"] = c.signRule(serials(1, "SN-1"), newClaimsTest(t).admin)
		}, "failure: OrlopApprovalRule rack: rule: the certificate of its signature is not of an operator"},
		{"changed", func(_ *testing.T, c *claimsTest) {
			s := c.list.Rules["rack"]
			s.Text = []byte(strings.Replace(string(s.Text), "SN-2", "SN-3", 1))
			c.list.Rules["rack"] = s
		}, "failure: OrlopApprovalRule rack: rule: the signature is not that of this text"},
		{"no rule", func(_ *testing.T, c *claimsTest) { c.list.Rules = nil }, "none"},
		{"no quorum", func(_ *testing.T, c *claimsTest) { c.recordErr = errors.New("no quorum") }, refused + "no quorum"},
		{"a template that demands a rule", func(_ *testing.T, c *claimsTest) { c.list.Templates["workers"] = c.ruleOnly() }, ""},
		{"a template that demands a rule, without a rule", func(_ *testing.T, c *claimsTest) {
			c.list.Templates["workers"] = c.ruleOnly()
			c.list.Claims[0].Rule = ""
		}, "failure: machine rack7-00000001: its template demands the approval by a signed rule"},
	} {
		c := newRulesTest(t)
		c.list.Templates["workers"] = c.sign("rack7", c.admin)
		r.change(t, c)
		want := r.want
		switch want {
		case "":
			want = "operation: machine rack7-00000001 is approved by OrlopApprovalRule rack of CN=alice,O=orlop:admin, as the machine with the serial number SN-1: " + key(1)
		case "none":
			want = ""
		}
		got := c.step()
		if !strings.HasPrefix(got, want) || want == "" && got != "" || (c.Offer(key(1)) != nil) != (r.want == "") {
			t.Errorf("%s: %s, offer %v", r.name, got, c.Offer(key(1)))
		}
		if again := c.step(); again != "" || (c.Offer(key(1)) != nil) != (r.want == "") {
			t.Errorf("%s: the next pass: %s", r.name, again)
		}
	}
}

func (c *claimsTest) ruleOnly() claim.Signed {
	c.t.Helper()
	s, err := claim.Sign(claim.Template{Documents: []byte("kind: Machine\n"), Prefix: "rack7", Expires: c.now.Add(time.Hour), RuleOnly: true}, c.admin, c.now)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// TestSerialOnce checks that a rule does not approve a second machine with the same serial number,
// until an operator approves the key of this machine or signs the rule again. The first machine
// stays approved when it sends no inventory any more.
func TestSerialOnce(t *testing.T) {
	c := newRulesTest(t)
	c.step()
	// The first machine applies its configuration, and sends no inventory any more.
	delete(c.hosts, key(1))
	c.hosts[key(2)] = inventory.Host{Serial: "SN-1"}
	c.list.Claims = append(c.list.Claims, claimed(2, "rack"))
	if got := c.step(); !strings.Contains(got, "machine rack7-00000002: OrlopApprovalRule rack does not approve it: another machine, with the key "+key(1)) || c.Offer(key(2)) != nil || c.Offer(key(1)) == nil {
		t.Errorf("%s, offers %v", got, c.offers)
	}
	// Another rule with the serial number, signed at the same time, does not approve the second
	// machine either.
	c.list.Rules["other"] = c.signRule(serials(2, "SN-1", "SN-3"), c.admin)
	c.list.Claims[1].Rule = "other"
	if got := c.step(); !strings.Contains(got, "another machine") || c.Offer(key(2)) != nil {
		t.Error(got)
	}
	// The operator approves the fingerprint of the second machine, so its claim needs no rule.
	c.list.Claims[1].Rule = ""
	if got := c.step(); got != "" || c.Offer(key(2)) == nil {
		t.Error(got)
	}
	// The operator signs the rule again. It then approves the second machine, because this machine
	// sends inventories, and not the first.
	c.now = c.now.Add(time.Minute)
	c.list.Written = c.now
	c.list.Rules["other"] = c.signRule(serials(2, "SN-1", "SN-3"), c.admin)
	c.list.Claims[1].Rule = "other"
	if got := c.step(); !strings.Contains(got, "operation: machine rack7-00000002 is approved by OrlopApprovalRule other") || c.Offer(key(2)) == nil {
		t.Error(got)
	}
	if got := c.step(); c.Offer(key(1)) != nil || !strings.Contains(got, "machine rack7-00000001: OrlopApprovalRule rack does not approve it: another machine") {
		t.Errorf("the first machine is still admitted: %s", got)
	}
}

// TestReplacedRule signs a rule again after it has approved a machine. This machine already has its
// configuration and sends no inventory, so the new rule cannot approve it. The test checks the
// event.
func TestReplacedRule(t *testing.T) {
	c := newRulesTest(t)
	c.step()
	// The first machine applies its configuration, and sends no inventory any more.
	delete(c.hosts, key(1))
	c.now = c.now.Add(time.Minute)
	c.list.Written = c.now
	c.list.Rules["rack"] = c.signRule(serials(1, "SN-1"), c.admin)
	if got := c.step(); !strings.Contains(got, "it sends no inventory any more; approve its join request") || c.Offer(key(1)) != nil {
		t.Error(got)
	}
}

// TestAttempts checks that the approval of a rejected claim is tried again after refusalInterval,
// and that a pass evaluates the expressions of at most eight claims.
func TestAttempts(t *testing.T) {
	c := newRulesTest(t)
	rule := serials(20)
	c.list.Claims = nil
	for i := range 20 {
		rule.Machines = append(rule.Machines, claim.Identity{Serial: fmt.Sprint("SN-", i)})
		c.hosts[key(i)] = inventory.Host{Serial: fmt.Sprint("SN-", i)}
		c.list.Claims = append(c.list.Claims, claimed(i, "rack"))
	}
	rule.Match = "false"
	c.list.Rules["rack"] = c.signRule(rule, c.admin)
	c.matches = func(string, inventory.Host) (bool, error) { return false, nil }
	for i, want := range []int{8, 16, 20, 20} {
		if c.step(); c.evaluated != want {
			t.Errorf("pass %d: %d evaluations, want %d", i, c.evaluated, want)
		}
	}
	c.now = c.now.Add(refusalInterval)
	c.list.Written = c.now
	if c.step(); c.evaluated != 28 || len(c.approvals.refused) != 8 {
		t.Errorf("%d evaluations, %d refusals", c.evaluated, len(c.approvals.refused))
	}
}

// TestTurns checks that successive passes try all claims of a list: the last claim is approved
// although all claims before it are always rejected.
func TestTurns(t *testing.T) {
	c := newRulesTest(t)
	const last = 59
	c.hosts = map[string]inventory.Host{key(last): {Serial: "SN-1"}}
	c.list.Claims = nil
	for i := range last + 1 {
		c.list.Claims = append(c.list.Claims, claimed(i, "rack"))
	}
	for range (last + maxAttempts) / maxAttempts {
		c.step()
		c.now = c.now.Add(claimsInterval)
		c.list.Written = c.now
	}
	if c.Offer(key(last)) == nil {
		t.Error("the last claim was never tried")
	}
}

// TestRulesInRandomWorlds checks passes over random lists, as an attacker with the rights of the
// controllers can write them: any claims name any rules, and machines state any serial numbers. The
// template requires an approval by a rule. For each machine to which machined offers a
// configuration, the rule is signed by an operator and not expired, has approved at most its
// maximum of machines, and no other machine was approved with the same serial number.
func TestRulesInRandomWorlds(t *testing.T) {
	offered := 0
	for seed := range 60 {
		r := rand.New(rand.NewPCG(uint64(seed), 120))
		c := newRulesTest(t)
		c.list.Templates["workers"] = c.ruleOnly()
		foreign := newClaimsTest(t).admin
		type known struct {
			claim.Rule
			valid bool
		}
		rules := map[string]known{}
		for i := range 4 {
			rule := claim.Rule{Maximum: 1 + r.IntN(2), Match: "host.cpus == 4", Expires: c.now.Add(time.Duration(1+r.IntN(4)) * time.Minute)}
			for s := range 2 + r.IntN(3) {
				rule.Machines = append(rule.Machines, claim.Identity{Serial: fmt.Sprint("SN-", s)})
			}
			by, valid := c.admin, r.IntN(4) > 0
			if !valid {
				by = foreign
			}
			rules[fmt.Sprint(i)] = known{rule, valid}
			c.list.Rules[fmt.Sprint(i)] = c.signRule(rule, by)
		}
		c.matches = func(_ string, h inventory.Host) (bool, error) { return h.CPUs == 4, nil }
		serial, of, by := map[string]string{}, map[string]map[string]bool{}, map[string]string{}
		for range 15 {
			c.now = c.now.Add(time.Duration(r.IntN(60)) * time.Second)
			c.list.Written = c.now
			c.list.Claims = nil
			for n := range 6 {
				if r.IntN(3) == 0 {
					c.hosts[key(n)] = inventory.Host{Serial: fmt.Sprint("SN-", r.IntN(5)), CPUs: 4 * r.IntN(2)}
				}
				if r.IntN(2) == 0 {
					c.list.Claims = append(c.list.Claims, claimed(n, []string{"", "0", "1", "2", "3", "none"}[r.IntN(6)]))
				}
			}
			c.recordErr = nil
			if r.IntN(4) == 0 {
				c.recordErr = errors.New("no quorum")
			}
			c.step()
			for k := range c.offers {
				offered++
				made, _ := c.list.Of(k)
				rule := rules[made.Rule]
				if !rule.valid || !c.now.Before(rule.Expires) {
					t.Fatalf("seed %d: offered by rule %q, valid %v, expiry %v", seed, made.Rule, rule.valid, rule.Expires)
				}
				if of[made.Rule] == nil {
					of[made.Rule] = map[string]bool{}
				}
				if of[made.Rule][k] = true; len(of[made.Rule]) > rule.Maximum {
					t.Fatalf("seed %d: rule %s has approved %d machines, maximum %d", seed, made.Rule, len(of[made.Rule]), rule.Maximum)
				}
				for _, a := range c.ledger.Approvals {
					if a.Key == k && a.Rule == c.list.Rules[made.Rule].ID() {
						serial[k+made.Rule] = a.Serial
						if other := by[a.Serial]; other != "" && other != k {
							t.Fatalf("seed %d: two machines have the serial number %s", seed, a.Serial)
						}
						by[a.Serial] = k
					}
				}
				if serial[k+made.Rule] == "" {
					t.Fatalf("seed %d: the ledger does not have the approval", seed)
				}
			}
		}
	}
	if offered < 40 {
		t.Errorf("%d offers in all passes, want at least 40", offered)
	}
}
