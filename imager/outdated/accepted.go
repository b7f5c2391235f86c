package outdated

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// Acceptance is the decision that a vulnerability of a module does not affect the image. It ends
// after the day Until. The maintainers then have to examine the vulnerability again.
type Acceptance struct {
	ID     string `json:"id"`
	Module string `json:"module"`
	Until  string `json:"until"` // the last day, in the form 2006-01-02
	Reason string `json:"reason"`
}

// ParseAccepted parses a JSON list of acceptances. It fails if a field is missing, or if an
// acceptance occurs twice.
func ParseAccepted(file string, text []byte) ([]Acceptance, error) {
	var all []Acceptance
	if err := strictyaml.Decode(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	seen := map[[2]string]bool{}
	for _, a := range all {
		key := [2]string{a.ID, a.Module}
		switch _, err := time.Parse(time.DateOnly, a.Until); {
		case a.ID == "" || a.Module == "" || a.Reason == "":
			return nil, fmt.Errorf("%s: %+v: id, module and reason are necessary", file, a)
		case err != nil:
			return nil, fmt.Errorf("%s: %s: until: a date such as 2027-03-31 expected: %w", file, a.ID, err)
		case seen[key]:
			return nil, fmt.Errorf("%s: %s of %s is listed twice", file, a.ID, a.Module)
		}
		seen[key] = true
	}
	return all, nil
}

// accept returns the findings with the reasons of the acceptances that are valid on the day (in the
// form 2006-01-02). It also returns a line for each acceptance without effect. An acceptance has no
// effect if it has ended, or if it matches no finding.
func accept(findings []Finding, accepted []Acceptance, day string) (marked []Finding, without []string) {
	reasons, needed := map[[2]string]string{}, map[[2]string]bool{}
	for _, a := range accepted {
		if a.Until >= day {
			reasons[[2]string{a.ID, a.Module}] = a.Reason
		}
	}
	for _, f := range findings {
		key := [2]string{f.ID, f.Module}
		f.Accepted = reasons[key]
		needed[key] = true
		marked = append(marked, f)
	}
	for _, a := range accepted {
		switch {
		case a.Until < day:
			without = append(without, fmt.Sprintf("%s of %s: ended on %s; examine it again", a.ID, a.Module, a.Until))
		case len(findings) > 0 && !needed[[2]string{a.ID, a.Module}]:
			without = append(without, fmt.Sprintf("%s of %s: is not found any more; remove it", a.ID, a.Module))
		}
	}
	return marked, without
}
