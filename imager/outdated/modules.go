package outdated

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// kubernetes is the main module of the repository of Kubernetes. The other modules of the
// repository, for example k8s.io/api, have version v0.37.2 if the main module has v1.37.2.
const kubernetes = "k8s.io/kubernetes"

// Pin is the version of a Go module that a go.mod file selects.
type Pin struct {
	Module  string
	Version string
	File    string // the go.mod file
	// Indirect is true for a module that only other modules need.
	Indirect bool
	// Follows is true for another module of the repository of Kubernetes, if its version matches
	// the version of the main module.
	Follows bool
}

// String returns MODULE@VERSION, the form of the go command.
func (p Pin) String() string { return p.Module + "@" + p.Version }

// Pins returns the pinned versions in a go.mod file. If another module replaces a module, the other
// module is pinned. A module that is replaced by a directory is omitted. The module of a tool is
// not indirect.
func Pins(file string, text []byte) ([]Pin, error) {
	f, err := modfile.Parse(file, text, nil)
	if err != nil {
		return nil, err
	}
	replaced := map[string]module.Version{}
	for _, r := range f.Replace {
		replaced[r.Old.Path] = r.New
	}
	tools := map[string]bool{}
	for _, t := range f.Tool {
		tools[owner(t.Path, f.Require)] = true
	}
	var pins []Pin
	for _, r := range f.Require {
		p := Pin{Module: r.Mod.Path, Version: r.Mod.Version, File: file, Indirect: r.Indirect && !tools[r.Mod.Path]}
		if by, ok := replaced[r.Mod.Path]; ok {
			p.Module, p.Version = by.Path, by.Version
		}
		if p.Version != "" {
			pins = append(pins, p)
		}
	}
	markFollowers(pins)
	return pins, nil
}

// owner returns the path of the required module that contains a package.
func owner(pkg string, all []*modfile.Require) string {
	longest := ""
	for _, r := range all {
		if strings.HasPrefix(pkg+"/", r.Mod.Path+"/") && len(r.Mod.Path) > len(longest) {
			longest = r.Mod.Path
		}
	}
	return longest
}

// markFollowers sets Follows in the pins of a go.mod file.
func markFollowers(pins []Pin) {
	i := slices.IndexFunc(pins, func(p Pin) bool { return p.Module == kubernetes })
	if i < 0 {
		return
	}
	minor, ok := strings.CutPrefix(pins[i].Version, "v1.")
	for j, p := range pins {
		pins[j].Follows = ok && path.Dir(p.Module) == path.Dir(kubernetes) && p.Version == "v0."+minor
	}
}

// Published is a version and the time of its publication.
type Published struct {
	Version string
	Time    *time.Time
}

// Facts is the description of a module by the go command (`go list -m -u -versions -json`).
type Facts struct {
	Path       string
	Version    string
	Time       *time.Time
	Update     *Published // the newest version, if it is newer
	Versions   []string   // without retracted versions
	Retracted  []string   // the author's reasons for a retraction of the version
	Deprecated string
	Replace    *Facts
	Error      *struct{ Err string }
}

// ParseFacts parses a sequence of JSON objects. For a replaced module, it returns the replacement.
func ParseFacts(r io.Reader) ([]Facts, error) {
	var all []Facts
	for d := json.NewDecoder(r); ; {
		var f Facts
		switch err := d.Decode(&f); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		if f.Replace != nil {
			f = *f.Replace
		}
		all = append(all, f)
	}
}

// refused matches the request and the status of the proxy in an error of the go command.
var refused = regexp.MustCompile(`/@(v/\S+|latest): (\d{3} [A-Z][A-Za-z ]*)`)

// refusal returns the reason for which the go command has no answer, without the address of the
// proxy. The reason is empty if there is an answer. The result list is true if only the list of
// versions is missing.
func (f Facts) refusal() (reason string, list bool) {
	if f.Error == nil {
		return "", false
	}
	if m := refused.FindStringSubmatch(f.Error.Err); m != nil {
		return m[2], m[1] == "v/list"
	}
	line, _, _ := strings.Cut(f.Error.Err, "\n")
	if i := strings.LastIndex(line, ": "); i >= 0 {
		line = line[i+2:]
	}
	return line, false
}

// If a proxy refuses the list of versions, these numbers of later patch and minor versions are
// requested by name.
const (
	probedPatches = 10
	probedMinors  = 3
)

// candidates returns possible next versions in ascending order: patches of the same minor version,
// and the first patch of later minor versions. It returns nil for a pseudo-version.
func candidates(pinned string) []string {
	if module.IsPseudoVersion(pinned) || !semver.IsValid(pinned) {
		return nil
	}
	number := strings.Split(strings.TrimSuffix(strings.TrimPrefix(semver.Canonical(pinned), "v"), semver.Prerelease(pinned)), ".")
	minor, minorErr := strconv.Atoi(number[1])
	patch, patchErr := strconv.Atoi(number[2])
	if minorErr != nil || patchErr != nil {
		return nil
	}
	var all []string
	for i := 1; i <= probedPatches; i++ {
		all = append(all, fmt.Sprintf("v%s.%d.%d%s", number[0], minor, patch+i, semver.Build(pinned)))
	}
	for i := 1; i <= probedMinors; i++ {
		all = append(all, fmt.Sprintf("v%s.%d.0%s", number[0], minor+i, semver.Build(pinned)))
	}
	return all
}

// checkedPatches is the number of listed patch versions that are requested by name, because a proxy
// can list versions that it refuses to serve.
const checkedPatches = 3

// patches returns at most checkedPatches listed versions that are newer than pinned and have the
// same minor version, newest first.
func (f Facts) patches(pinned string) []string {
	var later []string
	for _, v := range f.Versions {
		if semver.MajorMinor(v) == semver.MajorMinor(pinned) && semver.Prerelease(v) == "" && semver.Compare(v, pinned) > 0 {
			later = append(later, v)
		}
	}
	semver.Sort(later)
	slices.Reverse(later)
	return later[:min(len(later), checkedPatches)]
}

// Probes returns the versions after the pinned version that must be requested from the proxy by
// name.
func Probes(p Pin, f Facts) []string {
	if _, list := f.refusal(); list {
		return candidates(p.Version)
	}
	// The go command has already requested the newest version.
	return slices.DeleteFunc(f.patches(p.Version), func(v string) bool { return f.Update != nil && v == f.Update.Version })
}

// moduleItem compares a pin with the facts about its module. served says for each requested version
// whether the proxy serves it.
func moduleItem(p Pin, f Facts, served map[string]bool) Item {
	i := Item{Kind: KindModule, Name: p.Module, Files: []string{p.File}, Indirect: p.Indirect, Pinned: p.Version,
		Retracted: strings.Join(f.Retracted, "; "), Deprecated: f.Deprecated}
	if slices.ContainsFunc(Sources, func(s Source) bool { return s.File == p.File && s.Image }) {
		i.Component = ComponentOf(p.Module)
	}
	if f.Update != nil {
		i.Newest = f.Update.Version
	}
	reason, list := f.refusal()
	if f.Path == "" {
		reason = "the go command has no answer"
	}
	switch probed := candidates(p.Version); {
	case list && len(probed) == 0:
		i.Notes = append(i.Notes, fmt.Sprintf("list refused (%s), and a pseudo-version has no next version to probe", reason))
	case list:
		i.Newest = newestOf(probed, served)
		i.Notes = append(i.Notes, fmt.Sprintf("list refused (%s), probed up to %s and %s", reason, probed[probedPatches-1], probed[len(probed)-1]))
	case reason != "":
		i.unanswered = reason
	default:
		for _, v := range f.patches(p.Version) {
			ok, probed := served[v]
			if ok || v == i.Newest {
				i.Patch = v
				break
			}
			if probed {
				i.Notes = append(i.Notes, v+" is listed, but refused")
			}
		}
	}
	if i.Patch == i.Newest {
		i.Patch = ""
	}
	return i
}

// newestOf returns the newest version that the proxy serves; empty if it serves none of the
// versions.
func newestOf(versions []string, served map[string]bool) string {
	newest := ""
	for _, v := range versions {
		if served[v] && (newest == "" || semver.Compare(v, newest) > 0) {
			newest = v
		}
	}
	return newest
}
