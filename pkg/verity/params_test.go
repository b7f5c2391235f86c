package verity

import (
	"strings"
	"testing"
)

func TestFromCommandLine(t *testing.T) {
	const hash = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	for _, c := range []struct{ cmdline, guid, reason string }{
		{"console=ttyS0 orlop.root=" + hash + ",8,8,aa quiet\n", "00010203-0405-0607-0809-0a0b0c0d0e0f", ""},
		{"console=ttyS0", "", "has no orlop.root= argument"},
		{"orlop.rooted=" + hash + ",8,8,aa", "", "has no orlop.root= argument"},
		{"orlop.root=" + hash + ",8,8,aa orlop.root=" + hash + ",9,9,aa", "", "more than one orlop.root= argument"},
		{"orlop.root=", "", "4 fields"},
	} {
		p, err := FromCommandLine(c.cmdline)
		switch {
		case c.reason != "":
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("FromCommandLine(%q): %v, want an error with %q", c.cmdline, err, c.reason)
			}
		case err != nil:
			t.Errorf("FromCommandLine(%q): %v", c.cmdline, err)
		case p.PartUUID().String() != c.guid:
			t.Errorf("FromCommandLine(%q) names partition %s, want %s", c.cmdline, p.PartUUID(), c.guid)
		}
	}
}
