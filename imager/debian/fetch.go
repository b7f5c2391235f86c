package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Fetch returns the paths of the .deb files of the packages, in their order. It downloads the files
// that the directory cache does not have. It verifies the SHA-256 of each file, also of cached
// files. If all files are cached, it runs no program and needs no network.
func (a *Archive) Fetch(packages []Package, cache string) ([]string, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, p := range packages {
		file := filepath.Join(cache, p.SHA256+".deb")
		sum, _, err := safefile.SHA256(file)
		if os.IsNotExist(err) {
			sum, err = a.download(p, file)
		}
		if err != nil {
			return nil, err
		}
		if sum != p.SHA256 {
			return nil, fmt.Errorf("%s %s: SHA-256 of %s is %s, the lock file says %s: delete the file, or refresh the lock with `imager lock`",
				p.Name, p.Version, file, sum, p.SHA256)
		}
		files = append(files, file)
	}
	return files, nil
}

// download downloads a package to a file and returns the SHA-256 of the file. If the download fails
// with old package lists, it updates the lists and tries again. A file with a wrong SHA-256 is not
// stored.
func (a *Archive) download(p Package, file string) (string, error) {
	if err := a.open(); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), "download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	get := func() error {
		_, err := a.apt(dir, "apt-get", "-qq", "download", p.Name+"="+p.Version)
		return err
	}
	err = get()
	if err != nil && !a.fresh {
		if err = a.Update(); err == nil {
			err = get()
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: cannot download: %w: Debian %s may have replaced it by a newer version (`imager lock`)",
			p.Name, p.Version, err, a.suite)
	}
	got, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(got) != 1 {
		return "", fmt.Errorf("%s %s: apt-get left %d files, one expected", p.Name, p.Version, len(got))
	}
	sum, _, err := safefile.SHA256(got[0])
	if err != nil || sum != p.SHA256 {
		return sum, err // a wrong file does not enter the cache
	}
	return sum, os.Rename(got[0], file)
}

// Resolve returns the newest version of each wanted package. For a meta package of a kernel, for
// example linux-image-cloud-amd64, it returns the kernel package on which the meta package depends.
func (a *Archive) Resolve(want []string) (Lock, error) {
	l := Lock{Suite: a.suite}
	if err := a.open(); err != nil {
		return l, err
	}
	var names []string
	for _, w := range want {
		name, err := a.realName(w)
		if err != nil {
			return l, err
		}
		names = append(names, name)
	}
	out, err := a.apt(".", "apt-cache", append([]string{"show", "--no-all-versions"}, names...)...)
	if err != nil {
		return l, err
	}
	shown := map[string]map[string]string{} // by name; apt-cache omits unknown names
	for paragraph := range strings.SplitSeq(out, "\n\n") {
		f := stanza(paragraph)
		shown[f["Package"]] = f
	}
	for i, name := range names {
		f, ok := shown[name]
		if !ok {
			return l, fmt.Errorf("%s: Debian %s does not have it", name, a.suite)
		}
		l.Packages = append(l.Packages, Package{Want: want[i], Name: name, Version: f["Version"], Arch: f["Architecture"], SHA256: f["SHA256"]})
	}
	return l, nil
}

// realName returns the name of the kernel package on which a meta package of a kernel depends. For
// another package, it returns the name itself.
func (a *Archive) realName(want string) (string, error) {
	if !strings.HasPrefix(want, "linux-image-") {
		return want, nil
	}
	out, err := a.apt(".", "apt-cache", "depends", "--important", want)
	if err != nil {
		return "", err
	}
	if _, rest, ok := strings.Cut(out, "Depends: linux-image-"); ok {
		return "linux-image-" + strings.Fields(rest)[0], nil
	}
	return want, nil
}

// Closure returns the sorted names of the packages and of all their direct and indirect
// dependencies, with every alternative. It omits virtual packages.
func (a *Archive) Closure(names ...string) ([]string, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	options := []string{"depends", "--recurse", "--no-pre-depends", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}
	out, err := a.apt(".", "apt-cache", append(options, names...)...)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot find what they depend on: %w", strings.Join(names, ", "), err)
	}
	var all []string
	for line := range strings.Lines(out) {
		// Indented lines are dependencies, and angle brackets mark virtual packages.
		if line[0] != ' ' && line[0] != '<' {
			all = append(all, strings.TrimSpace(line))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// stanza returns the fields of the first paragraph in Debian's control format. It ignores
// continuation lines.
func stanza(text string) map[string]string {
	f := map[string]string{}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			break
		}
		if key, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' {
			f[key] = strings.TrimSpace(value)
		}
	}
	return f
}
