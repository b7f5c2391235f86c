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
