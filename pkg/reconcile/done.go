package reconcile

import (
	"slices"
	"strings"
)

// Done takes the operations that failed out of those that were planned. Both are lines that begin
// with the domain, as Report.String writes them: "host: load x" is out when "host: cannot load x:
// …" is among the failures. Lines of operations that put the reason at their end ("network: link
// eth1: up: cannot do: …") count too.
func Done(planned, failures []string) []string {
	return slices.DeleteFunc(slices.Clone(planned), func(line string) bool {
		domain, op, _ := strings.Cut(line, ": ")
		return slices.ContainsFunc(failures, func(f string) bool {
			return strings.HasPrefix(f, domain+": cannot "+op+": ") || strings.HasPrefix(f, domain+": "+op+": cannot do: ")
		})
	})
}
