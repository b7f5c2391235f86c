// Package distinct removes duplicates.
package distinct

// Of returns the distinct values in the order of their first occurrence; nil without values.
func Of[T comparable](values []T) []T {
	var out []T
	seen := map[T]bool{}
	for _, v := range values {
		if !seen[v] {
			out, seen[v] = append(out, v), true
		}
	}
	return out
}
