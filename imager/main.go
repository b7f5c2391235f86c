// Command imager makes every artefact of a product variant from its profile: the root image with its hash tree, the
// unified kernel image, the disk image, the boot image that carries its root, the upgrade bundle, the manifest and the software bill of materials.
//
//	imager -profile profiles/qemu.yaml -out build/qemu
//	imager lock [-check]
//	imager keys -out build/release
//
// It runs in the top folder of the source, as any user, without loop devices or containers. What it needs from Debian
// is pinned in imager/packages.lock (`imager lock` refreshes it, `imager lock -check` says whether that is due), what it builds is pinned by go.sum. Same source, same
// bytes. It signs the upgrade bundle and nothing else, does not publish and does not start machines.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/mod/semver"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/release"
)

func main() {
	err := errors.New("usage: imager -profile FILE -out FOLDER, imager lock [-check], or imager keys -out FOLDER")
	switch {
	case len(os.Args) == 2 && os.Args[1] == "lock":
		err = updateLock()
	case len(os.Args) == 3 && os.Args[1] == "lock" && os.Args[2] == "-check":
		err = checkLock()
	case len(os.Args) > 1 && os.Args[1] == "keys":
		err = makeKeys(os.Args[2:])
	case len(os.Args) > 1:
		err = build(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "imager:", err)
		os.Exit(1)
	}
}

// updateLock pins the newest version of every package that the imager takes files from.
func updateLock() error {
	lock, err := debian.Resolve(wantedPackages())
	if err != nil {
		return err
	}
	if err := lock.Write(lockFile); err != nil {
		return err
	}
	fmt.Printf("%s: %d packages\n", lockFile, len(lock))
	return nil
}

// checkLock fails if Debian, as far as apt's lists on this machine know it, has other versions than those that are pinned.
func checkLock() error {
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		return err
	}
	newest, err := debian.Resolve(wantedPackages())
	if err != nil {
		return err
	}
	behind := lock.Behind(newest)
	if len(behind) == 0 {
		fmt.Printf("%s: %d packages, all of them Debian's newest\n", lockFile, len(newest))
		return nil
	}
	return fmt.Errorf("%s: is behind:\n%s\n`make lock` takes the newest", lockFile, strings.Join(behind, "\n"))
}

// makeKeys makes what signs a development image's upgrades. A key that is there stays.
func makeKeys(args []string) error {
	flags := flag.NewFlagSet("imager keys", flag.ContinueOnError)
	out := flags.String("out", "", "`folder` for signing.key and keys.pem")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 {
		return errors.New("-out is needed, and nothing else")
	}
	private, public := filepath.Join(*out, "signing.key"), filepath.Join(*out, "keys.pem")
	for _, file := range []string{private, public} { // the private one may have been put away
		if _, err := os.Lstat(file); err == nil {
			return fmt.Errorf("%s: is there already; a new key would make every machine whose image trusts it impossible to upgrade: put signing.key back, or remove both files if there are no such machines", file)
		}
	}
	key, err := bundle.NewKey()
	if err != nil {
		return err
	}
	secret, err := key.PrivatePEM()
	if err != nil {
		return err
	}
	known, err := key.PublicPEM()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o700); err != nil {
		return err
	}
	if err := renameio.WriteFile(private, secret, 0o600); err != nil {
		return err
	}
	return renameio.WriteFile(public, known, 0o644)
}

// build reads flags, profile and version and runs a build.
func build(args []string) error {
	flags := flag.NewFlagSet("imager", flag.ContinueOnError)
	profilePath := flags.String("profile", "", "the profile, a YAML `file`")
	out := flags.String("out", "", "`folder` for the artefacts")
	cache := flags.String("cache", filepath.Join("build", "cache"), "`folder` for downloads, shared by builds")
	bin := flags.String("bin", filepath.Join("build", "bin"), "`folder` for kubectl; empty: do not build it")
	version := flags.String("version", "", "`version` of the system, instead of the one in the file VERSION (for development)")
	outputs := flags.String("outputs", "", "`names` of the artefacts to make, instead of the profile's, with commas between (for development)")
	ready := map[string]string{}
	flags.Func("program", "`name=file`: take a ready executable instead of building it (for development; may be repeated)", func(s string) error {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("name=file expected")
		}
		ready[name] = file
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profilePath == "" || *out == "" || flags.NArg() > 0 {
		return errors.New("-profile and -out are needed, and nothing else")
	}
	profile, err := ReadProfile(*profilePath)
	if err != nil {
		return err
	}
	if *outputs != "" {
		profile.Outputs = strings.Split(*outputs, ",")
		if err := profile.check(); err != nil {
			return err
		}
	}
	r, err := sourceRelease(*profilePath, profile.Name, *version)
	if err != nil {
		return err
	}
	b := &Build{Profile: profile, Release: r, Out: *out, Cache: *cache, Log: os.Stdout, Programs: ready,
		Inputs: []string{*profilePath, lockFile, "go.sum", filepath.Join(componentsModule, "go.sum")}}
	if *bin != "" {
		b.Kubectl = filepath.Join(*bin, kubectl.Name)
	}
	return b.Run()
}

// sourceRelease describes the source: its version stands in the file VERSION beside the profiles, unless another one is
// given, the version of Kubernetes in go.mod.
func sourceRelease(profilePath, profile, version string) (release.Release, error) {
	r := release.Release{Name: "Orlop OS", Profile: profile, Version: version}
	if version == "" {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(profilePath), "VERSION"))
		if err != nil {
			return r, fmt.Errorf("cannot read version: %w", err)
		}
		r.Version = strings.TrimSpace(string(text))
	}
	if !semver.IsValid("v"+r.Version) || strings.ContainsAny(r.Version, "+-") || strings.Count(r.Version, ".") != 2 {
		// The loader would read a plus sign as boot counting, and take 1.0.0-rc1 for newer than 1.0.0.
		return r, fmt.Errorf("version %q: three numbers expected, such as 0.1.0", r.Version)
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return r, fmt.Errorf("cannot tell the version of Kubernetes: go list: %w", err)
	}
	r.Kubernetes = strings.TrimSpace(string(out))
	r.BuildTime, err = sourceTime()
	return r, err
}
