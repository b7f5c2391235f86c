package trust

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// approvalOf returns an approval for the machine with the serial number serial and the key with the
// number key. The rule of the approval can approve two machines.
func approvalOf(serial string, key int) Approval {
	return Approval{Serial: serial, Key: fmt.Sprintf("sha256:%064x", key), Rule: strings.Repeat("a", 64), Maximum: 2, Signed: began, At: began.Add(time.Minute)}
}

// TestAddApproval checks which approvals a ledger accepts if it already has the approval of SN-1.
func TestAddApproval(t *testing.T) {
	first := approvalOf("SN-1", 1)
	first.UUID = "4c4c"
	l, err := Ledger{}.AddApproval(first)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*Approval)
		want   string // part of the error
	}{
		{"the same approval at a later time", func(a *Approval) { *a = first; a.At = a.At.Add(time.Hour) }, ""},
		{"another machine", func(a *Approval) { a.Serial = "SN-2" }, ""},
		{"the serial number of SN-1 with another key", func(*Approval) {}, "another machine, with the key " + first.Key},
		{"the UUID of SN-1 with another key", func(a *Approval) { a.Serial, a.UUID = "", "4c4c" }, "another machine"},
		{"the serial number of SN-1 by another rule", func(a *Approval) { a.Rule = strings.Repeat("b", 64) }, "approve its fingerprint, or sign the rule again"},
		{"signed at the time of the approval", func(a *Approval) { a.Signed, a.At = first.At, first.At }, "another machine"},
		{"signed after the approval", func(a *Approval) { a.Signed, a.At = first.At.Add(1), first.At.Add(1) }, ""},
		{"more machines than the maximum of the rule", func(a *Approval) { a.Serial, a.Maximum = "SN-2", 1 }, "its maximum of 1 machines"},
		{"older than its rule", func(a *Approval) { a.At = a.Signed.Add(-1) }, "older than its rule"},
		{"no identity", func(a *Approval) { a.Serial = "" }, "serial number"},
		{"a long identity", func(a *Approval) { a.Serial = strings.Repeat("1", 65) }, "serial number"},
		{"an invalid rule", func(a *Approval) { a.Rule = "x" }, "rule"},
		{"an invalid key", func(a *Approval) { a.Key = "x" }, "key"},
		{"no maximum", func(a *Approval) { a.Serial, a.Maximum = "SN-2", 0 }, "maximum 0"},
	} {
		a := approvalOf("SN-1", 2)
		c.change(&a)
		next, err := l.AddApproval(a)
		if c.want == "" && (err != nil || !next.HasApproval(a.ID())) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if len(l.Approvals) != 1 {
			t.Fatalf("%s: the old ledger has changed", c.name)
		}
	}
}

// TestApprovalBounds checks the maximum number of approvals. It also checks that an approval stays
// in the ledger for keepApproval, and that no merge adds it again after that time.
func TestApprovalBounds(t *testing.T) {
	var l Ledger
	for i := range maxApprovals {
		a := approvalOf(fmt.Sprint("SN-", i), i)
		a.Rule = fmt.Sprintf("%064x", i)
		l.Approvals = append(l.Approvals, a)
	}
	if _, err := l.AddApproval(approvalOf("SN-x", 1)); err == nil || !strings.Contains(err.Error(), "1000 approvals") {
		t.Error(err)
	}
	if _, err := l.AddApproval(l.Approvals[7]); err != nil {
		t.Errorf("error of a known approval: %v", err)
	}
	earlier := l.Approvals[7]
	earlier.At = earlier.At.Add(-time.Second)
	if next, err := l.AddApproval(earlier); err != nil || next.Approvals[7] != l.Approvals[7] {
		t.Errorf("a known approval with an earlier time: %+v, %v", next.Approvals[7], err)
	}
	s := &Session{}
	end := began.Add(time.Minute + keepApproval)
	if next, pruned := l.Prune(s, end); pruned || len(next.Approvals) != maxApprovals {
		t.Error("an approval was pruned too early")
	}
	next, pruned := l.Prune(s, end.Add(1))
	if !pruned || len(next.Approvals) != 0 || len(l.Approvals) != maxApprovals {
		t.Error("an old approval was not pruned")
	}
	if merged, changed, err := next.MergeMembership(l.Membership, s, end.Add(1)); err != nil || changed || len(merged.Approvals) != 0 {
		t.Errorf("a merge adds an old approval again: %v, %v", changed, err)
	}
	l.Floor = began // the clock is ahead of Floor, so nothing is pruned
	if _, pruned := l.Prune(s, end.Add(1)); pruned {
		t.Error("an approval was pruned by a clock that is ahead")
	}
	if _, _, err := next.MergeMembership(Membership{Approvals: []Approval{{}}}, s, end); err == nil {
		t.Error("MergeMembership accepts an invalid approval")
	}
}

// proposal is an approval that a control-plane machine stores and then proposes to the other
// machines, one after another.
type proposal struct {
	Approval
	by, at   int   // index of the proposer; position of the next machine in order
	order    []int // indexes of all machines, the proposer included
	accepted int   // number of machines that have stored the approval, the proposer included
	refused  bool  // the proposer itself has refused the approval
}

// TestApprovalsInRandomWorlds simulates control-plane machines that propose contradictory approvals
// at the same time, while messages are lost and machines poll each other. It checks the approvals
// that a majority has stored. Two of them can have the same serial number with different keys only
// if the rule of one was signed after the time of the other. No rule has more approvals than its
// maximum.
func TestApprovalsInRandomWorlds(t *testing.T) {
	effective := 0
	for seed := range 300 {
		r := rand.New(rand.NewPCG(uint64(seed), 120))
		voters := []int{1, 3, 5}[r.IntN(3)]
		ledgers, sessions := make([]Ledger, voters), make([]Session, voters)
		now := began
		signed := map[string]time.Time{}
		var open []*proposal
		var done []Approval
		for range 60 {
			now = now.Add(time.Duration(r.IntN(3)) * time.Second)
			switch r.IntN(3) {
			case 0:
				rule := fmt.Sprintf("%064x", r.IntN(3))
				if r.IntN(8) == 0 || signed[rule].IsZero() { // sign a new rule
					rule = fmt.Sprintf("%064x", 3+len(signed))
					signed[rule] = now
				}
				open = append(open, &proposal{by: r.IntN(voters), order: r.Perm(voters), Approval: Approval{
					Serial: fmt.Sprint("SN-", r.IntN(3)), Key: fmt.Sprintf("sha256:%064x", r.IntN(5)), Rule: rule, Maximum: 1 + int(rule[63])%2, Signed: signed[rule], At: now,
				}})
			case 1: // machine a polls machine b
				a, b := r.IntN(voters), r.IntN(voters)
				next, _, err := ledgers[a].MergeMembership(ledgers[b].Public(), &sessions[a], now)
				if err != nil {
					t.Fatal(err)
				}
				ledgers[a] = next
			default: // the next step of a proposal
				if len(open) == 0 {
					continue
				}
				p := open[r.IntN(len(open))]
				p.step(ledgers, r.IntN(4) == 0)
				if p.accepted >= Majority(voters) {
					done = append(done, p.Approval)
					effective++
				}
				if p.refused || p.at == len(p.order) || p.accepted >= Majority(voters) {
					open = slices.DeleteFunc(open, func(o *proposal) bool { return o == p })
				}
			}
		}
		if err := consistent(done); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if effective < 500 {
		t.Errorf("only %d approvals are effective", effective)
	}
}

// step adds the approval to the ledger of the proposer in the first call, and to the ledger of the
// next machine in each later call. If lost is true, the message to that machine is lost.
func (p *proposal) step(ledgers []Ledger, lost bool) {
	if p.accepted == 0 {
		next, err := ledgers[p.by].AddApproval(p.Approval)
		if ledgers[p.by], p.accepted = next, 1; err != nil {
			p.refused, p.accepted = true, 0
		}
		return
	}
	to := p.order[p.at]
	p.at++
	if to == p.by || lost {
		return
	}
	if next, err := ledgers[to].AddApproval(p.Approval); err == nil {
		ledgers[to] = next
		p.accepted++
	}
}

// consistent returns an error if effective approvals contradict each other, or if a rule has more
// effective approvals than its maximum.
func consistent(done []Approval) error {
	used := map[string]map[string]bool{}
	for i, a := range done {
		if used[a.Rule] == nil {
			used[a.Rule] = map[string]bool{}
		}
		if used[a.Rule][a.ID()] = true; len(used[a.Rule]) > a.Maximum {
			return fmt.Errorf("%d approvals by rule %s, maximum %d", len(used[a.Rule]), a.Rule[60:], a.Maximum)
		}
		for _, b := range done[:i] {
			if a.Serial == b.Serial && a.Key != b.Key && !b.At.Before(a.Signed) && !a.At.Before(b.Signed) {
				return fmt.Errorf("two machines have the serial number %s: %+v, %+v", a.Serial, a, b)
			}
		}
	}
	return nil
}
