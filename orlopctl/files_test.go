package main

import (
	"strings"
	"testing"
)

// TestPrintableLines checks that input in several parts is written completely, and that control
// characters in it are replaced, also if a control sequence is in two parts.
func TestPrintableLines(t *testing.T) {
	var out strings.Builder
	p := &printableLines{to: &out}
	for _, part := range []string{"a\tb\n\x1b[3", "1mred\x07\n\nZo", "\xc3\xab\r\nno", " end\x1b"} {
		if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%q: %d, %v", part, n, err)
		}
	}
	p.end()
	if want := "a b\n?[31mred?\n\nZoë?\nno end?"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
