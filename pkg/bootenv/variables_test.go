package bootenv

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/uuid"
)

// variable returns the content of a variable with a text, as in efivarfs.
func variable(text string) []byte {
	out := []byte{6, 0, 0, 0} // attributes: boot service access and runtime access
	for _, unit := range utf16.Encode([]rune(text)) {
		out = append(out, byte(unit), byte(unit>>8))
	}
	return out
}

func TestGUID(t *testing.T) {
	const plain = "00010203-0405-0607-0809-0a0b0c0d0e0f"
	for _, c := range []struct {
		variable []byte
		want     string // empty: an error
	}{
		{variable(plain + "\x00"), plain},
		{variable(strings.ToUpper(plain) + "\x00"), plain},
		{variable(plain + "\x00more"), plain},
		{variable(plain), ""}, // no terminating zero
		{variable(plain[1:] + "\x00"), ""},
		{variable("{" + plain + "}\x00"), ""},
		{variable("urn:uuid:" + plain + "\x00"), ""},
		{variable(strings.ReplaceAll(plain, "-", "") + "\x00"), ""},
		{variable(strings.Repeat("z", 36) + "\x00"), ""},
		{variable(uuid.Nil.String() + "\x00"), ""},
		{variable("\x00"), ""},
		{append(variable(plain+"\x00"), 1), ""}, // half of a UTF-16 unit
		{[]byte{6, 0, 0, 0}, ""},
		{[]byte{6, 0}, ""},
		{nil, ""},
	} {
		got, err := VariableGUID(c.variable)
		if c.want == "" {
			if err == nil {
				t.Errorf("%q: accepted as the GUID %s", c.variable, got)
			}
		} else if err != nil || got.String() != c.want {
			t.Errorf("%q: %s, %v", c.variable, got, err)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadVariable(dir, ImagePartition); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a variable that does not exist: %v", err)
	}
	for size, good := range map[int]bool{0: true, variableLimit: true, variableLimit + 1: false} {
		content := bytes.Repeat([]byte{1}, size)
		if err := os.WriteFile(filepath.Join(dir, ImagePartition), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadVariable(dir, ImagePartition); good != (err == nil) || good && !bytes.Equal(got, content) {
			t.Errorf("a variable of %d bytes: read %d bytes, %v", size, len(got), err)
		}
	}
}

// FuzzGUID checks that VariableGUID returns an error, or a GUID that the variable contains in the
// usual notation.
func FuzzGUID(f *testing.F) {
	f.Add(variable("00010203-0405-0607-0809-0a0b0c0d0e0f\x00"))
	f.Add([]byte{6, 0, 0, 0, 0, 0xd8, 0, 0}) // half of a surrogate pair
	f.Add([]byte{7, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, content []byte) {
		id, err := VariableGUID(content)
		if err != nil {
			return
		}
		if want := variable(id.String() + "\x00"); len(content) < len(want) || !bytes.EqualFold(content[4:len(want)], want[4:]) {
			t.Errorf("%q does not contain the returned GUID %s", content, id)
		}
	})
}
