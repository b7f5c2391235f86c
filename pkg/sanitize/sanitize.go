// Package sanitize makes untrusted strings safe for headers, logs and terminals.
package sanitize

import (
	"strings"
	"unicode"
)

// ASCII replaces each character that is not printable ASCII by "?". It returns only the first
// `most` characters of a longer text.
func ASCII(text string, most int) string {
	out := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return out[:min(len(out), most)]
}

// Text replaces each tab by a blank, and each other unprintable character by "?". Unprintable are
// control characters, line breaks, characters that change the writing direction, and unassigned
// characters. Letters of all scripts stay.
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

// Line makes a single line of a text with several lines, for example of joined errors. It joins the
// lines by "; ", or by a blank after a colon, comma or semicolon at the end of a line. It trims the
// lines and omits empty lines. Unprintable characters stay.
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
