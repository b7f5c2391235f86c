package bootlog

import (
	"testing"
	"time"
)

// FuzzCrash passes arbitrary crash records and arbitrary stored data: the encoded crash stays
// within its limit, and every line decodes.
func FuzzCrash(f *testing.F) {
	f.Add("<6>[   12.345678] text\n<0>[   12.4] Kernel panic\n", []byte(`{"started":"2026-01-01T00:00:00Z"}`+"\n"))
	f.Add("\x00\xff\n<99999999999999999999>", []byte("{"))
	f.Fuzz(func(t *testing.T, text string, kept []byte) {
		out := encodeCrash([]record{{file: "dmesg-efi-1", why: "Panic#1", count: 1, part: 1, at: time.Unix(1, 0), text: text}})
		if len(out) > maxCrash {
			t.Errorf("%d bytes are kept", len(out))
		}
		for _, l := range decode(out) {
			if l.Priority < 0 || l.Priority > 7 {
				t.Errorf("%+v", l)
			}
		}
		_ = decode(kept)
	})
}
