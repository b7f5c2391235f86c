package glob

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"*", "", true}, {"", "a", false}, {"a*c", "abbbc", true}, {"a*c", "abbbd", false},
		{"a*b*c", "a/b/bxc", true}, {"?", "", false}, {"a?c", "abc", true}, {"[a-c]x", "bx", true}, {"[a-c]x", "dx", false},
		{"[abc", "a", false}, {"*a*a*a*a*b", strings.Repeat("a", 60), false}, {"x*", "xyz", true}, {"abc", "ab", false},
	} {
		if got := Match(c.pattern, c.s); got != c.want {
			t.Errorf("Match(%q, %q) = %t", c.pattern, c.s, got)
		}
	}
}
