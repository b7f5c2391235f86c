// Package sanitize makes texts of somebody unproved fit for a header, a log and a terminal.
package sanitize

import (
	"strings"
	"unicode"
)

// ASCII replaces every character that is not printable ASCII by "?", and cuts what is behind the
// first most characters.
func ASCII(text string, most int) string {
	out := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return out[:min(len(out), most)]
}

// Text replaces every tab by a blank and every other character that is not printable by "?":
// control characters of both sets, line breaks, what turns the direction of writing, and what has
// no meaning. Letters of all scripts stay.
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

// Line puts the lines of a text into one, set apart by "; ", or by a blank after a line that ends
// with a colon or a comma. Lines are trimmed, and empty ones left out. It is for texts of several
// lines, such as errors that were joined, where one is due; what is not printable stays.
func Line(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	var b strings.Builder
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if so := b.String(); strings.HasSuffix(so, ":") || strings.HasSuffix(so, ",") || strings.HasSuffix(so, ";") {
			b.WriteString(" ")
		} else if so != "" {
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}
