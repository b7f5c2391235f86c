// Package domains decodes and checks domain names from foreign hosts. Parse decodes a list of names
// that are not compressed: the DNSSL option of router advertisements (RFC 8106) and options of
// DHCPv6 (RFC 8415 section 10). Valid checks a single name; DHCPv4 uses it, too.
package domains

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Max is the maximum number of names of a list.
const Max = 32

// Parse decodes a list of names. Each name is a sequence of labels, each with a length byte, and
// ends with a zero byte. Further zero bytes are padding. Parse returns the distinct valid names in
// lower case, at most Max. problem describes the first unusable part; the returned names are valid
// nevertheless.
func Parse(b []byte) (names []string, problem error) {
	note := func(err error) {
		if problem == nil {
			problem = err
		}
	}
	for len(b) > 0 {
		if b[0] == 0 { // padding
			b = b[1:]
			continue
		}
		name, rest, err := next(b)
		if err != nil {
			note(err)
			return names, problem
		}
		b = rest
		switch name = strings.ToLower(name); {
		case !Valid(name):
			note(fmt.Errorf("%.80q is not a name", name))
		case slices.Contains(names, name):
		case len(names) == Max:
			note(fmt.Errorf("it has more than %d domains", Max))
			return names, problem
		default:
			names = append(names, name)
		}
	}
	return names, problem
}

// next decodes the first name of b, and returns the bytes after it.
func next(b []byte) (name string, rest []byte, err error) {
	var labels []string
	for {
		switch {
		case len(b) == 0:
			return "", nil, errors.New("a name is truncated")
		case b[0] == 0:
			return strings.Join(labels, "."), b[1:], nil
		case b[0] > 63:
			return "", nil, errors.New("a label has an unknown type")
		case len(b) < 1+int(b[0]):
			return "", nil, errors.New("a name is truncated")
		case len(labels) == 127: // RFC 1035 section 2.3.4: 255 bytes
			return "", nil, errors.New("a name is longer than 255 bytes")
		}
		labels = append(labels, string(b[1:1+int(b[0])]))
		b = b[1+int(b[0]):]
	}
}

// Valid reports whether a name is valid in resolv.conf and as a host name. Names come from foreign
// hosts, and a line break in a name would add a line to the file.
func Valid(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	return true
}
