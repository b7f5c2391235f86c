package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/outdated"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// pinsFile has the dates of the pinned versions, relative to the working directory.
const pinsFile = "imager/pins.json"

// Pins are the dates of the pinned versions. A build cannot find the dates itself: the archive of
// Debian changes, and the build may have no network. Therefore `imager lock` records the dates,
// with digests of the pinned versions to which they belong.
type Pins struct {
	Debian  DebianPins `json:"debian"`
	Modules ModulePins `json:"modules"`
}

// DebianPins is the date of the Debian packages in the lock file.
type DebianPins struct {
	// Archive is the time of Debian's archive from which `imager lock` pinned the newest packages.
	// The packages contain every update that Debian published before this time.
	Archive time.Time `json:"archive"`
	SHA256  string    `json:"sha256"` // of the lock file
}

// ModulePins are the dates of the Go modules that are linked into the programs of the image.
type ModulePins struct {
	// Newest is the module that was published last, in the form path@version. Published is its
	// time. Unlike the packages of DebianPins, the other modules can lack updates that were
	// published before this time.
	Newest     string            `json:"newest"`
	Published  time.Time         `json:"published"`
	Components []PinnedComponent `json:"components"`
	SHA256     string            `json:"sha256"` // of the versions in the go.mod files of the image
}

// PinnedComponent is a component with its pinned version and the time of the publication.
type PinnedComponent struct {
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Published time.Time `json:"published"`
}

// readPins returns the recorded dates of the present pinned versions. It omits dates of other
// versions, and returns a note for each omission. If the file does not exist, it omits all dates.
func readPins() (Pins, []string, error) {
	var p Pins
	text, err := os.ReadFile(pinsFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, nil, err
	}
	if err == nil {
		if err := json.Unmarshal(text, &p); err != nil {
			return p, nil, fmt.Errorf("%s: %w; `imager lock` writes it", pinsFile, err)
		}
	}
	lock, _, err := safefile.SHA256(lockFile)
	if err != nil {
		return p, nil, err
	}
	modules, err := moduleDigest()
	if err != nil {
		return p, nil, err
	}
	p, notes := p.of(lock, modules)
	return p, notes, nil
}

// The method of returns p without the dates that were recorded for other pinned versions, and a
// note for each omission. lock and modules are the digests of the present versions.
func (p Pins) of(lock, modules string) (Pins, []string) {
	var notes []string
	if p.Debian.SHA256 != lock {
		p.Debian = DebianPins{}
		notes = append(notes, pinsFile+": has no date for this "+lockFile+": run `imager lock`")
	}
	if p.Modules.SHA256 != modules {
		p.Modules = ModulePins{}
		notes = append(notes, pinsFile+": has no date for the modules in go.mod and "+componentsModule+"/go.mod: run `imager lock -modules`")
	}
	return p, notes
}

// release returns the dates in the form that the image contains.
func (p Pins) release() buildinfo.Pins {
	return buildinfo.Pins{Debian: seconds(p.Debian.Archive), Modules: seconds(p.Modules.Published)}
}

// seconds returns the seconds since 1970; 0 for the zero time.
func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// moduleDigest returns the digest of the versions in the go.mod files of the image.
func moduleDigest() (string, error) {
	var lines []string
	for _, s := range outdated.Sources {
		if !s.Image {
			continue
		}
		text, err := os.ReadFile(s.File)
		if err != nil {
			return "", err
		}
		pins, err := outdated.Pins(s.File, text)
		if err != nil {
			return "", err
		}
		for _, p := range pins {
			lines = append(lines, p.File+" "+p.String()+"\n")
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:]), nil
}

// pinModules returns the dates of the modules that are linked into the programs of the image.
func pinModules() (ModulePins, error) {
	var linked []outdated.Facts
	for _, s := range imageScans() {
		c := exec.Command("go", append([]string{"list", "-deps", "-json=Module", "-tags", s.Tags}, s.Packages...)...)
		cgo := "CGO_ENABLED=0"
		if s.CGO {
			cgo = "CGO_ENABLED=1"
		}
		var stderr bytes.Buffer
		c.Dir, c.Stderr = s.Dir, &stderr
		c.Env = append(os.Environ(), cgo, "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH=amd64", "GOWORK=off")
		out, err := c.Output()
		if err != nil {
			return ModulePins{}, fmt.Errorf("go list: %w: %s", err, strings.TrimSpace(stderr.String()))
		}
		modules, err := linkedModules(bytes.NewReader(out))
		if err != nil {
			return ModulePins{}, err
		}
		linked = append(linked, modules...)
	}
	p, err := datesOf(linked)
	if err != nil {
		return p, err
	}
	p.SHA256, err = moduleDigest()
	return p, err
}

// linkedModules reads the modules of packages from the output of `go list -json=Module`. It omits
// the standard library, which has no module, and the modules of this repository, which have no
// version.
func linkedModules(r io.Reader) ([]outdated.Facts, error) {
	var all []outdated.Facts
	for d := json.NewDecoder(r); ; {
		var pkg struct{ Module *outdated.Facts }
		switch err := d.Decode(&pkg); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		m := pkg.Module
		if m != nil && m.Replace != nil {
			m = m.Replace
		}
		if m != nil && m.Version != "" {
			all = append(all, *m)
		}
	}
}

// datesOf returns the dates of linked modules. It fails if the go command does not know a date.
func datesOf(linked []outdated.Facts) (ModulePins, error) {
	var p ModulePins
	seen := map[string]bool{}
	for _, m := range linked {
		name := m.Path + "@" + m.Version
		if m.Time == nil {
			return p, fmt.Errorf("%s: the go command does not know when it was published; `go mod download` asks the module proxy", name)
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		if m.Time.After(p.Published) || m.Time.Equal(p.Published) && name > p.Newest {
			p.Newest, p.Published = name, *m.Time
		}
		if component := outdated.ComponentOf(m.Path); component != "" {
			p.Components = append(p.Components, PinnedComponent{component, m.Version, *m.Time})
		}
	}
	slices.SortFunc(p.Components, func(a, b PinnedComponent) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	return p, nil
}

// pinDebian returns the date of the lock file, which was just written from the archive.
func pinDebian(archive *debian.Archive) (DebianPins, error) {
	published, err := archive.Time()
	if err != nil {
		return DebianPins{}, err
	}
	sum, _, err := safefile.SHA256(lockFile)
	return DebianPins{Archive: published, SHA256: sum}, err
}

// updatePins records the dates of the modules and of the lock file. If the lock file was just
// written, archive is its source. If archive is nil, the recorded date of the lock file stays. With
// an archive, updatePins also replaces a damaged file.
func updatePins(archive *debian.Archive) error {
	var p Pins
	var err error
	if archive == nil {
		p, _, err = readPins()
	} else {
		p.Debian, err = pinDebian(archive)
	}
	if err != nil {
		return err
	}
	if p.Modules, err = pinModules(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.FromSlash(pinsFile), append(text, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: Debian's archive of %s, newest Go module of %s\n", pinsFile, date(p.Debian.Archive), date(p.Modules.Published))
	return nil
}

// date returns the day of a time, such as 2026-11-30, or "an unknown time" for the zero time.
func date(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.DateOnly)
}
