// Command previous builds a former release of the system, for the tests of upgrades, and links the
// result as build/previous.
//
//	go run ./hack/previous                  the last release of releases.yaml
//	go run ./hack/previous -version 0.1.0   this release
//
// The Makefile of the release builds it (`make image`), in a clone of the repository with the
// commit of the release and its tag. The working tree and the repository stay unchanged. The image
// of the release trusts the same operator CA and release keys as the present image, and its bundle
// is signed with the same key. So each of the two versions accepts the bundle of the other.
//
// The result is stored once per computer, outside of the working tree (os.UserCacheDir), in a
// directory for each commit, profile and set of keys. A directory gets its name when it is
// complete. Before each use, the program verifies the files of the directory by its file
// SHA256SUMS. This detects damage, for example by a power cut or by a test that writes to a file.
// It does not protect against a user with write access to the directory: the cache needs the same
// protection as the working tree.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "previous:", err)
		os.Exit(1)
	}
}

// run provides the release in the cache, and makes the link to it.
func run(args []string) error {
	flags := flag.NewFlagSet("previous", flag.ContinueOnError)
	version := flags.String("version", "", "`version` of the release; the last release unless given")
	profile := flags.String("profile", "qemu", "`name` of the profile")
	cache := flags.String("cache", "", "`directory` of the releases of this computer; orlop/releases in the user's cache directory unless given")
	link := flags.String("link", filepath.Join("build", "previous"), "symbolic `link` to make to the release")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("only flags expected, no other arguments")
	}
	text, err := os.ReadFile(releasesFile)
	if err != nil {
		return fmt.Errorf("cannot read the releases: %w", err)
	}
	releases, err := parseReleases(text)
	if err != nil {
		return fmt.Errorf("%s: %w", releasesFile, err)
	}
	release, err := choose(releases, *version)
	if err != nil {
		return fmt.Errorf("%s: %w", releasesFile, err)
	}
	if *cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("cannot find the cache directory; -cache names another one: %w", err)
		}
		*cache = filepath.Join(user, "orlop", "releases")
	}
	b := &builder{Release: release, profile: *profile, repository: ".", cache: *cache, log: os.Stdout}
	dir, err := b.provide()
	if err != nil {
		return fmt.Errorf("release %s: %w", release.Version, err)
	}
	return replaceLink(dir, *link)
}
