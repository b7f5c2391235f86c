// Package glob matches names against patterns.
package glob

import "strings"

// Match reports whether s matches a pattern by the rules of modprobe for modules.alias: '*' matches
// any text, '?' a character, and [a-z] a character of a set. There is no escape, and '/' is an
// ordinary character (unlike in path.Match).
func Match(pattern, s string) bool {
	// After a mismatch, only the last '*' needs to match a longer text. The elements before this
	// '*' have matched already, and other matches of them cannot help.
	starPattern, starText := -1, 0
	p, t := 0, 0
	for t < len(s) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				starPattern, starText = p, t
				p++
				continue
			}
			if width := matchOne(pattern[p:], s[t]); width > 0 {
				p += width
				t++
				continue
			}
		}
		if starPattern < 0 {
			return false
		}
		starText++
		p, t = starPattern+1, starText
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchOne matches c against the first element of the pattern, and returns the length of this
// element, or 0 if c does not match.
func matchOne(pattern string, c byte) int {
	switch pattern[0] {
	case '?':
		return 1
	case '[':
		end := strings.IndexByte(pattern, ']')
		if end < 0 {
			return 0
		}
		set := pattern[1:end]
		for i := 0; i < len(set); i++ {
			low, high := set[i], set[i]
			if i+2 < len(set) && set[i+1] == '-' {
				high = set[i+2]
				i += 2
			}
			if low <= c && c <= high {
				return end + 1
			}
		}
		return 0
	case c:
		return 1
	}
	return 0
}
