package outdated

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/imager/debian"
)

// Kinds of items.
const (
	KindGo     = "go"     // the Go toolchain with the standard library
	KindModule = "module" // a Go module
	KindDebian = "debian" // a Debian package
	KindSuite  = "suite"  // the Debian suite of the packages
)

// components are the parts of the system with a well-known name, by Go module or by the name of a
// Debian package that the imager requests.
var components = map[string]string{
	kubernetes:                               "Kubernetes",
	"go.etcd.io/etcd/server/v3":              "etcd",
	"github.com/containerd/containerd/v2":    "containerd",
	"github.com/opencontainers/runc":         "runc",
	"github.com/containernetworking/plugins": "CNI plugins",
	"github.com/coredns/coredns":             "CoreDNS",
	"systemd-boot-efi":                       "systemd-boot",
	"libc6":                                  "GNU C library",
	"nftables":                               "nftables",
	"e2fsprogs":                              "e2fsprogs",
}

// ComponentOf returns the name of a component for a Go module or a Debian package; empty if it is
// no component.
func ComponentOf(name string) string {
	if strings.HasPrefix(name, "linux-image-") {
		if strings.Contains(name, "-cloud-") {
			return "Linux (cloud)"
		}
		return "Linux"
	}
	return components[name]
}

// Item is a pinned version and the versions that are newer.
type Item struct {
	Kind      string   `json:"kind"`
	Name      string   `json:"name"`
	Component string   `json:"component,omitempty"`
	Files     []string `json:"files,omitempty"` // the files that pin it
	Indirect  bool     `json:"indirect,omitempty"`
	Pinned    string   `json:"pinned"`
	// Newest is the newest version; empty if no newer version than the pinned version is known.
	Newest string `json:"newest,omitempty"`
	// Patch is the newest version with the same minor version; empty if it is the same as Newest or
	// Pinned.
	Patch string `json:"patch,omitempty"`
	// Fixed is the first version in which all vulnerabilities with a fix are fixed. For a Debian
	// package, it is the newest security update. It is empty if no fix is missing.
	Fixed string `json:"fixed,omitempty"`
	// Advisories are the known vulnerabilities of the pinned version. A Debian package has none,
	// because the archive of Debian does not list vulnerabilities.
	Advisories []Advisory `json:"advisories,omitempty"`
	// Retracted is the author's reason for the retraction of the pinned version.
	Retracted  string   `json:"retracted,omitempty"`
	Deprecated string   `json:"deprecated,omitempty"`
	Notes      []string `json:"notes,omitempty"`

	unanswered string // why its source has no answer; empty if there is an answer
}

// Security reports whether a security update of the image is missing. It is missing if a fix exists
// for a package in the image, unless the vulnerability is accepted.
func (i Item) Security() bool {
	return i.Kind == KindDebian && i.Fixed != "" || slices.ContainsFunc(i.Advisories, Advisory.due)
}

// Report is the result of a comparison.
type Report struct {
	// Archive is the time of Debian's archive in apt's lists. Database is the time of the Go
	// vulnerability database. An unknown time is nil.
	Archive  *time.Time `json:"archive,omitempty"`
	Database *time.Time `json:"database,omitempty"`
	Items    []Item     `json:"items"`
	// Failed are the sources that have failed. The report lacks their answers.
	Failed []string `json:"failed,omitempty"`
	// Unneeded are the acceptances without effect: they have ended, or match no finding.
	Unneeded []string `json:"unneeded,omitempty"`
	// Unknown are the facts that the sources cannot show (limits).
	Unknown []string `json:"unknown"`
}

// limits are the entries of Report.Unknown that each report has.
var limits = []string{
	"whether a program calls the affected function: a vulnerability counts if the image contains the affected package",
	"vulnerabilities of Debian packages without an update: Debian's security tracker is not part of the archive",
	"updates of the building computer's own packages, such as gcc: apt reports them",
}

// Exit statuses of the command.
const (
	ExitCurrent  = 0 // no security update is missing
	ExitFailed   = 1 // a source has no answer, and the others know no missing security update
	ExitSecurity = 3 // a security update is missing
)

// Exit returns the exit status.
func (r *Report) Exit() int {
	switch {
	case slices.ContainsFunc(r.Items, Item.Security):
		return ExitSecurity
	case len(r.Failed) > 0:
		return ExitFailed
	}
	return ExitCurrent
}

// Answers are the pins, and what the services of Gather say about them. A service that has failed
// has an entry in Failed.
type Answers struct {
	Pins []Pin
	// Facts has the answers of the go command by module and version ("path@version").
	Facts map[string]Facts
	// Served says for each requested version, by module, whether the proxy serves it.
	Served    map[string]map[string]bool
	Go        string // version of the go command, such as go1.26.8
	Toolchain Facts  // the published Go versions
	Findings  []Finding
	Accepted  []Acceptance
	Database  *time.Time

	LockFile string
	Lock     debian.Lock
	Offers   []debian.Offer
	Archive  *time.Time
	Suite    *Item // the Debian suite; nil if its source has failed

	Failed []string
}

// staleAfter is the largest age of apt's lists with which a report counts as complete. Debian
// publishes security updates several times a week.
const staleAfter = 14 * 24 * time.Hour

// Compare returns the report at the time now. Without all, it omits the modules that only other
// modules need and that have no known vulnerability.
func Compare(a Answers, now time.Time, all bool) (*Report, error) {
	r := &Report{Archive: a.Archive, Database: a.Database, Failed: slices.Clone(a.Failed), Unknown: slices.Clone(limits)}
	a.Findings, r.Unneeded = accept(a.Findings, a.Accepted, now.UTC().Format(time.DateOnly))
	if a.Archive != nil && now.Sub(*a.Archive) > staleAfter {
		r.Failed = append(r.Failed, "Debian: apt's lists are of "+a.Archive.Format(time.DateOnly)+", and the mirror has no newer ones")
	}
	r.Items = append(r.Items, a.moduleItems(all)...)
	toolchain := toolchainItem(a.Go, a.Toolchain)
	toolchain.setAdvisories(advisories(standardLibrary, "v"+strings.TrimPrefix(a.Go, "go"), a.Findings))
	toolchain.Fixed = goVersion(toolchain.Fixed)
	r.Items = append(r.Items, toolchain)
	if !all {
		r.Unknown = append(r.Unknown, "newer versions of modules that only other modules need (-all looks them up)")
	}
	for _, p := range a.Lock.Packages {
		i, err := debianItem(p, a.LockFile, a.Offers)
		if err != nil {
			return nil, err
		}
		r.Items = append(r.Items, i)
	}
	if a.Suite != nil {
		r.Items = append(r.Items, *a.Suite)
	}
	r.Failed = append(r.Failed, unanswered(r.Items)...)
	slices.SortStableFunc(r.Items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pinned, b.Pinned))
	})
	return r, nil
}

// unanswered returns a line for each reason for which items have no answer.
func unanswered(items []Item) []string {
	var reasons, failed []string
	by := map[string][]string{}
	for _, i := range items {
		if i.unanswered == "" {
			continue
		}
		if by[i.unanswered] == nil {
			reasons = append(reasons, i.unanswered)
		}
		by[i.unanswered] = append(by[i.unanswered], i.Name+" "+i.Pinned)
	}
	for _, reason := range reasons {
		line := by[reason][0]
		if more := len(by[reason]) - 1; more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		failed = append(failed, line+": "+reason)
	}
	return failed
}

// setAdvisories sets the advisories, and the version with their fixes.
func (i *Item) setAdvisories(all []Advisory) { i.Advisories, i.Fixed = all, fixedBy(all) }

// moduleItems returns an item for each pinned version of a module.
func (a Answers) moduleItems(all bool) []Item {
	wanted := map[[2]string]bool{}
	for _, p := range Wanted(a.Pins, a.Findings, all) {
		wanted[[2]string{p.Module, p.Version}] = true
	}
	var items []Item
	at := map[[2]string]int{}
	for _, p := range a.Pins {
		key := [2]string{p.Module, p.Version}
		if !wanted[key] {
			continue
		}
		if n, ok := at[key]; ok {
			items[n].Files = append(items[n].Files, p.File)
			items[n].Indirect = items[n].Indirect && p.Indirect
			continue
		}
		i := moduleItem(p, a.Facts[p.String()], a.Served[p.Module])
		i.setAdvisories(advisories(p.Module, p.Version, a.Findings))
		at[key] = len(items)
		items = append(items, i)
	}
	return items
}

// Wanted returns the pins that a report compares. It always contains modules with a known
// vulnerability. It contains no other module whose version follows from that of Kubernetes
// (Pin.Follows). Of the rest, it contains the modules that a go.mod file requires directly; with
// all, also those that only other modules need (Pin.Indirect).
func Wanted(pins []Pin, findings []Finding, all bool) []Pin {
	var wanted []Pin
	for _, p := range pins {
		if len(advisories(p.Module, p.Version, findings)) > 0 || !p.Follows && (all || !p.Indirect) {
			wanted = append(wanted, p)
		}
	}
	return wanted
}
