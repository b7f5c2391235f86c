package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// releasesFile is the name of the file that lists the releases, relative to the top directory of
// the repository.
const releasesFile = "releases.yaml"

// Release is an entry of releasesFile.
type Release struct {
	Version string `json:"version"` // for example "0.1.0"; the tag has the same name
	Commit  string `json:"commit"`  // 40 hexadecimal digits
}

var wholeCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// parseReleases parses the content of releasesFile. It returns an error for an invalid entry, for
// versions that do not ascend, and for an empty list.
func parseReleases(text []byte) ([]Release, error) {
	var all []Release
	if err := strictyaml.Decode(text, &all); err != nil {
		return nil, err
	}
	for i, r := range all {
		switch {
		case !semver.IsValid("v"+r.Version) || strings.Count(r.Version, ".") != 2:
			return nil, fmt.Errorf("release %d: version %q: three numbers expected, such as 0.1.0", i+1, r.Version)
		case !wholeCommit.MatchString(r.Commit):
			return nil, fmt.Errorf("release %s: commit %q: 40 hexadecimal digits expected", r.Version, r.Commit)
		case i > 0 && semver.Compare("v"+all[i-1].Version, "v"+r.Version) >= 0:
			return nil, fmt.Errorf("release %s follows %s: ascending versions expected", r.Version, all[i-1].Version)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no release in it")
	}
	return all, nil
}

// choose returns the release with the given version, or the last release if version is "".
func choose(all []Release, version string) (Release, error) {
	known := make([]string, 0, len(all))
	for _, r := range all {
		if r.Version == version {
			return r, nil
		}
		known = append(known, r.Version)
	}
	if version != "" {
		return Release{}, fmt.Errorf("%q is not a release; known are %s", version, strings.Join(known, ", "))
	}
	return all[len(all)-1], nil
}
