package approval

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
)

// Signatures is the number of approvers that must sign a call.
const Signatures = 2

// Rule has the approvers of calls.
type Rule struct {
	Approvers map[string]string // names of the operators by the fingerprints of their keys
}

// RuleOf returns the rule of a configuration.
func RuleOf(a *config.Approvals) Rule {
	r := Rule{Approvers: map[string]string{}}
	for _, p := range a.Approvers {
		r.Approvers[string(p.Key)] = p.Name
	}
	return r
}

// Call is a call that needs an approval, as the machine has received it.
type Call struct {
	Method  string // full name
	Machine string // fingerprint of the key of the machine
	Content map[string]string
	// Partial permits an approval with more content than the call has. If the configuration of a
	// machine has some of the approved values already, the call changes only the other values.
	Partial bool
}

// Accepted is the result of a verification.
type Accepted struct {
	Request
	By []string // names of the approvers that signed, sorted
}

// Verify checks an approval of a call at the time now. The errors do not name the object, the
// caller does.
func (r Rule) Verify(content []byte, c Call, now time.Time) (Accepted, error) {
	if len(content) == 0 {
		return Accepted{}, ErrMissing
	}
	f, err := ParseFile(content)
	if err != nil {
		return Accepted{}, err
	}
	// The signatures are verified before the request is parsed.
	by, err := r.signers(f)
	if err != nil {
		return Accepted{}, err
	}
	request, err := f.Request()
	if err == nil {
		err = request.checkCall(c)
	}
	if err == nil {
		err = request.checkTime(now)
	}
	if err != nil {
		return Accepted{}, err
	}
	return Accepted{request, by}, nil
}

// ErrMissing is the error for a call without an approval.
var ErrMissing = errors.New("the call has no approval")

// signers returns the names of the approvers that signed a file. It fails if a signature is
// invalid, if its key is not that of an approver, or if too few approvers signed.
func (r Rule) signers(f File) ([]string, error) {
	names := map[string]bool{}
	for _, s := range f.Signatures {
		name, known := r.Approvers[s.Fingerprint()]
		switch {
		case !known:
			return nil, fmt.Errorf("the key %s of a signature is not that of an approver (%s)", s.Fingerprint(), r.names())
		case !s.Signs(f.Text):
			return nil, fmt.Errorf("the signature of %s is not that of this text; after a change of the text, all approvers sign again", name)
		}
		names[name] = true
	}
	if len(names) < Signatures {
		return nil, fmt.Errorf("it has signatures of %d approvers, and %d must sign (%s)", len(names), Signatures, r.names())
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// names returns the names of all approvers.
func (r Rule) names() string {
	return strings.Join(slices.Sorted(maps.Values(r.Approvers)), ", ")
}

// checkCall returns an error if the request is for another call, another machine or other content.
func (r Request) checkCall(c Call) error {
	if r.Call != c.Method {
		return fmt.Errorf("it approves the call %s, not %s", r.Call, c.Method)
	}
	if !slices.ContainsFunc(r.Machines, func(m Machine) bool { return m.Key == c.Machine }) {
		return fmt.Errorf("it is not for this machine, which has the key %s", c.Machine)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Content)) {
		value, approved := r.Content[name]
		switch {
		case !approved:
			return fmt.Errorf("the call has the field %s, which is not approved", name)
		case value != c.Content[name]:
			return fmt.Errorf("the field %s has another value than the approved value", name)
		}
	}
	for _, name := range r.Fields() {
		if _, has := c.Content[name]; !has && !c.Partial {
			return fmt.Errorf("it approves a call with the field %s, which the call does not have", name)
		}
	}
	return nil
}

// checkTime returns an error if the request is not valid at the time now.
func (r Request) checkTime(now time.Time) error {
	switch {
	case now.Before(r.NotBefore):
		return fmt.Errorf("it is valid from %s, and the clock of this machine shows %s; compare the clocks", stamp(r.NotBefore), stamp(now))
	case !now.Before(r.Expires):
		return fmt.Errorf("it expired at %s", stamp(r.Expires))
	}
	return nil
}
