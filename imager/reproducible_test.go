package main

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/kernel"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/verity"
)

// reproducible is the environment variable that enables TestReproducible.
const reproducible = "ORLOP_TEST_REPRODUCIBLE"

// TestReproducible builds the whole image from two copies of the source. The first build uses the
// present caches. The second build has another directory and empty build caches, and the user
// nobody if the test runs as root. The second build compiles all programs again, which takes more
// than ten minutes, so only `make reproducible` enables the test. TestImage, which runs with all
// other tests, compares two builds with the same executables.
func TestReproducible(t *testing.T) {
	if os.Getenv(reproducible) == "" {
		t.Skip("builds all programs with empty caches, which takes more than ten minutes: run by `make reproducible`")
	}
	source, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	// a copy, because the source may be edited during the test
	mine := filepath.Join(t.TempDir(), "source")
	copyTree(t, source, mine)
	for _, dir := range []string{"build/operator", "build/release"} {
		copyTree(t, filepath.Join(source, dir), filepath.Join(mine, dir))
	}
	build := func(tree, cache string, how func(*exec.Cmd)) string {
		c := exec.Command("go", "run", "./imager", "-profile", "profiles/qemu.yaml", "-out", filepath.Join(tree, "build/twice"), "-cache", cache, "-bin", "")
		c.Dir = tree
		c.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
		how(c)
		if err := c.Run(); err != nil {
			t.Fatalf("%s: %v", tree, err)
		}
		return filepath.Join(tree, "build/twice")
	}
	one := build(mine, filepath.Join(source, "build/cache"), func(*exec.Cmd) {})

	other := filepath.Join(t.TempDir(), "a", "copy", "of the source")
	copyTree(t, mine, other)
	for _, dir := range []string{"build/operator", "build/release"} {
		copyTree(t, filepath.Join(mine, dir), filepath.Join(other, dir))
	}
	copyTree(t, filepath.Join(source, "build/cache/deb"), filepath.Join(other, "build/cache/deb"))
	home := filepath.Join(t.TempDir(), "home")
	copyTree(t, filepath.Join(goEnv(t, "GOMODCACHE"), "cache/download"), filepath.Join(home, "proxy"))
	two := build(other, "build/cache", func(c *exec.Cmd) {
		c.Env = append(c.Env, "HOME="+home, "GOCACHE="+home+"/cache", "GOMODCACHE="+home+"/mod", "GOPROXY=file://"+home+"/proxy",
			"GONOSUMDB=*", "GOFLAGS=-mod=readonly -modcacherw", "TMPDIR="+home, "TZ=Pacific/Auckland")
		old := syscall.Umask(0o077)
		t.Cleanup(func() { syscall.Umask(old) })
		if os.Geteuid() == 0 {
			makeOwned(t, other, 65534)
			makeOwned(t, home, 65534)
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
	})
	sameArtifacts(t, one, two)
}

// sameArtifacts compares all files of two builds, without the directory for intermediate files. It
// returns the digests of the files by name.
func sameArtifacts(t *testing.T, one, two string) map[string]HashedFile {
	t.Helper()
	digests := func(dir string) map[string]HashedFile {
		all := map[string]HashedFile{}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				if path == filepath.Join(dir, "work") {
					return fs.SkipDir
				}
				return nil
			}
			name := strings.TrimPrefix(path, dir+"/")
			all[name], err = hashFile(name, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	a, b := digests(one), digests(two)
	if len(a) < 6 {
		t.Fatalf("%s: only %d files", one, len(a))
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(sortedKeys(a), sortedKeys(b)...)))) {
		if a[name] != b[name] {
			t.Errorf("%s: the two builds differ:\n%+v\n%+v", name, a[name], b[name])
		}
	}
	return a
}

// checkPartitions checks that the partition table has three partitions, and that ROOT-A has the
// GUID and the type of the root.
func checkPartitions(t *testing.T, disk string, p verity.Params) {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	device, err := gpt.DeviceFromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	table, err := gpt.Read(device)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, part := range table.Partitions() {
		got = append(got, part.Name)
		if part.Name == "ROOT-A" && (part.PartGUID != p.PartUUID() || part.TypeGUID != layout.TypeRoot) {
			t.Errorf("ROOT-A has GUID %v and type %v", part.PartGUID, part.TypeGUID)
		}
	}
	if want := []string{"ESP", "ROOT-A", "ROOT-B"}; !slices.Equal(got, want) {
		t.Errorf("partitions %v, want %v", got, want)
	}
}

// fillCache downloads all packages of the sample to the cache, and unpacks its kernel there. It
// returns the paths of the .deb files.
func fillCache(t *testing.T, cache string) []string {
	t.Helper()
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ReadProfile(sampleProfile)
	if err != nil {
		t.Fatal(err)
	}
	wanted := slices.DeleteFunc(lock.Packages, func(d debian.Package) bool {
		return slices.Contains(kernelPackages, d.Want) && d.Want != p.Kernel.Package
	})
	archive := NewArchive(lock, cache)
	debs, err := archive.source.Fetch(wanted, archive.Cache)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range wanted {
		if d.Want == p.Kernel.Package {
			if _, err := kernel.Unpack(debs[i], d.SHA256, filepath.Join(cache, "kernel")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return debs
}

// TestLock checks that the lock file contains exactly the packages that wantedPackages returns.
func TestLock(t *testing.T) {
	lock, err := debian.ReadLock("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range lock.Packages {
		got = append(got, p.Want)
	}
	if want := wantedPackages(); !slices.Equal(got, want) {
		t.Errorf("lock file names\n%v\nthe tables name\n%v\nrefresh it with `imager lock`", got, want)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// copyTree copies regular files and directories. It omits build, .git and symbolic links. The
// copies have the present time.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case rel == "build" || rel == ".git":
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case d.Type().IsRegular():
			copyFile(t, path, filepath.Join(to, rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	copyRange(t, from, to, 0, info.Size())
	if err := os.Chmod(to, info.Mode().Perm()|0o600); err != nil {
		t.Fatal(err)
	}
}

// copyRange copies a part of a file to a new file.
func copyRange(t *testing.T, from, to string, offset, length int64) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, io.NewSectionReader(in, offset, length)); err != nil {
		t.Fatal(err)
	}
}

// makeOwned changes the owner of a directory and its content. It also makes the parents of the
// directory accessible to all users.
func makeOwned(t *testing.T, dir string, id int) {
	t.Helper()
	for above := filepath.Dir(dir); strings.HasPrefix(above, os.TempDir()+"/"); above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
	if err != nil {
		t.Fatal(err)
	}
}
