package reconcile

import (
	"slices"
	"strings"
)

// Done returns the planned operations that are not among the failures. Lines of both lists begin
// with the domain. A failure has the form of Report.String ("host: cannot load x: …") or the
// reason at its end ("network: link eth1: up: cannot do: …").
func Done(planned, failures []string) []string {
	return slices.DeleteFunc(slices.Clone(planned), func(line string) bool {
		domain, op, _ := strings.Cut(line, ": ")
		return slices.ContainsFunc(failures, func(f string) bool {
			return strings.HasPrefix(f, domain+": cannot "+op+": ") || strings.HasPrefix(f, domain+": "+op+": cannot do: ")
		})
	})
}
