package hosts

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/diskselector"
	"github.com/orlop-os/orlop/orchestrator/hostmatch"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a rule approves a machine:
//
//	machine                                        OrlopHost             ledgers
//	waits; states a serial number of a valid rule  -                     -
//	and matches it                                 spec.approval.rule    -
//	is silent, or the rule ends, without a claim   -                     -
//	is claimed by a MachineSet                     spec.claim            an approval, for good
//	another key states the serial number           RuleRefused           the approval stays
//
// This approval is a proposal, which machined checks by the signature of the rule and by the ledger
// before it offers a configuration (machined/hosts/rules.go). So an approval that has had no effect
// yet can be withdrawn: a machine that waits in memory has another key after each boot.

// The reasons of the condition Valid of a rule.
const (
	reasonValid      = "Valid"
	reasonInvalid    = "Invalid" // the signature or the text
	reasonExpired    = "Expired"
	reasonExpression = "ExpressionInvalid"
	reasonExhausted  = "MaximumReached"
)

// rule is an OrlopApprovalRule.
type rule struct {
	claim.Rule
	object  *machineapi.OrlopApprovalRule
	id      string
	reason  string // of the condition
	problem string // the reason why the rule cannot be used
	match   *diskselector.Program
	pending int // approvals without an effect yet
}

// verdict is the decision of the rules about a host.
type verdict struct {
	identity string // with which a rule approves the machine
	refusal  string // the reason why a rule that lists the machine does not approve it
}

// decisions are the decisions of all rules.
type decisions struct {
	Snapshot
	rules     []*rule
	known     trust.Membership // approvals with an effect, and those of this plan
	verdicts  map[string]verdict
	approvals []Change // of hosts
	status    []Change // of rules
}

// decide returns the decisions of the rules. Without the list of machined, it makes none: the
// approvals stay.
func decide(s Snapshot) decisions {
	d := decisions{Snapshot: s, verdicts: map[string]verdict{}, known: trust.Membership{Approvals: slices.Clone(s.Listing.Approvals)}}
	if s.Listing.Members == nil {
		return d
	}
	d.rules = parseRules(s)
	waiting := map[string]inventory.Entry{}
	for _, e := range s.Listing.Waiting {
		waiting[machineapi.HostName(e.Key)] = e
	}
	objects := map[string]*machineapi.OrlopHost{}
	for _, h := range slices.SortedFunc(slices.Values(s.Objects), claimedFirst) {
		if objects[h.Name] = h; h.Approved() && h.Spec.Approval.Rule != "" && h.DeletionTimestamp == nil {
			e, found := waiting[h.Name]
			d.confirm(h, e, found)
		}
	}
	for _, e := range s.Listing.Waiting { // in the order of their first messages
		if h := objects[machineapi.HostName(e.Key)]; h != nil && h.Spec.Fingerprint == e.Key && h.Spec.Approval == nil && h.DeletionTimestamp == nil {
			d.propose(h, e)
		}
	}
	for _, r := range d.rules {
		d.describe(r)
	}
	return d
}

// claimedFirst compares hosts: a claimed machine may have its configuration already.
func claimedFirst(a, b *machineapi.OrlopHost) int {
	free := map[bool]int{true: 1}
	return cmp.Or(free[a.Spec.Claim == nil]-free[b.Spec.Claim == nil], cmp.Compare(a.Name, b.Name))
}

// parseRules returns the rules in the order of their names.
func parseRules(s Snapshot) (all []*rule) {
	operators, err := pki.ParseCerts(s.Listing.Operators)
	if len(s.Listing.Operators) == 0 || err != nil {
		operators = nil
	}
	for i, o := range slices.SortedFunc(slices.Values(s.Rules), func(a, b *machineapi.OrlopApprovalRule) int { return cmp.Compare(a.Name, b.Name) }) {
		r := parseRule(o, operators, s.Now)
		if i >= claim.MaxRules {
			r.reason, r.problem = reasonInvalid, fmt.Sprintf("there are more than %d rules; delete some", claim.MaxRules)
		}
		all = append(all, r)
	}
	return all
}

// parseRule verifies a rule. The expression is compiled once, and then when a machine needs it:
// the condition has the result.
func parseRule(o *machineapi.OrlopApprovalRule, operators []*x509.Certificate, now time.Time) *rule {
	signed := claim.SignedRule{Text: []byte(o.Spec.Rule), Signature: []byte(o.Spec.Signature)}
	r := &rule{object: o, id: signed.ID(), reason: reasonValid}
	var err error
	if r.Rule, _, err = signed.Verify(operators, now); err != nil {
		r.reason, r.problem = reasonInvalid, err.Error()
		if parsed, wrong := signed.Parse(); wrong == nil {
			if r.Rule = parsed; !now.Before(r.Expires) { // for the columns
				r.reason = reasonExpired
			}
		}
		return r
	}
	before := meta.FindStatusCondition(o.Status.Conditions, machineapi.ConditionValid)
	switch seen := before != nil && before.ObservedGeneration == o.Generation; {
	case seen && before.Reason == reasonExpression:
		r.reason, r.problem = reasonExpression, before.Message
	case !seen || before.Reason != reasonValid && before.Reason != reasonExhausted:
		r.compile()
	}
	return r
}

// compile compiles the expression of the rule.
func (r *rule) compile() {
	if r.match != nil || r.problem != "" || r.Match == "" {
		return
	}
	var err error
	if r.match, err = hostmatch.Compile(r.Match); err != nil {
		r.reason, r.problem = reasonExpression, machineapi.ConditionMessage("match: the expression "+err.Error())
	}
}

// approval returns the approval by the rule of a machine that states a serial number and a UUID. An
// error means that the rule does not list the machine.
func (r *rule) approval(key, serial, uuid string, now time.Time) (trust.Approval, error) {
	identity, listed := r.Find(serial, uuid)
	if !listed {
		return trust.Approval{}, fmt.Errorf("the rule does not list its serial number %q, nor its UUID", serial)
	}
	return trust.Approval{Serial: identity.Serial, UUID: identity.UUID, Key: key, Rule: r.id, Maximum: r.Maximum, Signed: r.Signed, At: now.UTC()}, nil
}

// evaluate returns the approval of a machine by the rule, and the reason why the rule does not
// approve it. listed is false if the rule does not list the machine.
func (d *decisions) evaluate(r *rule, e inventory.Entry) (a trust.Approval, listed bool, err error) {
	a, err = r.approval(e.Key, e.Host.Serial, e.Host.UUID, d.Now)
	if err != nil {
		return a, false, err
	}
	if r.problem != "" {
		return a, true, errors.New(r.problem)
	}
	if err := d.known.CheckApproval(a); err != nil {
		return a, true, err
	}
	if r.compile(); r.match == nil {
		if r.problem != "" {
			err = errors.New(r.problem)
		}
		return a, true, err
	}
	yes, err := r.match.Matches(hostmatch.Facts(describeHost(e.Host)))
	if err != nil {
		err = fmt.Errorf("the expression %q cannot be evaluated: %w", r.Match, err)
	} else if !yes {
		err = fmt.Errorf("the inventory does not match the expression %q", r.Match)
	}
	return a, true, err
}

// confirm compares an approval with its rule. An approval that has had an effect stays. Another one
// is withdrawn if the rule does not approve the machine any more, unless a MachineSet has claimed
// the machine: then it waits for an operator.
func (d *decisions) confirm(h *machineapi.OrlopHost, e inventory.Entry, waits bool) {
	name := h.Spec.Approval.Rule
	at := slices.IndexFunc(d.rules, func(r *rule) bool { return r.object.Name == name })
	var err error
	switch {
	case at < 0:
		err = fmt.Errorf("OrlopApprovalRule %s does not exist", name)
	case d.rules[at].problem != "":
		err = refusal(d.rules[at], errors.New(d.rules[at].problem))
	default:
		r := d.rules[at]
		for _, a := range d.known.Approvals {
			if a.Key == h.Spec.Fingerprint && a.Rule == r.id {
				d.verdicts[h.Name] = verdict{identity: claim.Identity{Serial: a.Serial, UUID: a.UUID}.String()}
				return
			}
		}
		if !waits && h.Spec.Claim == nil && !meta.IsStatusConditionTrue(h.Status.Conditions, machineapi.ConditionWaiting) {
			err = fmt.Errorf("the machine is silent, so its approval by OrlopApprovalRule %s ends; it is approved again when it returns", name)
			break
		}
		var a trust.Approval
		if waits {
			a, _, err = d.evaluate(r, e)
		} else { // the list has no inventory for the expression any more
			a, err = r.approval(h.Spec.Fingerprint, h.Status.Inventory.Serial, h.Status.Inventory.UUID, d.Now)
		}
		if err == nil {
			d.accept(r, h, a)
			return
		}
		err = refusal(r, err)
	}
	d.verdicts[h.Name] = verdict{refusal: machineapi.ConditionMessage(err.Error())}
	if h.Spec.Claim == nil {
		d.write(h, nil)
	}
}

// propose approves a machine by the first rule that lists it and approves it.
func (d *decisions) propose(h *machineapi.OrlopHost, e inventory.Entry) {
	var refused error
	for _, r := range d.rules {
		a, listed, err := d.evaluate(r, e)
		switch {
		case !listed:
		case err == nil:
			d.accept(r, h, a)
			d.write(h, &machineapi.HostApproval{Fingerprint: h.Spec.Fingerprint, Rule: r.object.Name})
			return
		case refused == nil:
			refused = refusal(r, err)
		}
	}
	if refused != nil {
		d.verdicts[h.Name] = verdict{refusal: machineapi.ConditionMessage(refused.Error())}
	}
}

// accept counts the approval of a host.
func (d *decisions) accept(r *rule, h *machineapi.OrlopHost, a trust.Approval) {
	d.known.Approvals = append(d.known.Approvals, a)
	r.pending++
	d.verdicts[h.Name] = verdict{identity: claim.Identity{Serial: a.Serial, UUID: a.UUID}.String()}
}

// write writes the approval of a host. The version of the object is that of the snapshot: an
// approval by an operator in the meantime has priority.
func (d *decisions) write(h *machineapi.OrlopHost, approval *machineapi.HostApproval) {
	h = h.DeepCopy()
	h.Spec.Approval = approval
	d.approvals = append(d.approvals, Change{Verb: Approve, Object: h})
}

func refusal(r *rule, err error) error {
	return fmt.Errorf("OrlopApprovalRule %s does not approve the machine: %w", r.object.Name, err)
}

// describe writes the status of a rule.
func (d *decisions) describe(r *rule) {
	next := r.object.DeepCopy()
	s := &next.Status
	s.Machines, s.Maximum, s.Expires, s.Approvals = int32(len(r.Machines)), int32(r.Maximum), nil, nil
	if !r.Expires.IsZero() {
		s.Expires = &metav1.Time{Time: r.Expires}
	}
	for _, a := range d.Listing.Approvals {
		if a.Rule == r.id && len(s.Approvals) < maxRuleApprovals {
			s.Approvals = append(s.Approvals, machineapi.RuleApproval{Serial: a.Serial, UUID: a.UUID, Fingerprint: a.Key, Time: metav1.NewTime(a.At.Truncate(time.Second))})
		}
	}
	s.Approved = int32(len(s.Approvals) + r.pending)
	if r.problem == "" && s.Approved >= s.Maximum {
		r.reason, r.problem = reasonExhausted, fmt.Sprintf("the rule has approved its maximum of %d machines", r.Maximum)
	}
	c := metav1.Condition{Type: machineapi.ConditionValid, Status: metav1.ConditionFalse, Reason: r.reason, Message: machineapi.ConditionMessage(r.problem), ObservedGeneration: r.object.Generation, LastTransitionTime: metav1.NewTime(d.Now)}
	if r.problem == "" {
		c.Status, c.Message = metav1.ConditionTrue, "the rule approves machines that it lists"
	}
	meta.SetStatusCondition(&s.Conditions, c)
	if !equality.Semantic.DeepEqual(r.object.Status, next.Status) {
		d.status = append(d.status, Change{Verb: Status, Rule: next})
	}
}

// maxRuleApprovals is the bound of the schema for OrlopApprovalRule.status.approvals.
const maxRuleApprovals = 128
