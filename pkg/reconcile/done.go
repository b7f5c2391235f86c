package reconcile

import (
	"slices"
	"strings"
)

// Done returns the planned operations without the failed operations. Both lists contain lines that
// begin with the domain, in the form of Report.String: "host: load x" is omitted if "host: cannot
// load x: …" is among the failures. Lines with the reason at the end ("network: link eth1: up:
// cannot do: …") are recognized too.
func Done(planned, failures []string) []string {
	return slices.DeleteFunc(slices.Clone(planned), func(line string) bool {
		domain, op, _ := strings.Cut(line, ": ")
		return slices.ContainsFunc(failures, func(f string) bool {
			return strings.HasPrefix(f, domain+": cannot "+op+": ") || strings.HasPrefix(f, domain+": "+op+": cannot do: ")
		})
	})
}
