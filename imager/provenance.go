package main

import (
	"bytes"
	"cmp"
	gobuildinfo "debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/pkg/bundle"
)

// provenanceFile is the artifact with the provenance: a signed envelope in a single line.
const provenanceFile = "provenance.intoto.jsonl"

// sourceURI is the repository of the source.
const sourceURI = "git+https://github.com/orlop-os/orlop"

// internalParameters are the parameters of a build that follow from the source.
type internalParameters struct {
	// SourceDateEpoch is the time in the image, in seconds since 1970.
	SourceDateEpoch int64 `json:"sourceDateEpoch"`
	Pins            Pins  `json:"pins"`
}

// writeProvenance writes the provenance of these artifacts. The keys that sign the bundle also sign
// it.
func (b *Build) writeProvenance(artifacts []HashedFile) error {
	keys, err := b.Profile.keys()
	if err != nil {
		return err
	}
	packed, err := hashFile("root.img.zst", b.work("root.img.zst"))
	if err != nil {
		return err
	}
	s := b.provenance(slices.Concat(artifacts, []HashedFile{packed}))
	if s.Predicate.BuildDefinition.ResolvedDependencies, err = b.materials(); err != nil {
		return err
	}
	envelope, err := bundle.SealProvenance(s, keys...)
	if err != nil {
		return err
	}
	return os.WriteFile(b.out(provenanceFile), append(envelope, '\n'), 0o644)
}

// provenance returns the provenance of files. The caller adds the materials.
func (b *Build) provenance(files []HashedFile) bundle.Provenance {
	version := map[string]string{"go": runtime.Version()}
	maps.Copy(version, b.tools)
	s := bundle.Provenance{Type: bundle.ProvenanceType, PredicateType: bundle.PredicateType, Predicate: bundle.Predicate{
		BuildDefinition: bundle.BuildDefinition{
			BuildType: bundle.BuildType,
			ExternalParameters: bundle.BuildParameters{
				Profile: b.Release.Profile, Version: b.Release.Version, Epoch: b.Release.Epoch, Kubernetes: b.Release.Kubernetes,
				Outputs: b.Profile.Outputs, Programs: sortedKeys(b.Programs),
			},
			InternalParameters: internalParameters{b.Release.BuildTime, b.Pins},
		},
		RunDetails: bundle.RunDetails{Builder: bundle.BuilderID{ID: bundle.Builder, Version: version}},
	}}
	for _, f := range files {
		s.Subject = append(s.Subject, fileResource(f))
	}
	return s
}

func fileResource(f HashedFile) bundle.Resource {
	return bundle.Resource{Name: f.Name, Digest: map[string]string{bundle.DigestSHA256: f.SHA256}}
}

// materials returns the inputs of the build: the source, the input files of the manifest, the ready
// executables that replace a build, the Debian packages, and the Go modules in the executables.
func (b *Build) materials() ([]bundle.Resource, error) {
	source := bundle.Resource{URI: sourceURI}
	if b.Commit != "" {
		source.Digest = map[string]string{bundle.DigestGitCommit: b.Commit}
	}
	all := []bundle.Resource{source}
	for _, f := range b.inputs {
		all = append(all, fileResource(f))
	}
	for _, name := range sortedKeys(b.Programs) {
		f, err := hashFile("program "+name, b.Programs[name])
		if err != nil {
			return nil, err
		}
		all = append(all, fileResource(f))
	}
	packages, err := b.packages()
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		all = append(all, bundle.Resource{URI: p.PURL(b.archive.Lock.Suite), Digest: map[string]string{bundle.DigestSHA256: p.SHA256}})
	}
	modules, err := moduleResources(b.built)
	return append(all, modules...), err
}

// packages returns the Debian packages that the build used, sorted by name: the packages of the
// image and the packages of the sysroot.
func (b *Build) packages() ([]debian.Package, error) {
	used := maps.Clone(b.archive.used)
	for _, want := range sysrootPackages {
		p, err := b.archive.Lock.Find(want)
		if err != nil {
			return nil, err
		}
		used[p.Name] = p
	}
	var all []debian.Package
	for _, name := range sortedKeys(used) {
		all = append(all, used[name])
	}
	return all, nil
}

// moduleResources returns the Go modules in executables, sorted by URI, with the digests of go.sum.
// It omits modules of this repository, which have no digest in go.sum.
func moduleResources(built map[string]string) ([]bundle.Resource, error) {
	modules := map[string]bundle.Resource{}
	for _, name := range sortedKeys(built) {
		info, err := gobuildinfo.ReadFile(built[name])
		if err != nil {
			return nil, fmt.Errorf("%s: cannot tell which modules are in it: %w", name, err)
		}
		for _, m := range linkedInto(info) {
			if m.Sum == "" {
				continue
			}
			digest, err := dirHash(m.Sum)
			if err != nil {
				return nil, fmt.Errorf("%s: module %s: %w", name, m.Path, err)
			}
			uri := moduleURL(m)
			modules[uri] = bundle.Resource{URI: uri, Digest: map[string]string{bundle.DigestDirHash: digest}}
		}
	}
	var all []bundle.Resource
	for _, uri := range sortedKeys(modules) {
		all = append(all, modules[uri])
	}
	return all, nil
}

// linkedInto returns the modules of the dependencies of an executable. The module of the main
// package is included if it is from another repository. A replacement is returned in place of a
// replaced module.
func linkedInto(info *gobuildinfo.BuildInfo) []*debug.Module {
	var all []*debug.Module
	if info.Main.Sum != "" {
		all = append(all, &info.Main)
	}
	for _, d := range info.Deps {
		all = append(all, cmp.Or(d.Replace, d))
	}
	return all
}

// moduleURL returns the package URL of a module.
func moduleURL(m *debug.Module) string { return "pkg:golang/" + m.Path + "@" + m.Version }

// dirHash converts the digest of a module from the form of go.sum ("h1:" and base64) to
// hexadecimal.
func dirHash(sum string) (string, error) {
	text, known := strings.CutPrefix(sum, "h1:")
	digest, err := base64.StdEncoding.DecodeString(text)
	if !known || err != nil || len(digest) != 32 {
		return "", fmt.Errorf("%q is not a digest of go.sum", sum)
	}
	return hex.EncodeToString(digest), nil
}

// sourceCommit returns the commit of the source in the working directory. If the source differs
// from its commit, or git knows no commit, it returns a note with the reason instead.
func sourceCommit() (commit, note string) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return string(bytes.TrimSpace(out)), err
	}
	prefix, err := git("rev-parse", "--show-prefix")
	if err == nil && prefix != "" { // another repository contains the directory
		return "", "the provenance names no commit: this directory is not the top of a git repository"
	}
	commit, err1 := git("rev-parse", "HEAD")
	changes, err2 := git("status", "--porcelain")
	switch {
	case err != nil || err1 != nil || err2 != nil:
		return "", "the provenance names no commit: git does not know one for this source"
	case changes != "":
		first, _, _ := strings.Cut(changes, "\n")
		return "", "the provenance names no commit: the source has changes that are not committed, such as " + filepath.Base(strings.Fields(first)[1])
	}
	return commit, ""
}

// signProvenance adds a signature to the provenance in a file, and replaces the file.
func signProvenance(file string, key bundle.Key) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	signed, err := bundle.AddSignature(text, bundle.TypeInToto, key)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return renameio.WriteFile(file, append(signed, '\n'), 0o644)
}
