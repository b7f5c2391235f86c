package domains

import (
	"slices"
	"strings"
	"testing"
)

// encode encodes a list of names without checks, because a foreign host can send any name.
func encode(names ...string) []byte {
	var out []byte
	for _, n := range names {
		for label := range strings.SplitSeq(n, ".") {
			out = append(append(out, byte(len(label))), label...)
		}
		out = append(out, 0)
	}
	return out
}

// TestParse checks the names that Parse returns from an encoded list, and the error about names
// that it omits.
func TestParse(t *testing.T) {
	var many []string
	for i := range Max + 1 {
		many = append(many, strings.Repeat("x", i+1)+".test")
	}
	for _, test := range []struct {
		name    string
		in      []byte
		want    []string
		problem string
	}{
		{"no data", nil, nil, ""},
		{"padding only", make([]byte, 8), nil, ""},
		{"two names and padding", append(encode("lan.test", "corp.example"), 0, 0, 0), []string{"lan.test", "corp.example"}, ""},
		{"a name twice, once in upper case", encode("LAN.test", "lan.test"), []string{"lan.test"}, ""},
		{"a line break", encode("a\nnameserver 1", "lan.test"), []string{"lan.test"}, "is not a name"},
		{"a dot in a label", []byte{3, 'a', '.', '.', 0}, nil, "is not a name"},
		{"a truncated name", encode("lan.test")[:9], nil, "truncated"},
		{"a label past the end", []byte{4, 'l', 'a', 'n'}, nil, "truncated"},
		{"a pointer", append(encode("lan.test"), 0xc0, 0), []string{"lan.test"}, "unknown type"},
		{"too many labels", slices.Concat([]byte(strings.Repeat("\x01a", 128)), []byte{0}), nil, "longer than 255"},
		{"a name of 254 bytes", encode(strings.Repeat("abcdefghi.", 25) + "abcd"), nil, "is not a name"},
		{"too many names", encode(many...), many[:Max], "more than 32"},
	} {
		got, err := Parse(test.in)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: %v, want %q", test.name, err, test.problem)
		}
	}
}

// FuzzParse parses arbitrary data. It checks that each accepted name is valid, and cannot add a
// line or a comment to resolv.conf.
func FuzzParse(f *testing.F) {
	f.Add(encode("lan.test", "corp.example"))
	f.Add([]byte{3, 'a', '\n', 'b', 0, 0xc0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		names, _ := Parse(b)
		if len(names) > Max {
			t.Errorf("%d names", len(names))
		}
		for _, n := range names {
			if !Valid(n) || strings.ContainsAny(n, " \n#;") || n != strings.ToLower(n) {
				t.Errorf("accepted %q", n)
			}
		}
	})
}
