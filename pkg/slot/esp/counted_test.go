package esp

import (
	"testing"
	"unicode/utf16"

	"github.com/orlop-os/orlop/pkg/slot"
)

func TestCounted(t *testing.T) {
	variable := func(path string) []byte {
		out := []byte{6, 0, 0, 0} // attributes: boot service access and runtime access
		for _, unit := range utf16.Encode([]rune(path + "\x00")) {
			out = append(out, byte(unit), byte(unit>>8))
		}
		return out
	}
	for _, c := range []struct {
		variable []byte
		want     slot.Entry
		known    bool
	}{
		{variable(`\EFI\Linux\orlop-2.0.0+2-1.efi`), slot.Entry{Version: "2.0.0", Trial: true, Left: 2, Tries: 1}, true},
		{variable(`\EFI\Linux\orlop-2.0.0+0-3.efi`), slot.Entry{Version: "2.0.0", Trial: true, Tries: 3}, true},
		{variable(`\EFI\Linux\another+2-1.efi`), slot.Entry{}, false},
		{variable(""), slot.Entry{}, false},
		{[]byte{6, 0}, slot.Entry{}, false},
		{nil, slot.Entry{}, false},
	} {
		if got, known := counted(c.variable); got != c.want || known != c.known {
			t.Errorf("%x: %+v, %v", c.variable, got, known)
		}
	}
}
