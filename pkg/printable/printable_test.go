package printable

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
