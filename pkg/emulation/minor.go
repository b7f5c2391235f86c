package emulation

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Minor is a minor version of Kubernetes, for example 1.36. The zero value means an unknown
// version. The JSON form is a text, for example "1.36", and "" for an unknown version.
type Minor struct{ Major, Minor int }

var (
	minorForm   = regexp.MustCompile(`^(0|[1-9]\d{0,3})\.(0|[1-9]\d{0,3})$`)
	versionForm = regexp.MustCompile(`^v?((?:0|[1-9]\d{0,3})\.(?:0|[1-9]\d{0,3}))(?:\..*)?$`)
)

// Parse parses a minor version, for example "1.36".
func Parse(text string) (Minor, error) {
	parts := minorForm.FindStringSubmatch(text)
	if parts == nil {
		return Minor{}, fmt.Errorf("%q is no minor version of Kubernetes; expected a text such as 1.36", text)
	}
	major, _ := strconv.Atoi(parts[1]) // the form has at most four digits
	minor, _ := strconv.Atoi(parts[2])
	return Minor{major, minor}, nil
}

// Of returns the minor version of a complete version, for example 1.36 of "v1.36.3"; unknown for a
// text that is no version.
func Of(version string) Minor {
	parts := versionForm.FindStringSubmatch(version)
	if parts == nil {
		return Minor{}
	}
	m, err := Parse(parts[1])
	if err != nil {
		return Minor{}
	}
	return m
}

// Known reports whether the version is known.
func (m Minor) Known() bool { return m != Minor{} }

// OlderThan reports whether m is older than other.
func (m Minor) OlderThan(other Minor) bool {
	return cmp.Or(cmp.Compare(m.Major, other.Major), cmp.Compare(m.Minor, other.Minor)) < 0
}

// String returns, for example, "1.36", or "unknown".
func (m Minor) String() string {
	if !m.Known() {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", m.Major, m.Minor)
}

// MarshalText implements encoding.TextMarshaler.
func (m Minor) MarshalText() ([]byte, error) {
	if !m.Known() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Minor) UnmarshalText(text []byte) (err error) {
	*m = Minor{}
	if len(text) > 0 {
		*m, err = Parse(string(text))
	}
	return err
}
