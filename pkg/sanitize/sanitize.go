// Package sanitize makes untrusted strings safe for headers, logs and terminals.
package sanitize

import (
	"strings"
	"unicode"
)

// ASCII replaces every character that is not printable ASCII by "?", and cuts the text after most
// characters.
func ASCII(text string, most int) string {
	out := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return out[:min(len(out), most)]
}

// Text replaces every tab by a blank and every other unprintable character by "?": control
// characters, line breaks, characters that change the writing direction, and unassigned characters.
// Letters of all scripts stay.
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

// Line joins the lines of a text by "; ", or by a blank after a line that ends with a colon or a
// comma. It trims lines and omits empty lines. It is for texts of several lines, for example joined
// errors, in a single-line context; unprintable characters stay.
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
