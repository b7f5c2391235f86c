// Package printable makes texts of somebody unproved fit for a header, a log and a terminal.
package printable

import (
	"strings"
	"unicode"
)

// ASCII replaces every character that is not printable ASCII by "?", and cuts what is behind the first most characters.
func ASCII(text string, most int) string {
	out := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return out[:min(len(out), most)]
}

// Text replaces every tab by a blank and every other character that is not printable by "?": control characters of both sets, line
// breaks, what turns the direction of writing, and what has no meaning. Letters of all scripts stay.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, text)
}
