// Package distinct drops repetitions.
package distinct

// Of returns the values without repetitions, each where it came first. Without any values it
// returns nil.
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
