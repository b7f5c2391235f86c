package upgrade

import (
	"cmp"
	"slices"
	"sync"
)

// sources counts the failures of each source since boot: the address of a peer, or registrySource.
// A source that claims to have a release, and sends other bytes or sends them too slowly, is
// therefore the last that the next attempt uses; so is a source that does not answer, or describes
// a bundle that no machine accepts. Without the count, such a peer would be used again and again,
// because the first source that answers is used.
type sources struct {
	mu       sync.Mutex
	failures map[string]int
}

// registrySource is the registry of a release among the sources.
const registrySource = "registry"

// failed counts a failure; an empty source is a client, which sends the bundle itself.
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

// inOrder returns sources by their failures, fewest first, else in the given order.
func (s *sources) inOrder(all []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(s.failures[a], s.failures[b]) })
	return all
}
