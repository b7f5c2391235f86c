package upgrade

import (
	"cmp"
	"slices"
	"sync"
)

// sources counts the failures of each source since boot. A source is the address of a peer, or
// registrySource. The next attempt uses the sources with the fewest failures first, because an
// attempt takes the first source that answers. Without the count, a malicious peer that offers a
// release and then sends wrong or slow data could block all attempts.
type sources struct {
	mu       sync.Mutex
	failures map[string]int
}

// registrySource is the name of the registry among the sources of a release.
const registrySource = "registry"

// failed counts a failure of a source. An empty source is a client that uploaded the bundle; its
// failures are not counted.
func (s *sources) failed(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == nil {
		s.failures = map[string]int{}
	}
	if source != "" {
		s.failures[source]++
	}
}

// inOrder returns the sources in ascending order of their failures. Sources with the same number of
// failures stay in the given order.
func (s *sources) inOrder(all []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(s.failures[a], s.failures[b]) })
	return all
}
