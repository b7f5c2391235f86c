package debian

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Offer is a version of a package that a suite of the archive contains.
type Offer struct {
	Package string
	Version string
	Suite   string // bookworm, bookworm-updates, bookworm-security
}

// Offers gets every version of the packages. A package that is not in the archive has no offers.
func (a *Archive) Offers(names ...string) ([]Offer, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	out, err := a.apt(".", "apt-cache", append([]string{"madison"}, names...)...)
	if err != nil {
		return nil, err
	}
	return parseMadison(out)
}

// parseMadison reads the table of apt-cache madison: package, version, and the index that contains
// them. It ignores indexes of source packages.
func parseMadison(text string) ([]Offer, error) {
	var offers []Offer
	for line := range strings.Lines(text) {
		column := strings.Split(line, "|")
		if len(column) != 3 {
			return nil, fmt.Errorf("apt-cache madison: %q: three columns expected", strings.TrimSpace(line))
		}
		// such as: http://archive.example/debian bookworm/main amd64 Packages
		index := strings.Fields(column[2])
		if len(index) < 3 || index[len(index)-1] != "Packages" {
			continue
		}
		suite, _, _ := strings.Cut(index[1], "/")
		offers = append(offers, Offer{strings.TrimSpace(column[0]), strings.TrimSpace(column[1]), suite})
	}
	return offers, nil
}

// Time returns the time of the package lists: the older date of the updates and of the security
// updates. The lists contain every update that was published before. A mirror may serve an old
// release file, whose signature stays valid, and a computer may permit that
// (Acquire::Check-Valid-Until), so a new date of one archive says nothing about the other.
func (a *Archive) Time() (time.Time, error) {
	if err := a.open(); err != nil {
		return time.Time{}, err
	}
	out, err := a.apt(".", "apt-get", "indextargets", "--format", "$(RELEASE) $(FILENAME)", "Created-By: Packages", "Origin: Debian")
	if err != nil {
		return time.Time{}, err
	}
	return updatesTime(releaseFiles(out), a.suite)
}

// updatesTime returns the oldest date of the release files, without the file of the suite itself,
// which changes with point releases only.
func updatesTime(files []string, suite string) (time.Time, error) {
	var oldest time.Time
	for _, file := range files {
		if strings.HasSuffix(file, "_dists_"+suite+"_InRelease") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return time.Time{}, fmt.Errorf("cannot read release file: %w", err)
		}
		date, err := releaseDate(text)
		if err != nil {
			return time.Time{}, fmt.Errorf("%s: %w", file, err)
		}
		if oldest.IsZero() || date.Before(oldest) {
			oldest = date
		}
	}
	if oldest.IsZero() {
		return oldest, fmt.Errorf("apt has no lists of the updates of Debian %s", suite)
	}
	return oldest, nil
}

// releaseFiles returns the signed release files of the package indexes, from lines with the release
// and the file of an index. apt stores both in a directory, with the URL in their names.
func releaseFiles(indexes string) []string {
	var files []string
	seen := map[string]bool{}
	for line := range strings.Lines(indexes) {
		release, index, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		dists := "_dists_" + strings.ReplaceAll(release, "/", "_") + "_"
		prefix, _, ok := strings.Cut(filepath.Base(index), dists)
		file := filepath.Join(filepath.Dir(index), prefix+dists+"InRelease")
		if !ok || seen[file] {
			continue
		}
		seen[file] = true
		files = append(files, file)
	}
	return files
}

// releaseDate returns the field Date of a release file.
func releaseDate(text []byte) (time.Time, error) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("Date:")); ok {
			return time.Parse(time.RFC1123, string(bytes.TrimSpace(value)))
		}
	}
	return time.Time{}, errors.New("has no field Date")
}
