package bootlog

import (
	"testing"
	"time"
)

// FuzzCrash encodes arbitrary crash records, and decodes arbitrary stored data. An encoded crash
// has at most maxCrash bytes, and each of its lines can be decoded.
func FuzzCrash(f *testing.F) {
	f.Add("<6>[   12.345678] text\n<0>[   12.4] Kernel panic\n", []byte(`{"started":"2026-01-01T00:00:00Z"}`+"\n"))
	f.Add("\x00\xff\n<99999999999999999999>", []byte("{"))
	f.Fuzz(func(t *testing.T, text string, kept []byte) {
		out := encodeCrash([]record{{file: "dmesg-efi-1", why: "Panic#1", count: 1, part: 1, at: time.Unix(1, 0), text: text}})
		if len(out) > maxCrash {
			t.Errorf("the encoded crash has %d bytes", len(out))
		}
		for _, l := range decode(out) {
			if l.Priority < 0 || l.Priority > 7 {
				t.Errorf("a decoded line has an invalid priority: %+v", l)
			}
		}
		_ = decode(kept)
	})
}
