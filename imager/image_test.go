package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/verity"
)

// sampleOut is an environment variable with a directory. If it is set, the test binary builds the
// sample image in this directory and exits. A test can thus build the sample as another user.
const sampleOut = "ORLOP_IMAGER_TEST_SAMPLE"

// sampleKeys is an environment variable with a directory of keys for Secure Boot, which sign the
// sample.
const sampleKeys = "ORLOP_IMAGER_TEST_KEYS"

func TestMain(m *testing.M) {
	if out := os.Getenv(sampleOut); out != "" {
		if err := buildSample(out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// sampleProfile is the profile of the sample.
const sampleProfile = "profiles/qemu.yaml"

// sampleDisk has smaller partitions than the profile, because the test reads them several times.
var sampleDisk = DiskProfile{ESP: 64 << 20, Root: 64 << 20}

// buildSample builds the image of the qemu profile. The working directory must be a copy of the
// source tree (sampleTree). It makes all outputs; with sampleKeys, it makes only some outputs. The
// program fake, which does nothing, replaces each executable that is built from source. All other
// inputs are real.
func buildSample(out string) error {
	p, err := ReadProfile(sampleProfile)
	if err != nil {
		return err
	}
	p.Outputs = outputs
	p.Disk = sampleDisk
	p.OperatorCA, p.ReleaseKeys, p.SigningKey = "", "release/keys.pem", "release/signing.key"
	if keys := os.Getenv(sampleKeys); keys != "" {
		p.Outputs = []string{outputRaw, outputNetboot, outputBundle}
		p.SecureBoot = &SecureBootProfile{Certificate: filepath.Join(keys, "db.crt"), Key: filepath.Join(keys, "db.key"), Enroll: keys}
	}
	o := Options{
		Inputs: []string{sampleProfile, lockFile}, Profile: p, Out: out, Cache: "cache", Log: io.Discard, Programs: map[string]string{},
		Release: buildinfo.Release{Name: "Orlop OS", Version: "9.9.9", Profile: p.Name, BuildTime: 1_700_000_000, Kubernetes: "v1.0.0"},
	}
	for _, program := range programs {
		o.Programs[program.Name] = "fake"
	}
	return (&Build{Options: o}).Run()
}

// sampleTree makes the working directory of buildSample. Debian packages come from the same cache
// as in `make image`.
func sampleTree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	compile := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(dir, "fake"), "./testdata/fake")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the fake program: %v\n%s", err, msg)
	}
	copyTree(t, "../profiles", filepath.Join(dir, "profiles"))
	copyFile(t, "packages.lock", filepath.Join(dir, lockFile))
	if err := makeKeys([]string{"-out", filepath.Join(dir, "release")}); err != nil {
		t.Fatal(err)
	}
	t.Chdir("..")
	for _, deb := range fillCache(t, "build/cache") {
		copyFile(t, deb, filepath.Join(dir, "cache/deb", filepath.Base(deb)))
	}
	return dir
}

// runSample builds the sample in a child process with the working directory tree. The function
// change can modify the process before its start. runSample returns the directory of the artifacts.
func runSample(t *testing.T, tree string, change func(*exec.Cmd)) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The child runs a copy, because other users may have no access to the directory of the test
	// binary.
	copyFile(t, self, filepath.Join(tree, "imager.test"))
	if err := os.Chmod(filepath.Join(tree, "imager.test"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(tree, "out")
	c := exec.Command(filepath.Join(tree, "imager.test"))
	c.Dir = tree
	c.Env = append(os.Environ(), sampleOut+"=out")
	change(c)
	if msg, err := c.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the sample: %v\n%s", err, msg)
	}
	return out
}

// TestImage builds the sample twice. The second build has another directory, umask, time zone and
// locale, and the user nobody if the test runs as root. Both builds must have equal artifacts with
// the expected content.
func TestImage(t *testing.T) {
	tree := sampleTree(t)
	other := filepath.Join(t.TempDir(), "deeper", "elsewhere")
	copyTree(t, tree, other)
	unpacked, err := filepath.Abs("build/cache/kernel")
	if err != nil {
		t.Fatal(err)
	}
	// Only the first build uses the unpacked kernel of the cache. The second build unpacks the
	// kernel itself.
	if err := os.Symlink(unpacked, filepath.Join(tree, "cache/kernel")); err != nil {
		t.Fatal(err)
	}

	one := runSample(t, tree, func(*exec.Cmd) {})
	two := runSample(t, other, func(c *exec.Cmd) {
		c.Env = append(c.Env, "LC_ALL=C.UTF-8", "TZ=Pacific/Auckland", "HOME="+other, "TMPDIR="+other, "GOFLAGS=")
		old := syscall.Umask(0o077)
		t.Cleanup(func() { syscall.Umask(old) })
		if os.Geteuid() == 0 {
			makeOwned(t, other, 65534)
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
	})
	files := sameArtifacts(t, one, two)
	t.Run("manifest", func(t *testing.T) { checkManifest(t, one, files) })
	t.Run("root", func(t *testing.T) { checkRoot(t, filepath.Join(one, "work", "root")) })
	t.Run("disk", func(t *testing.T) { checkDisk(t, one) })
	t.Run("netboot", func(t *testing.T) { checkNetboot(t, one) })
	t.Run("medium", func(t *testing.T) { checkISO(t, one) })
	t.Run("bundle", func(t *testing.T) { checkBundle(t, one, filepath.Join(tree, "release/keys.pem")) })
	t.Run("provenance", func(t *testing.T) { checkProvenance(t, one, filepath.Join(tree, "release/keys.pem")) })
	t.Run("signatures", func(t *testing.T) { checkSigned(t, one) })
}

// checkNetboot compares the boot image that contains its root with the boot image of the disk. The
// only differences may be an additional argument and an additional archive.
func checkNetboot(t *testing.T, out string) {
	if got, want := string(section(t, out, outputNetboot, ".cmdline")), string(section(t, out, "orlop.efi", ".cmdline"))+" orlop.medium=memory"; got != want {
		t.Errorf("command line %q, want %q", got, want)
	}
	archive := unpackNetboot(t, out)
	for _, name := range []string{"root.img", "orlop.efi"} {
		content, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || !bytes.Contains(archive, content) || !bytes.Contains(archive, []byte("system/"+name+"\x00")) {
			t.Errorf("%s is not in the second archive (%v)", name, err)
		}
	}
}

// section returns the content of a section of a boot image.
func section(t *testing.T, out, file, name string) []byte {
	t.Helper()
	f, err := pe.Open(filepath.Join(out, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := f.Section(name)
	content, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	return content[:s.VirtualSize]
}

// unpackNetboot returns the second archive in the network boot image, decompressed. It checks that
// the first archive is the initramfs of the disk's boot image.
func unpackNetboot(t *testing.T, out string) []byte {
	t.Helper()
	packed, same := bytes.CutPrefix(section(t, out, outputNetboot, ".initrd"), section(t, out, "orlop.efi", ".initrd"))
	if !same {
		t.Fatal("the initramfs of the network boot image does not begin with the initramfs of the disk's boot image")
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	archive, err := decoder.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

// checkISO checks that the entry for a CD and the entry for a USB stick refer to the same file
// system, and that the file system has the boot image.
func checkISO(t *testing.T, out string) {
	iso := filepath.Join(out, outputISO)
	f, err := os.Open(iso)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const sector = 2048
	// An entry of the partition table begins with the GUID of its type, and has its first block at
	// offset 32 (UEFI 2.10, section 5.3). The test reads the table itself, because the table has
	// more entries than the partition library supports.
	table, espType := make([]byte, 16*sector), []byte("\x28\x73\x2a\xc1\x1f\xf8\xd2\x11\xba\x4b\x00\xa0\xc9\x3e\xc9\x3b")
	if _, err := f.ReadAt(table, 0); err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(table, espType)
	if at < 0 {
		t.Fatal("no EFI system partition in the table")
	}
	first := binary.LittleEndian.Uint64(table[at+32:])
	// The boot record in sector 17 has the sector of the boot catalog. The first entry of the
	// catalog describes the boot image (El Torito 1.0).
	record, entry := make([]byte, sector), make([]byte, 64)
	if _, err := f.ReadAt(record, 17*sector); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(entry, int64(binary.LittleEndian.Uint32(record[0x47:]))*sector); err != nil {
		t.Fatal(err)
	}
	start := int64(binary.LittleEndian.Uint32(entry[32+8:])) * sector
	if entry[1] != 0xef || entry[32] != 0x88 || start != int64(first)*512 {
		t.Errorf("boot catalog % x; the partition starts at %d", entry, first*512)
	}
	got := filepath.Join(t.TempDir(), "boot")
	if msg, err := exec.Command("mcopy", "-i", fmt.Sprintf("%s@@%d", iso, start), "::/EFI/BOOT/BOOTX64.EFI", got).CombinedOutput(); err != nil {
		t.Fatalf("mcopy: %v\n%s", err, msg)
	}
	want, err := os.ReadFile(filepath.Join(out, outputNetboot))
	if data, problem := os.ReadFile(got); err != nil || problem != nil || !bytes.Equal(data, want) {
		t.Errorf("the medium does not contain %s (%v, %v)", outputNetboot, err, problem)
	}
}

// checkBundle checks that a client that trusts the keys can read the root image and the boot image
// from the bundle.
func checkBundle(t *testing.T, out, keys string) {
	trust := trustIn(t, keys)
	f, err := os.Open(filepath.Join(out, outputBundle))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := bundle.Open(f, trust)
	if err != nil {
		t.Fatal(err)
	}
	var m Manifest
	readJSON(t, filepath.Join(out, "manifest.json"), &m)
	if s := r.Statement; s.Version != m.Release.Version || s.Root != m.Root || s.Profile != m.Release.Profile {
		t.Errorf("statement %+v", s)
	}
	// The statement has the digest of the bill of materials in the root. A machine serves both.
	if sum, size, err := safefile.SHA256(filepath.Join(out, "work", "root", paths.SBOM)); err != nil || (bundle.Part{SHA256: sum, Size: size}) != r.Statement.SBOM {
		t.Errorf("the bill of materials in the root has %d bytes with digest %s, %v; the statement says %+v", size, sum, err, r.Statement.SBOM)
	}
	// The statement contains the digests of the files, and reading verifies them.
	if err := r.Root(io.Discard); err != nil {
		t.Error(err)
	}
	uki, err := r.UKI()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(filepath.Join(out, "orlop.efi")); err != nil || !bytes.Equal(uki, want) {
		t.Errorf("the boot image in the bundle differs from the boot image of the disk (%v)", err)
	}
}

// checkManifest compares the list of executables with the golden list, and the digests with the
// files.
func checkManifest(t *testing.T, out string, files map[string]HashedFile) {
	var m Manifest
	readJSON(t, filepath.Join(out, "manifest.json"), &m)
	// The path is relative to testdata at the top of the repository, where the test runs.
	golden.Assert(t, strings.Join(m.Executables, "\n")+"\n", "../imager/testdata/executables.txt")
	for _, a := range m.Artifacts {
		if h := files[a.Name]; h != a {
			t.Errorf("manifest says %+v, the file is %+v", a, h)
		}
	}
	if len(m.Artifacts) != 4+len(outputs) || len(m.Inputs) < 20 || len(m.Programs) != len(programs) {
		t.Errorf("%d artifacts, %d inputs, %d programs in the manifest", len(m.Artifacts), len(m.Inputs), len(m.Programs))
	}
	var bill struct {
		Packages      []struct{ Name string }
		Relationships []struct{ RelatedSpdxElement string }
	}
	readJSON(t, filepath.Join(out, "sbom.spdx.json"), &bill)
	// The SBOM lists the image itself, its Debian packages, its programs, pause, the static C
	// libraries, and Go's own library. The image has a single kernel, and no package of the
	// extensions or the sysroot.
	debs := len(wantedPackages()) - len(extensionPackages) - len(sysrootPackages) - len(kernelPackages) + 1
	if want := 1 + debs + len(programs) + 1 + len(staticLibraries) + 1; len(bill.Packages) != want {
		t.Errorf("%d packages in the SBOM, want %d", len(bill.Packages), want)
	}
}

// checkRoot checks that no file in the root can run scripts, and that the root has the shared
// libraries of all programs.
func checkRoot(t *testing.T, root string) {
	if err := CheckNoInterpreter(root); err != nil {
		t.Error(err)
	}
	missing := []string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(data, []byte("\x7fELF")) || strings.HasSuffix(name, ".ko") {
			return err
		}
		libraries, err := needed(data)
		for _, l := range libraries {
			if _, err := os.Stat(filepath.Join(root, libraryDir, l)); err != nil && l != filepath.Base(dynamicLoader) {
				missing = append(missing, name+" needs "+l)
			}
		}
		return err
	})
	if err != nil || len(missing) > 0 {
		t.Errorf("libraries: %v, %v", missing, err)
	}
}

// checkDisk checks that the root matches its hash, and that other tools accept the partition table
// and the ESP.
func checkDisk(t *testing.T, out string) {
	var m Manifest
	readJSON(t, filepath.Join(out, "manifest.json"), &m)
	p, err := verity.Parse(m.Root)
	if err != nil {
		t.Fatal(err)
	}
	if err := verity.Verify(filepath.Join(out, "root.img"), p); err != nil {
		t.Error(err)
	}
	if m.RootPartition != p.PartUUID().String() || !strings.Contains(m.CommandLine, verity.Argument+"="+m.Root) {
		t.Errorf("root %s, partition %s, command line %s", m.Root, m.RootPartition, m.CommandLine)
	}
	uki, err := os.ReadFile(filepath.Join(out, "orlop.efi"))
	if err != nil || !bytes.Contains(uki, []byte(m.CommandLine)) {
		t.Errorf("the unified kernel image does not contain the command line (%v)", err)
	}
	checkPartitions(t, filepath.Join(out, outputRaw), p)
	esp := filepath.Join(t.TempDir(), "esp")
	copyRange(t, filepath.Join(out, outputRaw), esp, 1<<20, int64(sampleDisk.ESP))
	if msg, err := exec.Command("fsck.fat", "-n", esp).CombinedOutput(); err != nil {
		t.Errorf("fsck.fat: %v\n%s", err, msg)
	}
	got := filepath.Join(t.TempDir(), "uki")
	if msg, err := exec.Command("mcopy", "-i", esp, "::/EFI/Linux/orlop-9.9.9.efi", got).CombinedOutput(); err != nil {
		t.Fatalf("mcopy: %v\n%s", err, msg)
	}
	if data, err := os.ReadFile(got); err != nil || !bytes.Equal(data, uki) {
		t.Errorf("the ESP does not contain orlop.efi (%v)", err)
	}
	// Without keys for Secure Boot nothing is signed, and the loader enrolls nothing.
	if image, err := secureboot.ParseImage(bytes.NewReader(uki), int64(len(uki))); err != nil || len(image.Signatures) > 0 {
		t.Errorf("the boot image has %d signatures (%v)", len(image.Signatures), err)
	}
	if listing, err := exec.Command("mdir", "-i", esp, "-b", "-/", "::/loader").CombinedOutput(); err != nil || strings.TrimSpace(string(listing)) != "::/loader/loader.conf" {
		t.Errorf("the directory loader of the ESP has %s (%v), want only loader.conf", listing, err)
	}
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
