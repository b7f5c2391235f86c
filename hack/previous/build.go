package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// shared are the directories of the working tree that the build of the release uses, too: the keys
// with which an image is built, and the Debian packages, which have their SHA-256 as their name.
// The packages are shared, because the Debian archive may no longer have the packages of the
// release.
var shared = []string{"build/operator", "build/release", packageCache}

const packageCache = "build/cache/deb"

// publicKeys are the files in shared that become part of an image.
var publicKeys = []string{"build/operator/ca.crt", "build/release/keys.pem"}

// kept are the files of a profile that go into the result. The build of a release can omit some of
// them.
var kept = []string{"disk.raw", "disk.raw.zst", "netboot.efi", "orlop.bundle", "manifest.json", "sbom.spdx.json", "provenance.intoto.jsonl"}

// required are the files that a complete result has.
var required = []string{"disk.raw", "disk.raw.zst", "orlop.bundle", "manifest.json", "bin/orlopctl", nextBundle}

// nextBundle is a bundle with the programs of the release and a higher version. `make bench`
// measures the upgrade from the release to it.
const nextBundle = "next/orlop.bundle"

// nextVersion is the version of nextBundle. `make versions` uses the same version.
const nextVersion = "99.0.0"

// builder builds a release, or finds it in the cache.
type builder struct {
	Release
	profile    string
	repository string // the top directory of the working tree
	cache      string // the directory with the releases of this computer
	log        io.Writer
}

// provide returns the directory of the release in the cache. It builds the release if the directory
// is missing or damaged. During the build, a lock keeps other processes from building the same
// release.
func (b *builder) provide() (string, error) {
	repository, err := filepath.Abs(b.repository)
	if err != nil {
		return "", err
	}
	b.repository = repository
	keys, err := b.keyDigest()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.cache, strings.Join([]string{b.Version, b.Commit[:12], b.profile, keys[:12]}, "-"))
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(dir+".lock", b.log)
	if err != nil {
		return "", err
	}
	defer unlock()
	switch err := verify(dir); {
	case err == nil:
		fmt.Fprintf(b.log, "release %s is complete in %s\n", b.Version, dir)
		return dir, nil
	case !errors.Is(err, fs.ErrNotExist):
		fmt.Fprintf(b.log, "%s: %v; the release is built again\n", dir, err)
	}
	if err := b.checkCommit(); err != nil {
		return "", err
	}
	return dir, b.build(dir)
}

// verify checks that a directory has all files that sumsFile lists and all required files. A result
// of an earlier version of this program may lack required files. The error wraps fs.ErrNotExist if
// the directory is missing.
func verify(dir string) error {
	if err := verifySums(dir); err != nil {
		return err
	}
	for _, name := range required {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			// The error does not wrap err, because fs.ErrNotExist would mean that dir is missing.
			return fmt.Errorf("is incomplete: %v", err)
		}
	}
	return nil
}

// keyDigest returns the SHA-256 of the keys that the image of the release trusts, in hexadecimal
// digits.
func (b *builder) keyDigest() (string, error) {
	sum := sha256.New()
	for _, name := range publicKeys {
		text, err := os.ReadFile(filepath.Join(b.repository, name))
		if err != nil {
			return "", fmt.Errorf("cannot read the keys of the image, which `make image` makes: %w", err)
		}
		fmt.Fprintf(sum, "%q %q\n", name, text)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// checkCommit checks that the repository has the commit. If the repository has the tag of the
// release, the tag must name this commit.
func (b *builder) checkCommit() error {
	if _, err := b.git(b.repository, "cat-file", "-e", b.Commit+"^{commit}"); err != nil {
		remedy := "fetch the branch that contains it (`git fetch origin`)"
		if shallow, _ := b.git(b.repository, "rev-parse", "--is-shallow-repository"); shallow == "true" {
			remedy = "the clone is shallow: get the history (`git fetch --unshallow`)"
		}
		return fmt.Errorf("commit %s is not in this repository; %s", b.Commit, remedy)
	}
	tagged, err := b.git(b.repository, "rev-parse", "--quiet", "--verify", "refs/tags/"+b.Version+"^{commit}")
	if err == nil && tagged != b.Commit {
		return fmt.Errorf("tag %s names commit %s, %s names %s; correct one of the two", b.Version, tagged, releasesFile, b.Commit)
	}
	return nil
}

// build builds the release in a directory beside dir, and renames the result to dir.
func (b *builder) build(dir string) error {
	work := dir + ".part"
	if err := os.RemoveAll(work); err != nil { // a directory of an interrupted build
		return err
	}
	defer os.RemoveAll(work)
	tree := filepath.Join(work, "tree")
	if err := b.checkOut(tree); err != nil {
		return err
	}
	if err := b.share(tree); err != nil {
		return err
	}
	fmt.Fprintf(b.log, "building release %s, commit %s\n", b.Version, b.Commit)
	if err := b.run(tree, "make", "image", "PROFILE="+b.profile); err != nil {
		return fmt.Errorf("cannot build: make image: %w; a package that Debian no longer serves must be in %s under the name <SHA-256>.deb (snapshot.debian.org has all versions)",
			err, filepath.Join(b.repository, packageCache))
	}
	if err := b.run(tree, filepath.Join("build", "bin", "imager"), "-profile", filepath.Join("profiles", b.profile+".yaml"),
		"-outputs", "orlop.bundle", "-bin", "", "-out", filepath.Join("build", "next"), "-version", nextVersion); err != nil {
		return fmt.Errorf("cannot build version %s of it: %w", nextVersion, err)
	}
	result := filepath.Join(work, "result")
	if err := collect(filepath.Join(tree, "build"), b.profile, result); err != nil {
		return err
	}
	if err := writeSums(result); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil { // a damaged result
		return err
	}
	return os.Rename(result, dir)
}

// run runs a program of the release in its tree. The output goes to the log.
func (b *builder) run(tree, program string, args ...string) error {
	c := exec.Command(program, args...)
	c.Dir, c.Stdout, c.Stderr = tree, b.log, b.log
	c.Env = cleanEnvironment(os.Environ())
	return c.Run()
}

// checkOut clones the repository to the directory tree, checks the commit out, and sets the tag of
// the release. The clone shares the objects of the repository. checkOut returns an error if the
// commit has another version than the release.
func (b *builder) checkOut(tree string) error {
	for _, step := range [][]string{
		{"clone", "--quiet", "--shared", "--no-checkout", b.repository, tree},
		{"-C", tree, "-c", "advice.detachedHead=false", "checkout", "--quiet", b.Commit},
		{"-C", tree, "tag", "--force", b.Version, b.Commit},
	} {
		if _, err := b.git(".", step...); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(filepath.Join(tree, "profiles", "VERSION"))
	if err != nil {
		return err
	}
	if version, _, _ := strings.Cut(string(text), "\n"); strings.TrimSpace(version) != b.Version {
		return fmt.Errorf("commit %s has version %q in profiles/VERSION; correct %s", b.Commit, version, releasesFile)
	}
	return nil
}

// share makes symbolic links to the shared directories in the tree. It does not copy them, because
// no copy of a private key may leave the working tree.
func (b *builder) share(tree string) error {
	for _, name := range shared {
		from, to := filepath.Join(b.repository, name), filepath.Join(tree, name)
		for _, dir := range []string{from, filepath.Dir(to)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.Symlink(from, to); err != nil {
			return err
		}
	}
	return nil
}

// collect moves the files of the result from the directory build. It returns an error if a required
// file is missing.
func collect(build, profile, result string) error {
	if err := os.MkdirAll(result, 0o755); err != nil {
		return err
	}
	for _, name := range kept {
		if err := os.Rename(filepath.Join(build, profile, name), filepath.Join(result, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(filepath.Join(build, "bin"), filepath.Join(result, "bin")); err != nil {
		return fmt.Errorf("make image has built no programs: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(result, nextBundle)), 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(build, nextBundle), filepath.Join(result, nextBundle)); err != nil {
		return fmt.Errorf("the imager has built no bundle: %w", err)
	}
	for _, name := range required {
		if _, err := os.Stat(filepath.Join(result, name)); err != nil {
			return fmt.Errorf("make image has not built it: %w", err)
		}
	}
	return nil
}

// cleanEnvironment removes the variables that a calling make sets, and the flags of the go tool.
// The Makefile of the release sets them itself.
func cleanEnvironment(all []string) []string {
	var clean []string
	for _, v := range all {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "GOFLAGS", "PROFILE", "BUILD", "SOURCE_DATE_EPOCH":
		default:
			clean = append(clean, v)
		}
	}
	return clean
}

// git runs git in a directory and returns its output without spaces and newlines at both ends.
func (b *builder) git(dir string, args ...string) (string, error) {
	command := exec.Command("git", args...)
	command.Dir = dir
	var message strings.Builder
	command.Stderr = &message
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(message.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// lock takes the exclusive lock of a file. While another process has the lock, the function logs
// this and waits. unlock releases the lock.
func lock(name string, log io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprintf(log, "%s: waiting for another process, which builds this release\n", name)
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: cannot lock: %w", name, err)
	}
	return func() { file.Close() }, nil
}

// replaceLink makes link a symbolic link to dir. It replaces an existing symbolic link, and returns
// an error for any other existing file.
func replaceLink(dir, link string) error {
	if info, err := os.Lstat(link); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return fmt.Errorf("%s: is not a symbolic link; move it away", link)
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	return renameio.Symlink(dir, link)
}
