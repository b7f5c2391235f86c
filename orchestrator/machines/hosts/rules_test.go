package hosts

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// operatorCA is the CA of the operator, and admin is a certificate of this CA. stranger is a
// certificate of another operator. All are valid at the time of the scripts.
var operatorCA, admin = newOperator()
var _, stranger = newOperator()

func newOperator() (ca, admin *pki.Leaf) {
	issue := func(template *x509.Certificate, by *pki.Leaf) *pki.Leaf {
		key, err := pki.NewKey()
		if err != nil {
			panic(err)
		}
		template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), start.Add(-time.Hour), start.Add(1000*time.Hour)
		parent, signer := template, key
		if by != nil {
			parent, signer = by.Cert, by.Key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			panic(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			panic(err)
		}
		return &pki.Leaf{Cert: cert, Key: key}
	}
	ca = issue(&x509.Certificate{Subject: pkix.Name{CommonName: "operator"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	return ca, issue(&x509.Certificate{Subject: pkix.Name{CommonName: "alice", Organization: []string{pki.RoleAdmin}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca)
}

// rule performs the command "rule": it signs a rule, and creates or replaces its object.
func (w *world) rule(args []string) {
	w.t.Helper()
	maximum, err := strconv.Atoi(args[1])
	if err != nil {
		w.t.Fatal(err)
	}
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		w.t.Fatal(err)
	}
	r, by := claim.Rule{Maximum: maximum, Expires: w.Now.Add(ttl), Match: w.input}, admin
	for _, a := range args[3:] {
		if a == "by=stranger" {
			by = stranger
			continue
		}
		r.Machines = append(r.Machines, claim.Identity{Serial: a})
	}
	s, err := claim.SignRule(r, by, w.Now)
	if err != nil {
		w.t.Fatal(err)
	}
	o := &machineapi.OrlopApprovalRule{ObjectMeta: metav1.ObjectMeta{Name: args[0], Generation: 1}}
	if i := slices.IndexFunc(w.Rules, func(o *machineapi.OrlopApprovalRule) bool { return o.Name == args[0] }); i >= 0 {
		o = w.Rules[i].DeepCopy()
		o.Generation++
		w.Rules = slices.Delete(slices.Clone(w.Rules), i, i+1)
	}
	o.Spec = machineapi.OrlopApprovalRuleSpec{Rule: string(s.Text), Signature: string(s.Signature)}
	w.Rules = append(w.Rules, o)
}

// effect records the approval of a host by its rule if the rule is valid, as machined does. It
// reports whether it has recorded the approval.
func (w *world) effect(h *machineapi.OrlopHost) bool {
	w.t.Helper()
	if h.Spec.Approval == nil {
		return false
	}
	i := slices.IndexFunc(w.Rules, func(o *machineapi.OrlopApprovalRule) bool { return o.Name == h.Spec.Approval.Rule })
	if i < 0 {
		return false
	}
	s := claim.SignedRule{Text: []byte(w.Rules[i].Spec.Rule), Signature: []byte(w.Rules[i].Spec.Signature)}
	r, _, err := s.Verify([]*x509.Certificate{operatorCA.Cert}, w.Now)
	if err != nil {
		return false
	}
	identity, listed := r.Find(h.Status.Inventory.Serial, h.Status.Inventory.UUID)
	if !listed {
		return false
	}
	known := trust.Ledger{Membership: trust.Membership{Approvals: w.Listing.Approvals}}
	next, err := known.AddApproval(trust.Approval{Serial: identity.Serial, Key: h.Spec.Fingerprint, Rule: s.ID(), Maximum: r.Maximum, Signed: r.Signed, At: w.Now})
	w.Listing.Approvals = next.Approvals
	return err == nil
}

// TestRuleBound checks that a rule beyond the first claim.MaxRules approves no machine, and that
// its condition states the reason.
func TestRuleBound(t *testing.T) {
	w := &world{t: t, Snapshot: Snapshot{Now: start, Listing: inventory.Listing{Members: []string{}, Operators: pki.EncodeCert(operatorCA.Cert)}}}
	for i := range claim.MaxRules + 1 {
		w.rule([]string{fmt.Sprintf("r%02d", i), "1", "1h", fmt.Sprint("SN-", i)})
	}
	w.command("tell", []string{"1", "10.0.0.21", "SN-16"})
	w.settle()
	if h := w.object("1"); h.Spec.Approval != nil {
		t.Errorf("a machine is approved by %s, which is beyond the limit of rules", h.Spec.Approval.Rule)
	}
	if c := meta.FindStatusCondition(w.Rules[claim.MaxRules].Status.Conditions, machineapi.ConditionValid); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "more than 16 rules") {
		t.Errorf("%+v", c)
	}
}

// TestRulesInRandomWorlds simulates machines that begin and stop waiting, rules that are created
// and expire, claims, and approvals by operators. Several machines state the same serial number.
//
// It checks that no rule approves more machines than its maximum, and that no two machines are
// approved with the same serial number. An expired rule, or a rule that the other operator has
// signed (stranger), approves no machine. settle checks that the changes end.
func TestRulesInRandomWorlds(t *testing.T) {
	proposed, effective := 0, 0
	for seed := range 30 {
		r := mathrand.New(mathrand.NewPCG(uint64(seed), 120))
		w := &world{t: t, Snapshot: Snapshot{Now: start, Listing: inventory.Listing{Members: []string{}, Operators: pki.EncodeCert(operatorCA.Cert)}}}
		strangers := map[string]bool{}
		for range 25 {
			w.Now = w.Now.Add(time.Duration(r.IntN(200)) * time.Second)
			n := fmt.Sprintf("%x", 1+r.IntN(6))
			h := func() *machineapi.OrlopHost {
				if i := slices.IndexFunc(w.Objects, func(o *machineapi.OrlopHost) bool { return o.Name == machineapi.HostName(fingerprint(n)) }); i >= 0 {
					return w.Objects[i]
				}
				return nil
			}()
			switch r.IntN(8) {
			case 0, 1, 2:
				w.Listing.Waiting = slices.DeleteFunc(w.Listing.Waiting, func(e inventory.Entry) bool { return e.Key == fingerprint(n) })
				w.Listing.Waiting = append(w.Listing.Waiting, inventory.Entry{
					Key: fingerprint(n), Address: netip.MustParseAddr("10.0.0.9"), Since: w.Now, Last: w.Now, Host: inventory.Host{Serial: fmt.Sprint("SN-", r.IntN(3)), CPUs: 2 * r.IntN(2)},
				})
			case 3:
				w.command("end", []string{n})
			case 4:
				args, name := []string{fmt.Sprint("r", r.IntN(3)), fmt.Sprint(1 + r.IntN(2)), fmt.Sprint(5+r.IntN(20), "m"), "SN-0", "SN-1"}, ""
				if name = args[0]; r.IntN(3) == 0 {
					args = append(args, "by=stranger")
				}
				w.input = []string{"", "host.cpus == 2", "host.cpus / 0 > 1"}[r.IntN(3)]
				strangers[name] = len(args) == 6
				w.rule(args)
			case 5:
				for _, h := range w.Objects {
					if h.Approved() && h.Spec.Claim == nil {
						h.Spec.Claim = &machineapi.HostClaim{MachineSet: "rack7"}
						if w.effect(h) {
							effective++
						}
						break
					}
				}
			case 6:
				if h != nil && r.IntN(4) == 0 {
					h.Spec.Approval = &machineapi.HostApproval{Fingerprint: h.Spec.Fingerprint}
				}
			}
			before := map[string]bool{}
			for _, o := range w.Objects {
				before[o.Name] = o.Approved()
			}
			w.settle()
			proposed += w.checkApprovals(seed, before, strangers)
		}
	}
	if proposed < 20 || effective < 8 {
		t.Errorf("rules approved %d machines, want at least 20; machined recorded %d approvals, want at least 8", proposed, effective)
	}
}

// checkApprovals checks the approvals by rules after the changes, and returns the number of new
// approvals.
func (w *world) checkApprovals(seed int, before, strangers map[string]bool) (proposed int) {
	w.t.Helper()
	of, keys := map[string]map[string]bool{}, map[string]string{}
	count := func(rule, serial, key string) {
		if of[rule] == nil {
			of[rule] = map[string]bool{}
		}
		of[rule][key] = true
		if other := keys[serial]; other != "" && other != key {
			w.t.Fatalf("seed %d: two machines with the serial number %s are approved", seed, serial)
		}
		keys[serial] = key
	}
	for _, o := range w.Objects {
		if !o.Approved() || o.Spec.Approval.Rule == "" || o.Spec.Claim != nil {
			continue // a claimed machine waits for an operator
		}
		i := slices.IndexFunc(w.Rules, func(r *machineapi.OrlopApprovalRule) bool { return r.Name == o.Spec.Approval.Rule })
		rule, err := claim.SignedRule{Text: []byte(w.Rules[i].Spec.Rule)}.Parse()
		if err != nil || strangers[w.Rules[i].Name] || !w.Now.Before(rule.Expires) {
			w.t.Fatalf("seed %d: a machine is approved by the invalid rule %s (signed by a stranger: %v), expiry %v, %v", seed, w.Rules[i].Name, strangers[w.Rules[i].Name], rule.Expires, err)
		}
		if !before[o.Name] {
			proposed++
		}
		count(w.Rules[i].Name, o.Status.Inventory.Serial, o.Spec.Fingerprint)
	}
	for _, r := range w.Rules {
		id := claim.SignedRule{Text: []byte(r.Spec.Rule)}.ID()
		for _, a := range w.Listing.Approvals {
			if a.Rule == id && of[r.Name] != nil {
				of[r.Name][a.Key] = true
			}
		}
		if rule, err := (claim.SignedRule{Text: []byte(r.Spec.Rule)}).Parse(); err != nil || len(of[r.Name]) > rule.Maximum {
			w.t.Fatalf("seed %d: rule %s approves %d machines, maximum %d, %v", seed, r.Name, len(of[r.Name]), rule.Maximum, err)
		}
	}
	return proposed
}
