// Package printable makes texts of somebody unproved fit for a header, a log and a terminal.
package printable

import "strings"

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
