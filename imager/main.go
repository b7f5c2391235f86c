// Command imager builds every artifact of a product variant from its profile: the root image with
// its hash tree, the unified kernel image, the disk image, the boot image that contains the root,
// the boot medium, the upgrade bundle, the manifest, the software bill of materials and the
// provenance.
//
//	imager -profile profiles/qemu.yaml -out build/qemu
//	imager lock [-check | -modules]
//	imager outdated [-json] [-all]
//	imager keys -out build/release
//	imager secureboot -out elsewhere/secureboot
//	imager sign -bundle build/qemu/orlop.bundle -key elsewhere/signing.key
//	imager sign -provenance build/qemu/provenance.intoto.jsonl -key elsewhere/signing.key
//	imager extension -f extensions/gvisor/extension.yaml -out build/extensions
//
// It runs in the top directory of the source, as any user, without loop devices or containers.
// imager/packages.lock pins the inputs from Debian: `imager lock` refreshes this file, and `imager
// lock -check` fails if Debian has newer versions. go.sum pins the Go modules. `imager outdated`
// compares all pinned versions with the newest versions. The same source gives the same bytes.
//
// The imager signs the upgrade bundle, the provenance and extensions. With a key for Secure Boot,
// it also signs the boot loader and the boot images. It does not publish artifacts, and does not
// start machines.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/mod/semver"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
)

func main() {
	err := errors.New("usage: imager -profile FILE -out DIR, imager lock [-check | -modules], imager outdated [-json] [-all], imager keys -out DIR, imager secureboot -out DIR, imager sign -bundle FILE | -provenance FILE -key FILE, or imager extension -f FILE -out DIR")
	switch {
	case len(os.Args) == 2 && os.Args[1] == "lock":
		err = updateLock()
	case len(os.Args) == 3 && os.Args[1] == "lock" && os.Args[2] == "-modules":
		err = updatePins(nil)
	case len(os.Args) == 3 && os.Args[1] == "lock" && os.Args[2] == "-check":
		err = checkLock()
	case len(os.Args) > 1 && os.Args[1] == "outdated":
		var status int
		if status, err = reportOutdated(os.Args[2:]); err == nil {
			os.Exit(status)
		}
	case len(os.Args) > 1 && os.Args[1] == "keys":
		err = makeKeys(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "secureboot":
		err = makeSecureBootKeys(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "sign":
		err = signBundle(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "extension":
		err = buildExtension(os.Args[2:])
	case len(os.Args) > 1:
		err = build(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "imager:", err)
		os.Exit(1)
	}
}

// defaultCache is the directory for downloads.
var defaultCache = filepath.Join("build", "cache")

// newest downloads the package lists. It returns the newest versions of the packages that the
// imager uses, and the archive with the lists.
func newest() (debian.Lock, *debian.Archive, error) {
	archive := debian.NewArchive(debian.Suite, listsDir(defaultCache))
	if err := archive.Update(); err != nil {
		return debian.Lock{}, nil, err
	}
	lock, err := archive.Resolve(wantedPackages())
	return lock, archive, err
}

// updateLock writes the newest versions of all packages to the lock file, and records their dates
// (updatePins).
func updateLock() error {
	lock, archive, err := newest()
	if err != nil {
		return err
	}
	if err := lock.Write(lockFile); err != nil {
		return err
	}
	fmt.Printf("%s: %d packages of Debian %s\n", lockFile, len(lock.Packages), lock.Suite)
	return updatePins(archive)
}

// checkLock returns an error if Debian has another version of a package than the lock file. The
// error lists these packages.
func checkLock() error {
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		return err
	}
	now, _, err := newest()
	if err != nil {
		return err
	}
	behind := lock.Behind(now)
	if len(behind) == 0 {
		fmt.Printf("%s: %d packages, all of them the newest of Debian %s\n", lockFile, len(now.Packages), now.Suite)
		return nil
	}
	return fmt.Errorf("%s: is behind:\n%s\n`make lock` takes the newest", lockFile, strings.Join(behind, "\n"))
}

// makeKeys is the command `imager keys`. It makes the private keys that sign upgrades, and a file
// with the public keys. Each private key is for a different holder. If a file exists already,
// makeKeys fails and replaces nothing.
func makeKeys(args []string) error {
	flags := flag.NewFlagSet("imager keys", flag.ContinueOnError)
	out := flags.String("out", "", "`directory` for signing.key and keys.pem")
	count := flags.Int("count", 1, "how `many` keys; with more than one they are signing-1.key, signing-2.key, …")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 || *count < 1 || *count > 100 {
		return errors.New("-out is required, -count must be 1 to 100, and other arguments are not allowed")
	}
	var private []string
	for i := range *count {
		name := "signing.key"
		if *count > 1 {
			name = fmt.Sprintf("signing-%d.key", i+1)
		}
		private = append(private, filepath.Join(*out, name))
	}
	public := filepath.Join(*out, "keys.pem")
	// The loop also checks the public file, because an operator can have moved the private keys
	// away.
	for _, file := range append(slices.Clone(private), public) {
		if _, err := os.Lstat(file); err == nil {
			return fmt.Errorf("%s: exists already; with a new key, machines whose image trusts the old key could not be upgraded: put the private key back, or remove all files if there are no such machines", file)
		}
	}
	if err := os.MkdirAll(*out, 0o700); err != nil {
		return err
	}
	var known []byte
	for _, file := range private {
		key, err := bundle.NewKey()
		if err != nil {
			return err
		}
		secret, err := key.PrivatePEM()
		if err != nil {
			return err
		}
		text, err := key.PublicPEM()
		if err != nil {
			return err
		}
		known = append(known, text...)
		if err := renameio.WriteFile(file, secret, 0o600); err != nil {
			return err
		}
	}
	return renameio.WriteFile(public, known, 0o644)
}

// signBundle is the command `imager sign`. It adds a signature to a bundle or to the provenance of
// a version. It writes the signed bundle to the file in -out; without -out, it replaces the bundle
// atomically. It always replaces the provenance.
func signBundle(args []string) error {
	flags := flag.NewFlagSet("imager sign", flag.ContinueOnError)
	file := flags.String("bundle", "", "the bundle, a `file`")
	attested := flags.String("provenance", "", "the provenance, a `file`, instead of a bundle")
	keyFile := flags.String("key", "", "the private key, a `file`")
	out := flags.String("out", "", "`file` for the bundle with the signature (default: the file in -bundle)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if (*file == "") == (*attested == "") || *keyFile == "" || flags.NArg() > 0 || *attested != "" && *out != "" {
		return errors.New("-key is required, and either -bundle or -provenance; -out is allowed only with -bundle, and other arguments are not allowed")
	}
	key, err := readKey(*keyFile)
	if err != nil {
		return err
	}
	if *attested != "" {
		return signProvenance(*attested, key)
	}
	from, err := os.Open(*file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := renameio.TempFile("", cmp.Or(*out, *file))
	if err != nil {
		return err
	}
	defer func() { _ = to.Cleanup() }() // no effect after CloseAtomicallyReplace
	s, err := bundle.Countersign(to, from, key)
	if err != nil {
		return fmt.Errorf("%s: %w", *file, err)
	}
	if err := to.Chmod(0o644); err != nil {
		return err
	}
	if err := to.CloseAtomicallyReplace(); err != nil {
		return err
	}
	fmt.Printf("signed version %s, epoch %d, profile %s\n", s.Version, s.Epoch, s.Profile)
	return nil
}

// build is the command `imager -profile`. It reads the profile and the version, and runs a build.
func build(args []string) error {
	flags := flag.NewFlagSet("imager", flag.ContinueOnError)
	profilePath := flags.String("profile", "", "the profile, a YAML `file`")
	out := flags.String("out", "", "`directory` for the artifacts")
	cache := flags.String("cache", defaultCache, "`directory` for downloads, shared by builds")
	bin := flags.String("bin", filepath.Join("build", "bin"), "`directory` for kubectl; empty: do not build it")
	version := flags.String("version", "", "`version` of the system, instead of the one in the file VERSION (for development)")
	epoch := flags.Int("epoch", -1, "`epoch` of the system, instead of the one in the file VERSION (for development)")
	kubernetes := flags.String("kubernetes", "", "`version` of Kubernetes that the image names, instead of the one in go.mod (for tests)")
	outputs := flags.String("outputs", "", "`names` of the artifacts to make, instead of the profile's, with commas between (for development)")
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
		return errors.New("-profile and -out are required, and other arguments are not allowed")
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
	r, err := sourceRelease(*profilePath, profile.Name, *version, *epoch)
	if err != nil {
		return err
	}
	r.Kubernetes = cmp.Or(*kubernetes, r.Kubernetes)
	pins, notes, err := readPins()
	if err != nil {
		return err
	}
	for _, n := range notes {
		fmt.Println("note:", n)
	}
	r.Pins = pins.release()
	commit, note := sourceCommit()
	if note != "" {
		fmt.Println("note:", note)
	}
	o := Options{Commit: commit, Profile: profile, Release: r, Pins: pins, Out: *out, Cache: *cache, Log: os.Stdout, Programs: ready,
		Inputs: []string{*profilePath, lockFile, pinsFile, "go.sum", filepath.Join(componentsModule, "go.sum")}}
	if *bin != "" {
		o.Kubectl = filepath.Join(*bin, kubectl.Name)
	}
	return (&Build{Options: o}).Run()
}

// sourceRelease returns the release that the source describes. Version and epoch are in the file
// VERSION beside the profile. The parameter version replaces the version in the file if it is not
// empty, and the parameter epoch replaces the epoch if it is 0 or more. The version of Kubernetes
// is in go.mod, and sourceTime returns the build time.
func sourceRelease(profilePath, profile, version string, epoch int) (buildinfo.Release, error) {
	r := buildinfo.Release{Name: "Orlop OS", Profile: profile, Version: version, Epoch: max(0, epoch)}
	if version == "" || epoch < 0 {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(profilePath), "VERSION"))
		if err != nil {
			return r, fmt.Errorf("cannot read version: %w", err)
		}
		v, e, err := parseVersion(string(text))
		if err != nil {
			return r, fmt.Errorf("VERSION: %w", err)
		}
		r.Version = cmp.Or(version, v)
		if epoch < 0 {
			r.Epoch = e
		}
	}
	if r.Epoch > bundle.MaxEpoch {
		return r, fmt.Errorf("epoch %d: 0 to %d expected", r.Epoch, bundle.MaxEpoch)
	}
	if !semver.IsValid("v"+r.Version) || strings.ContainsAny(r.Version, "+-") || strings.Count(r.Version, ".") != 2 {
		// The boot loader would parse a plus sign as the beginning of a try counter, and would sort
		// 1.0.0-rc1 after 1.0.0.
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

// parseVersion parses the file VERSION. The first line is the version. The second line is the
// epoch; without a second line, the epoch is 0. For example:
//
//	1.4.0
//	epoch 2
//
// A version has a higher epoch (by 1) if earlier versions must not run any more, because of a fault
// that this version fixes.
func parseVersion(text string) (version string, epoch int, err error) {
	version, rest, more := strings.Cut(strings.TrimSpace(text), "\n")
	if !more {
		return version, 0, nil
	}
	number, ok := strings.CutPrefix(strings.TrimSpace(rest), "epoch ")
	if ok {
		epoch, err = strconv.Atoi(number)
	}
	if !ok || err != nil || epoch < 0 {
		return "", 0, fmt.Errorf("%q: a second line such as \"epoch 2\" expected, and nothing after it", rest)
	}
	return strings.TrimSpace(version), epoch, nil
}
