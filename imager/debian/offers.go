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

// parseMadison parses the table of apt-cache madison. Its columns are a package, a version, and the
// index that contains this version. It ignores indexes of source packages.
func parseMadison(text string) ([]Offer, error) {
	var offers []Offer
	for line := range strings.Lines(text) {
		column := strings.Split(line, "|")
		if len(column) != 3 {
			return nil, fmt.Errorf("apt-cache madison: %q: three columns expected", strings.TrimSpace(line))
		}
		// for example: http://archive.example/debian bookworm/main amd64 Packages
		index := strings.Fields(column[2])
		if len(index) < 3 || index[len(index)-1] != "Packages" {
			continue
		}
		suite, _, _ := strings.Cut(index[1], "/")
		offers = append(offers, Offer{strings.TrimSpace(column[0]), strings.TrimSpace(column[1]), suite})
	}
	return offers, nil
}

// Time returns the time of the package lists. The lists contain every update that was published
// before this time. The time is the older of two dates: the date of the updates and the date of the
// security updates. If the mirror of one archive is up to date, the mirror of the other archive may
// still be old: it may serve an old release file with a valid signature, and the computer may
// accept this file (Acquire::Check-Valid-Until).
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

// updatesTime returns the oldest date of the release files. It ignores the file of the suite
// itself, because this file changes only with point releases.
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

// releaseFiles returns the paths of the signed release files of package indexes. A line of indexes
// has a release and the path of an index. apt stores both files in the same directory, and their
// names contain the URL.
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
