package distinct_test

import (
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/distinct"
)

func TestOf(t *testing.T) {
	for _, c := range [][2][]string{
		{nil, nil},
		{{"a"}, {"a"}},
		{{"b", "a", "b", "c", "a"}, {"b", "a", "c"}},
	} {
		if got := distinct.Of(c[0]); !slices.Equal(got, c[1]) {
			t.Errorf("of %q: %q, want %q", c[0], got, c[1])
		}
	}
}
