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

// This table shows how a rule approves a machine. The ledgers are those of the voters:
//
//	machine                                        OrlopHost             ledgers
//	waits; states a serial number of a valid rule  -                     -
//	and matches it                                 spec.approval.rule    -
//	is silent, or the rule ends, without a claim   -                     -
//	is claimed by a MachineSet                     spec.claim            an approval, for good
//	another key states the serial number           RuleRefused           the approval stays
//
// The approval in an OrlopHost is only a proposal. machined checks the signature of the rule and
// the ledger before it offers a configuration to the machine (machined/hosts/rules.go). It then
// records the approval in the ledger, and the approval has an effect. Before that, the controllers
// can withdraw the proposal. This is necessary because the proposal is for the key of the machine,
// and a waiting machine has another key after each boot.

// These are the reasons of the condition Valid of a rule.
const (
	reasonValid      = "Valid"
	reasonInvalid    = "Invalid" // the signature or the text is invalid
	reasonExpired    = "Expired"
	reasonExpression = "ExpressionInvalid"
	reasonExhausted  = "MaximumReached"
)

// rule is a parsed OrlopApprovalRule.
type rule struct {
	claim.Rule
	object  *machineapi.OrlopApprovalRule
	id      string
	reason  string // the reason of the condition Valid
	problem string // why the rule cannot be used, or empty
	match   *diskselector.Program
	pending int // number of approvals without an effect yet
}

// verdict is the decision of the rules about a waiting machine.
type verdict struct {
	identity string // the serial number or UUID by which a rule approves the machine
	refusal  string // why a rule that lists the machine does not approve it, or empty
}

// decisions are the decisions of all rules about all waiting machines.
type decisions struct {
	Snapshot
	rules []*rule
	// known contains the approvals with an effect, and the approvals that this plan accepts.
	known     trust.Membership
	verdicts  map[string]verdict
	approvals []Change // changes of hosts
	status    []Change // changes of rules
}

// decide returns the decisions of the rules. Without the list of machined, it returns no decisions,
// and existing approvals stay.
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
	for _, e := range s.Listing.Waiting { // the order is that of their first messages
		if h := objects[machineapi.HostName(e.Key)]; h != nil && h.Spec.Fingerprint == e.Key && h.Spec.Approval == nil && h.DeletionTimestamp == nil {
			d.propose(h, e)
		}
	}
	for _, r := range d.rules {
		d.describe(r)
	}
	return d
}

// claimedFirst is the order in which existing approvals are confirmed: claimed machines first, then
// by name. Claimed machines have precedence within the maximum of a rule, because they may have
// their configuration already.
func claimedFirst(a, b *machineapi.OrlopHost) int {
	free := map[bool]int{true: 1}
	return cmp.Or(free[a.Spec.Claim == nil]-free[b.Spec.Claim == nil], cmp.Compare(a.Name, b.Name))
}

// parseRules returns all rules, sorted by name. Rules beyond the first claim.MaxRules have a
// problem.
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

// parseRule parses a rule and verifies its signature. It compiles the expression only if the
// condition Valid has no result for this generation yet. After that, evaluate compiles the
// expression when a machine needs it.
func parseRule(o *machineapi.OrlopApprovalRule, operators []*x509.Certificate, now time.Time) *rule {
	signed := claim.SignedRule{Text: []byte(o.Spec.Rule), Signature: []byte(o.Spec.Signature)}
	r := &rule{object: o, id: signed.ID(), reason: reasonValid}
	var err error
	if r.Rule, _, err = signed.Verify(operators, now); err != nil {
		r.reason, r.problem = reasonInvalid, err.Error()
		if parsed, wrong := signed.Parse(); wrong == nil {
			if r.Rule = parsed; !now.Before(r.Expires) { // the columns of kubectl show these fields
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

// compile compiles the expression of the rule, if it has one and is not compiled yet. If the
// expression is invalid, compile sets the problem of the rule.
func (r *rule) compile() {
	if r.match != nil || r.problem != "" || r.Match == "" {
		return
	}
	var err error
	if r.match, err = hostmatch.Compile(r.Match); err != nil {
		r.reason, r.problem = reasonExpression, machineapi.ConditionMessage("match: the expression "+err.Error())
	}
}

// approval returns the approval of the machine with this key, serial number and UUID. It fails if
// the rule does not list the machine.
func (r *rule) approval(key, serial, uuid string, now time.Time) (trust.Approval, error) {
	identity, listed := r.Find(serial, uuid)
	if !listed {
		return trust.Approval{}, fmt.Errorf("the rule does not list its serial number %q, nor its UUID", serial)
	}
	return trust.Approval{Serial: identity.Serial, UUID: identity.UUID, Key: key, Rule: r.id, Maximum: r.Maximum, Signed: r.Signed, At: now.UTC()}, nil
}

// evaluate returns the approval of a machine by the rule, or the reason why the rule does not
// approve the machine as an error. listed is false if the rule does not list the machine.
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

// confirm checks an existing approval by a rule. An approval that has had an effect stays. Any
// other approval is withdrawn if the rule does not approve the machine any more. If a MachineSet
// has claimed the machine, the approval stays and the host has a refusal, until an operator
// decides. waits means that machined lists the machine, with the inventory in e.
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
		} else { // without the inventory, the expression cannot be evaluated
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

// propose approves a waiting machine by the first rule that lists it and approves it. If no rule
// approves the machine, the first refusal becomes its verdict.
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

// accept records an approval of a host, so that it counts for the maximum of its rule.
func (d *decisions) accept(r *rule, h *machineapi.OrlopHost, a trust.Approval) {
	d.known.Approvals = append(d.known.Approvals, a)
	r.pending++
	d.verdicts[h.Name] = verdict{identity: claim.Identity{Serial: a.Serial, UUID: a.UUID}.String()}
}

// write adds a change of the approval of a host. The change has the resource version of the
// snapshot, so the write fails if an operator has approved the machine since then.
func (d *decisions) write(h *machineapi.OrlopHost, approval *machineapi.HostApproval) {
	h = h.DeepCopy()
	h.Spec.Approval = approval
	d.approvals = append(d.approvals, Change{Verb: Approve, Object: h})
}

func refusal(r *rule, err error) error {
	return fmt.Errorf("OrlopApprovalRule %s does not approve the machine: %w", r.object.Name, err)
}

// describe adds a change that writes the status of a rule if it differs.
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

// maxRuleApprovals is the largest number of entries in OrlopApprovalRule.status.approvals by the
// CustomResourceDefinition.
const maxRuleApprovals = 128
