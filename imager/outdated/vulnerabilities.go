package outdated

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// standardLibrary is the name of the standard library in the database.
const standardLibrary = "stdlib"

// Advisory describes a known vulnerability of a pinned version.
type Advisory struct {
	ID      string   `json:"id"`
	Aliases []string `json:"aliases,omitempty"` // other IDs, for example of CVE
	Summary string   `json:"summary"`
	// Fixed is the first version with the fix; empty if no version has it.
	Fixed string `json:"fixed,omitempty"`
	// Image is true if a program of the image contains an affected package.
	Image bool `json:"image"`
	// Accepted is the reason for which the vulnerability does not affect the image; empty if it is
	// not accepted.
	Accepted string `json:"accepted,omitempty"`
}

// due reports whether the image needs an update because of a: the image contains the affected
// package, a fix exists, and the vulnerability is not accepted.
func (a Advisory) due() bool { return a.Image && a.Fixed != "" && a.Accepted == "" }

// Finding is an advisory with the module and the version that it affects.
type Finding struct {
	Module  string
	Version string
	Advisory
}

// message is an object in the JSON output of govulncheck, with the fields that this package uses.
type message struct {
	OSV *struct {
		ID      string   `json:"id"`
		Aliases []string `json:"aliases"`
		Summary string   `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV   string `json:"osv"`
		Fixed string `json:"fixed_version"`
		Trace []struct {
			Module  string `json:"module"`
			Version string `json:"version"`
			Package string `json:"package"`
		} `json:"trace"`
	} `json:"finding"`
}

// ParseFindings parses the output of `govulncheck -json` and returns a finding for each advisory
// and module. The output has a finding for each affected module and, if govulncheck examined the
// packages, for each affected package. image is true if the programs of the image were examined.
func ParseFindings(r io.Reader, image bool) ([]Finding, error) {
	texts, found := map[string]Advisory{}, map[[2]string]Finding{}
	for d := json.NewDecoder(r); ; {
		var m message
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("govulncheck: %w", err)
		}
		if m.OSV != nil {
			texts[m.OSV.ID] = Advisory{ID: m.OSV.ID, Aliases: m.OSV.Aliases, Summary: m.OSV.Summary}
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 {
			continue
		}
		at := m.Finding.Trace[0]
		key := [2]string{m.Finding.OSV, at.Module}
		f := found[key]
		f.Module, f.Version = at.Module, at.Version
		f.ID, f.Fixed = m.Finding.OSV, m.Finding.Fixed
		f.Image = f.Image || image && at.Package != ""
		found[key] = f
	}
	var all []Finding
	for _, f := range found {
		f.Aliases, f.Summary = texts[f.ID].Aliases, texts[f.ID].Summary
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.Version, b.Version), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// advisories returns the advisories for a version of a module, sorted by ID. Several scans
// can find the same advisory. It affects the image if one of these findings says so.
func advisories(module, version string, findings []Finding) []Advisory {
	var all []Advisory
	for _, f := range findings {
		if f.Module != module || f.Version != version {
			continue
		}
		if i := slices.IndexFunc(all, func(a Advisory) bool { return a.ID == f.ID }); i >= 0 {
			all[i].Image = all[i].Image || f.Image
			continue
		}
		all = append(all, f.Advisory)
	}
	slices.SortFunc(all, func(a, b Advisory) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// fixedBy returns the first version with the fixes of all advisories. It ignores accepted
// advisories, and advisories for which no fix exists. If no other advisory remains, it returns the
// empty string.
func fixedBy(all []Advisory) string {
	fixed := ""
	for _, a := range all {
		if a.Accepted == "" && a.Fixed != "" && (fixed == "" || semver.Compare(a.Fixed, fixed) > 0) {
			fixed = a.Fixed
		}
	}
	return fixed
}

// goVersion converts a version of the standard library in the database, such as v1.26.8, to the
// version of the go command, such as go1.26.8.
func goVersion(v string) string {
	if v == "" {
		return ""
	}
	return "go" + strings.TrimPrefix(v, "v")
}
