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

// Package is a package in the lock file.
type Package struct {
	// Want is the name that the imager requests. It differs from Name only for a kernel. There it
	// is the meta package that depends on the newest kernel package.
	Want    string
	Name    string // real package name
	Version string // exact Debian version
	Arch    string // amd64 or all
	SHA256  string // of the .deb file, 64 hexadecimal digits
}

// PURL returns the package URL (purl specification, type deb) for SBOMs.
func (p Package) PURL(suite string) string {
	escape := strings.NewReplacer("+", "%2B", ":", "%3A")
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", escape.Replace(p.Name), escape.Replace(p.Version), p.Arch, suite)
}

// Lock is the content of a lock file.
type Lock struct {
	Suite    string    // suite of Debian: trixie
	Packages []Package // ordered by Want
}

const lockHead = `# Debian packages that files are taken from. Written by "imager lock" (make lock); do not edit.
# the suite; then: wanted name, package, version, architecture, SHA-256 of the .deb file
`

// ReadLock reads a lock file. An error names the file and the line.
func ReadLock(path string) (Lock, error) {
	var l Lock
	f, err := os.Open(path)
	if err != nil {
		return l, fmt.Errorf("cannot read lock file: %w; make it with `imager lock`", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := l.add(strings.Fields(line)); err != nil {
			return l, fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	if err := s.Err(); err != nil {
		return l, fmt.Errorf("%s: cannot read lock file: %w", path, err)
	}
	if l.Suite == "" {
		return l, fmt.Errorf("%s: it names no suite of Debian; make it with `imager lock`", path)
	}
	return l, nil
}

// add adds the fields of a line: the suite, or a package.
func (l *Lock) add(field []string) error {
	if field[0] == "suite" && len(field) == 2 {
		if l.Suite != "" {
			return fmt.Errorf("a second suite %s, after %s", field[1], l.Suite)
		}
		l.Suite = field[1]
		return nil
	}
	if len(field) != 5 {
		return fmt.Errorf("5 fields expected, %d found", len(field))
	}
	p := Package{field[0], field[1], field[2], field[3], field[4]}
	if sum, err := hex.DecodeString(p.SHA256); err != nil || len(sum) != 32 {
		return fmt.Errorf("%s: %q is not a SHA-256 in hexadecimal", p.Name, p.SHA256)
	}
	if _, err := l.Find(p.Want); err == nil {
		return fmt.Errorf("%s is named twice", p.Want)
	}
	l.Packages = append(l.Packages, p)
	return nil
}

// Write replaces the lock file.
func (l Lock) Write(path string) error {
	sorted := slices.SortedFunc(slices.Values(l.Packages), func(a, b Package) int { return cmp.Compare(a.Want, b.Want) })
	var b strings.Builder
	b.WriteString(lockHead)
	fmt.Fprintf(&b, "suite %s\n", l.Suite)
	for _, p := range sorted {
		fmt.Fprintf(&b, "%s %s %s %s %s\n", p.Want, p.Name, p.Version, p.Arch, p.SHA256)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// Behind returns a line for each difference of the lock from newest, the newest packages of Debian:
// another suite, another version, another file, or a package that is not pinned. It ignores pinned
// packages that newest does not contain.
func (l Lock) Behind(newest Lock) []string {
	var lines []string
	if l.Suite != newest.Suite {
		lines = append(lines, fmt.Sprintf("suite: pinned is %s, the imager takes %s", l.Suite, newest.Suite))
	}
	for _, n := range newest.Packages {
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

// Find returns the package with the name want in the field Want, or an error.
func (l Lock) Find(want string) (Package, error) {
	for _, p := range l.Packages {
		if p.Want == want {
			return p, nil
		}
	}
	return Package{}, fmt.Errorf("%s: is not in the lock file; run `imager lock`", want)
}
