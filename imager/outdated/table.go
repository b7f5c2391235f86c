package outdated

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// section is a part of the printed report. Its title has the headers of the columns. row returns
// the columns of an item; ok is false if the section omits the item.
type section struct {
	title string
	row   func(Item) (columns []string, ok bool)
}

// sections are the parts of the printed report, in order.
var sections = []section{
	{"Components\tPINNED\tNEWEST\tPATCH\tSECURITY UPDATE", func(i Item) ([]string, bool) {
		return []string{i.Component, i.Pinned, dash(i.Newest), dash(i.Patch), dash(i.securityUpdate())}, i.Component != ""
	}},
	{"Security updates of the image\tPINNED\tFIXED BY\tKNOWN VULNERABILITIES\tPINNED IN", func(i Item) ([]string, bool) {
		return []string{i.Name, i.Pinned, i.Fixed, dash(i.identifiers(Advisory.due)), i.files()}, i.Security()
	}},
	{"Vulnerabilities of the image without a fix\tPINNED\tKNOWN VULNERABILITIES\tPINNED IN", func(i Item) ([]string, bool) {
		ids := i.identifiers(imageNotFixed)
		return []string{i.Name, i.Pinned, ids, i.files()}, ids != ""
	}},
	{"Vulnerabilities outside of the image\tPINNED\tFIXED BY\tKNOWN VULNERABILITIES\tPINNED IN", func(i Item) ([]string, bool) {
		ids := i.identifiers(notImage)
		return []string{i.Name, i.Pinned, dash(i.Fixed), ids, i.files()}, ids != ""
	}},
	{"Accepted vulnerabilities\tPINNED\tREASON", func(i Item) ([]string, bool) {
		var reasons []string
		for _, a := range i.Advisories {
			if a.Accepted != "" {
				reasons = append(reasons, a.ID+": "+a.Accepted)
			}
		}
		return []string{i.Name, i.Pinned, strings.Join(reasons, "; ")}, len(reasons) > 0
	}},
	{"Retracted or deprecated by the author\tPINNED\tREASON\tPINNED IN", func(i Item) ([]string, bool) {
		reason := strings.TrimPrefix(i.Retracted+"; "+i.Deprecated, "; ")
		return []string{i.Name, i.Pinned, strings.TrimSuffix(firstLine(reason), "; "), i.files()}, i.Retracted+i.Deprecated != ""
	}},
	{"Newer versions\tPINNED\tNEWEST\tPATCH\tPINNED IN", func(i Item) ([]string, bool) {
		return []string{i.Name, i.Pinned, dash(i.Newest), dash(i.Patch), i.files()}, i.Newest+i.Patch != ""
	}},
	{"Notes", func(i Item) ([]string, bool) {
		return []string{i.Name, strings.Join(i.Notes, "; ")}, len(i.Notes) > 0
	}},
}

// Print writes the report as tables.
func (r *Report) Print(w io.Writer) error {
	fmt.Fprintf(w, "Debian's archive of %s, Go vulnerability database of %s\n", day(r.Archive), day(r.Database))
	for _, s := range sections {
		if err := r.printSection(w, s); err != nil {
			return err
		}
	}
	printList(w, "Acceptances without effect", r.Unneeded)
	printList(w, "No answer", r.Failed)
	printList(w, "Not known", r.Unknown)
	newer, security := 0, 0
	for _, i := range r.Items {
		if i.Newest+i.Patch != "" {
			newer++
		}
		if i.Security() {
			security++
		}
	}
	_, err := fmt.Fprintf(w, "\n%d pinned versions, %d with a newer version, %d with a missing security update\n", len(r.Items), newer, security)
	return err
}

// printList writes a title and the lines below it. It writes nothing for an empty list.
func printList(w io.Writer, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(w, "\n%s:\n", title)
	}
	for _, l := range lines {
		fmt.Fprintln(w, "  -", l)
	}
}

func (r *Report) printSection(w io.Writer, s section) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows := 0
	for _, i := range r.Items {
		columns, ok := s.row(i)
		if !ok {
			continue
		}
		if rows == 0 {
			fmt.Fprintf(t, "\n%s\n", s.title)
		}
		rows++
		fmt.Fprintln(t, "  "+strings.Join(columns, "\t"))
	}
	return t.Flush()
}

func imageNotFixed(a Advisory) bool { return a.Image && a.Fixed == "" && a.Accepted == "" }
func notImage(a Advisory) bool      { return !a.Image && a.Accepted == "" }

// shownIDs is the largest number of advisories in a row. The JSON report has all of them.
const shownIDs = 3

// identifiers returns the IDs of at most shownIDs advisories for which match returns true, and the
// number of further IDs.
func (i Item) identifiers(match func(Advisory) bool) string {
	var ids []string
	for _, a := range i.Advisories {
		if match(a) {
			ids = append(ids, a.ID)
		}
	}
	if more := len(ids) - shownIDs; more > 0 {
		ids = append(ids[:shownIDs], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(ids, " ")
}

// securityUpdate returns the version that fixes the vulnerabilities of the image; empty if no
// security update is missing.
func (i Item) securityUpdate() string {
	if i.Security() {
		return i.Fixed
	}
	return ""
}

func (i Item) files() string { return strings.Join(i.Files, ", ") }

func day(t *time.Time) string {
	if t == nil {
		return "an unknown time"
	}
	return t.UTC().Format(time.DateOnly)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
