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

// kubernetes is the module of a repository that also contains k8s.io/api and other modules. Their
// versions are v0.37.2 for its version v1.37.2.
const kubernetes = "k8s.io/kubernetes"

// Pin is the version of a Go module that a go.mod file selects.
type Pin struct {
	Module  string
	Version string
	File    string // the go.mod file
	// Indirect is true for a module that only other modules need.
	Indirect bool
	// Follows is true for a module of the repository of Kubernetes with the version of Kubernetes.
	Follows bool
}

// String returns the module with its version, as the go command writes them.
func (p Pin) String() string { return p.Module + "@" + p.Version }

// Pins reads the pinned versions from a go.mod file. A replacement by a module is the pinned
// version; a replacement by a directory has none. The module of a tool is not indirect.
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

// owner returns the required module that contains a package.
func owner(pkg string, all []*modfile.Require) string {
	longest := ""
	for _, r := range all {
		if strings.HasPrefix(pkg+"/", r.Mod.Path+"/") && len(r.Mod.Path) > len(longest) {
			longest = r.Mod.Path
		}
	}
	return longest
}

// markFollowers sets Follows.
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

// Facts is the answer of the go command about a module (`go list -m -u -versions -json`).
type Facts struct {
	Path       string
	Version    string
	Time       *time.Time
	Update     *Published // the newest version, if it is newer
	Versions   []string   // without retracted versions
	Retracted  []string   // why the version was retracted
	Deprecated string
	Replace    *Facts
	Error      *struct{ Err string }
}

// ParseFacts reads a sequence of JSON objects. Of a replaced module it returns the replacement.
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

// refused is the part of the go command's error that names the request and the status of a proxy.
var refused = regexp.MustCompile(`/@(v/\S+|latest): (\d{3} [A-Z][A-Za-z ]*)`)

// refusal describes why the go command has no answer, without the address of the proxy. list is
// true if only the list of versions is missing.
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

// The number of versions that are requested by their exact names, where a proxy has no list.
const (
	probedPatches = 10
	probedMinors  = 3
)

// candidates returns the versions that could follow, in their order: of the same minor version, and
// the first of each later minor version. A pseudo-version has none.
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

// checkedPatches is the number of listed patch versions that are requested by name: a proxy can
// list versions that it refuses.
const checkedPatches = 3

// patches returns the newest versions of the same minor version, newest first.
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

// Probes returns the versions of the pin that must be requested by name, in addition to the facts.
func Probes(p Pin, f Facts) []string {
	if _, list := f.refusal(); list {
		return candidates(p.Version)
	}
	// The go command has already requested the newest version.
	return slices.DeleteFunc(f.patches(p.Version), func(v string) bool { return f.Update != nil && v == f.Update.Version })
}

// moduleItem compares a pin with the facts, and with the versions that the proxy serves among the
// probed versions.
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

// newestOf returns the newest of the served versions.
func newestOf(versions []string, served map[string]bool) string {
	newest := ""
	for _, v := range versions {
		if served[v] && (newest == "" || semver.Compare(v, newest) > 0) {
			newest = v
		}
	}
	return newest
}
