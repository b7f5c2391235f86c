package debian

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Package is one line of the lock file.
type Package struct {
	// Want is the name that the imager requests. It differs from Name for kernels only, where a
	// meta package names the newest real package.
	Want    string
	Name    string // real package name
	Version string // exact Debian version
	Arch    string // amd64 or all
	SHA256  string // of the .deb file, 64 hexadecimal digits
}

// PURL returns the package URL (purl specification, type deb) for SBOMs.
func (p Package) PURL() string {
	escape := strings.NewReplacer("+", "%2B", ":", "%3A")
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", escape.Replace(p.Name), escape.Replace(p.Version), p.Arch)
}

// Lock is the content of a lock file, ordered by Want.
type Lock []Package

const lockHead = `# Debian packages that files are taken from. Written by "imager lock" (make lock); do not edit.
# wanted name, package, version, architecture, SHA-256 of the .deb file
`

// ReadLock reads a lock file. An error names the file and the line.
func ReadLock(path string) (Lock, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read lock file: %w; make it with `imager lock`", err)
	}
	defer f.Close()
	var l Lock
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		field := strings.Fields(line)
		if len(field) != 5 {
			return nil, fmt.Errorf("%s:%d: 5 fields expected, %d found", path, n, len(field))
		}
		p := Package{field[0], field[1], field[2], field[3], field[4]}
		if sum, err := hex.DecodeString(p.SHA256); err != nil || len(sum) != 32 {
			return nil, fmt.Errorf("%s:%d: %s: %q is not a SHA-256 in hexadecimal", path, n, p.Name, p.SHA256)
		}
		if _, err := l.Find(p.Want); err == nil {
			return nil, fmt.Errorf("%s:%d: %s is named twice", path, n, p.Want)
		}
		l = append(l, p)
	}
	return l, s.Err()
}

// Write replaces the lock file.
func (l Lock) Write(path string) error {
	sorted := slices.SortedFunc(slices.Values(l), func(a, b Package) int { return cmp.Compare(a.Want, b.Want) })
	var b strings.Builder
	b.WriteString(lockHead)
	for _, p := range sorted {
		fmt.Fprintf(&b, "%s %s %s %s %s\n", p.Want, p.Name, p.Version, p.Arch, p.SHA256)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// Behind lists the differences from newer packages, one line for each package: another version, or
// a missing package. It ignores pinned packages that are no longer wanted.
func (l Lock) Behind(newest Lock) []string {
	var lines []string
	for _, n := range newest {
		switch p, err := l.Find(n.Want); {
		case err != nil:
			lines = append(lines, fmt.Sprintf("%s: is not pinned; Debian has %s %s", n.Want, n.Name, n.Version))
		case p.Name != n.Name || p.Version != n.Version:
			lines = append(lines, fmt.Sprintf("%s: pinned is %s %s, Debian has %s %s", n.Want, p.Name, p.Version, n.Name, n.Version))
		case p.SHA256 != n.SHA256:
			lines = append(lines, fmt.Sprintf("%s: Debian has another file as %s %s than the one that is pinned", n.Want, n.Name, n.Version))
		}
	}
	return lines
}

// Find returns the package with this Want name.
func (l Lock) Find(want string) (Package, error) {
	for _, p := range l {
		if p.Want == want {
			return p, nil
		}
	}
	return Package{}, fmt.Errorf("%s: is not in the lock file; run `imager lock`", want)
}
