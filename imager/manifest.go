package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Manifest describes the content of a build. It is written as manifest.json beside the artifacts.
type Manifest struct {
	Release buildinfo.Release `json:"release"`
	// Root is the value of the kernel argument orlop.root. RootPartition is the unique GUID of the
	// partition with the root.
	Root          string `json:"root"`
	RootPartition string `json:"rootPartition"`
	CommandLine   string `json:"commandLine"`
	GoVersion     string `json:"goVersion"`
	// Pins has the dates of the pinned Debian packages and Go modules (pins.json). Their versions
	// are in Inputs and in the programs.
	Pins Pins `json:"pins"`
	// Tools are the versions of the Debian packages on the building computer that influence the
	// bytes of the artifacts, by package.
	Tools map[string]string `json:"tools"`
	// Inputs are the pinned inputs of the build, Programs are the programs that it compiles, and
	// Artifacts are its results.
	Inputs    []HashedFile `json:"inputs"`
	Programs  []HashedFile `json:"programs"`
	Artifacts []HashedFile `json:"artifacts"`
	// Parts are the sizes of the parts of the root, before erofs compresses it.
	Parts []Part `json:"parts"`
	// Boot are the sizes of the parts of the unified kernel image.
	Boot []Part `json:"boot"`
	// Executables are the paths of all executable files of the root, also of those from Debian.
	Executables []string `json:"executables"`
}

// HashedFile is a file or package with its digest.
type HashedFile struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	SHA256  string `json:"sha256"`
}

// Part is the number and the total size of the files with the same origin.
type Part struct {
	Name  string `json:"name"`
	Files int    `json:"files,omitempty"`
	Bytes int64  `json:"bytes"`
}

// hashFile returns the size and the digest of a file. name is its name in the manifest.
func hashFile(name, file string) (HashedFile, error) {
	sum, size, err := safefile.SHA256(file)
	if err != nil {
		return HashedFile{}, err
	}
	return HashedFile{Name: name, Bytes: size, SHA256: sum}, nil
}

// parts returns the sizes of the regular files of a tree for each origin (Node.From), the largest
// first.
func parts(t Tree) ([]Part, error) {
	sum := map[string]*Part{}
	for name, n := range t {
		if n.Dir || n.Target != "" {
			continue
		}
		size := int64(len(n.Data))
		if n.Source != "" {
			info, err := os.Stat(n.Source)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			size = info.Size()
		}
		p := sum[n.From]
		if p == nil {
			p = &Part{Name: n.From}
			sum[n.From] = p
		}
		p.Files++
		p.Bytes += size
	}
	var all []Part
	for _, p := range sum {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b Part) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// tools are the packages of the building computer that influence the bytes of the artifacts. They
// are not in the lock file. The packages of the lock file are only unpacked, but the tools have to
// be installed.
var tools = []string{"binutils", "dosfstools", "erofs-utils", "gcc", "kmod", "linux-libc-dev", "mtools", "xorriso"}

// toolVersions returns the installed versions of tools, by package.
func toolVersions() (map[string]string, error) {
	out, err := exec.Command("dpkg-query", append([]string{"-W", "-f", "${Package} ${Version}\n"}, tools...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("dpkg-query: cannot tell the versions of the tools: %w; install all packages in imager/host-packages.txt", err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[name] = version
		}
	}
	return versions, nil
}

// Write writes the manifest as JSON.
func (m *Manifest) Write(path string) error { return writeJSON(path, m) }

// Print shows parts, executables and artifacts as tables.
func (m *Manifest) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nfiles\tMiB\t  part of the root")
	for _, p := range m.Parts {
		fmt.Fprintf(t, "%d\t%.1f\t  %s\n", p.Files, mib(p.Bytes), p.Name)
	}
	fmt.Fprintln(t, "\n\tMiB\t  part of the unified kernel image")
	for _, p := range m.Boot {
		fmt.Fprintf(t, "\t%.1f\t  %s\n", mib(p.Bytes), p.Name)
	}
	fmt.Fprintln(t, "\nSHA-256\tMiB\t  artifact")
	for _, a := range m.Artifacts {
		fmt.Fprintf(t, "%.12s\t%.1f\t  %s\n", a.SHA256, mib(a.Bytes), a.Name)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d executables:\n", len(m.Executables))
	for _, x := range m.Executables {
		fmt.Fprintln(w, " ", x)
	}
	_, err := fmt.Fprintf(w, "\nroot %s\n", m.Root)
	return err
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Clean(path), append(data, '\n'), 0o644)
}

// sortedKeys returns the sorted keys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
