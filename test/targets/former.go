package targets

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Former is a build of a former release, with which our figures are compared.
type Former struct {
	Version string
	Image   string // directory with disk.raw, disk.raw.zst and manifest.json
	Bin     string // directory of the orlopctl of this release
	// Bundle has the same programs with a higher version, for an upgrade of the former release.
	Bundle string
}

// OpenFormer checks the files of a former release in a directory that `make release-previous` has
// made. The path is the directory or the bundle in the directory.
func OpenFormer(path string) (Former, error) {
	fail := func(err error) (Former, error) {
		return Former{}, fmt.Errorf("former release %s: cannot use: %w; `make release-previous` builds it, as build/previous", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fail(err)
	}
	dir := path
	if !info.IsDir() {
		dir = filepath.Dir(path)
	}
	f := Former{Image: dir, Bin: filepath.Join(dir, "bin"), Bundle: filepath.Join(dir, "next", "orlop.bundle")}
	for _, name := range []string{filepath.Join(dir, "disk.raw"), filepath.Join(dir, "disk.raw.zst"), filepath.Join(f.Bin, "orlopctl"), f.Bundle} {
		if _, err := os.Stat(name); err != nil {
			return fail(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return fail(err)
	}
	var manifest struct{ Release struct{ Version string } }
	if err := json.Unmarshal(text, &manifest); err != nil {
		return fail(fmt.Errorf("manifest.json: %w", err))
	}
	if f.Version = manifest.Release.Version; f.Version == "" {
		return fail(fmt.Errorf("manifest.json has no version"))
	}
	return f, nil
}
