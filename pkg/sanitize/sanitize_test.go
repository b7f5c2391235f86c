package sanitize

import "testing"

func TestASCII(t *testing.T) {
	for text, want := range map[string]string{"": "", "Zoë\n\x1b[31m": "Zo??", "äöü~ !": "???~", "12345": "1234"} {
		if got := ASCII(text, 4); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := ASCII("CN=alice", 128); got != "CN=alice" {
		t.Errorf("%q", got)
	}
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "Zoë 東京 ~ …": "Zoë 東京 ~ …", "a\tb": "a b", "a\r\nb\x7f": "a??b?", "\x1b[31m": "?[31m", "\u009b31m": "?31m", "a\u202eb\u200bc": "a?b?c", "\xff": "\ufffd",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "one": "one", " one\t": " one\t", "one\ntwo": "one; two", "one\r\n\n  two\n": "one; two", "refused:\na.yaml:1: x\na.yaml:2: y": "refused: a.yaml:1: x; a.yaml:2: y",
		"a,\nb;\nc": "a, b; c", "\n\n": "", "a\x1b\nb": "a\x1b; b",
	} {
		if got := Line(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
