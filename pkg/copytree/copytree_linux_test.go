package copytree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// describe returns all properties of a directory that a copy must preserve, one line for each file.
// A file with several names is described at its first name.
func describe(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		fmt.Fprintf(&b, "%q %o %d:%d %d", name, s.Mode, s.Uid, s.Gid, s.Mtim.Nano())
		switch s.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d bytes in %d blocks, %d not zero", s.Size, s.Blocks, len(data)-bytes.Count(data, []byte{0}))
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s", to)
		case unix.S_IFBLK, unix.S_IFCHR:
			fmt.Fprintf(&b, " device %x", s.Rdev)
		}
		if s.Mode&unix.S_IFMT != unix.S_IFLNK {
			names, err := listAttributes(path)
			if err != nil {
				return err
			}
			for _, x := range slices.Sorted(slices.Values(names)) {
				value, err := getAttribute(path, x)
				if err != nil {
					return err
				}
				fmt.Fprintf(&b, " %s=%x", x, value)
			}
		}
		if s.Mode&unix.S_IFMT != unix.S_IFDIR && s.Nlink > 1 {
			if first[s.Ino] == "" {
				first[s.Ino] = name
			}
			fmt.Fprintf(&b, " = %s", first[s.Ino])
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// testDirs returns two directories on the same file system. The first has all kinds of files that a
// pod can make without special rights, owned by the user of the test. The second is empty.
func testDirs(t *testing.T) (from, to string) {
	t.Helper()
	from, to = filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	in := func(name string) string { return filepath.Join(from, name) }
	large := make([]byte, piece+5)
	for i := range large {
		large[i] = byte(i%251) + 1
	}
	sparse := func(name string) error {
		f, err := os.Create(in(name))
		if err != nil {
			return err
		}
		_, first := f.WriteAt([]byte("begin"), 0)
		_, last := f.WriteAt([]byte("end"), 64<<20)
		return errors.Join(first, last, f.Truncate(80<<20), f.Close())
	}
	err := errors.Join(
		os.MkdirAll(in("a/b/c"), 0o755), os.Mkdir(to, 0o700),
		os.WriteFile(in("a/empty"), nil, 0o600),
		os.WriteFile(in("a/file"), []byte("text"), 0o644),
		os.WriteFile(in("a/large"), large, 0o640),
		os.WriteFile(in("a/\xff\n"), []byte("a name that is no text"), 0o644),
		sparse("sparse"),
		os.Symlink("../nowhere", in("a/dangling")), os.Symlink("/etc", in("out")),
		os.Link(in("a/file"), in("a/b/same")), os.Link(in("a/file"), in("zz")),
		unix.Mkfifo(in("pipe"), 0o622),
		unix.Mknod(in("socket"), unix.S_IFSOCK|0o600, 0),
		os.Link(in("a/dangling"), in("a/dangling too")),
		os.Chmod(in("a/b/c"), 0o777|fs.ModeSticky), os.Chmod(in("a/b"), 0o750|fs.ModeSetgid), os.Chmod(in("zz"), 0o755|fs.ModeSetuid),
	)
	if err != nil {
		t.Fatal(err)
	}
	long := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	for _, name := range []string{"a/file", "sparse", "pipe", "a/b/c", "a/b", "a", "."} {
		if err := os.Chtimes(in(name), long, long); err != nil {
			t.Fatal(err)
		}
		long = long.Add(time.Hour)
	}
	return from, to
}

// same fails the test unless all properties of all files in the directories from and to are equal.
func same(t *testing.T, from, to string) {
	t.Helper()
	want, got := strings.Split(describe(t, from), "\n"), strings.Split(describe(t, to), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("%s\nwant:\n%s", strings.Join(got[i:], "\n"), strings.Join(want[i:], "\n"))
		}
	}
}

// TestCopy copies all kinds of files that any user can make.
func TestCopy(t *testing.T) {
	from, to := testDirs(t)
	before := describe(t, from)
	if err := Copy(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	same(t, from, to)
	for _, name := range []string{"a/large", "sparse"} {
		want, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the data of %s differ, %v", name, err)
		}
	}
	if after := describe(t, from); after != before {
		t.Errorf("the copy has changed the source:\n%s\nbefore:\n%s", after, before)
	}
}

// TestCopyAsRootOnly copies files that only root can make, for example a process of a pod: files
// with other owners, devices, attributes, ACLs.
func TestCopyAsRootOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make devices and files of other owners; `make kernel` runs the test as root")
	}
	from, to := testDirs(t)
	in := func(name string) string { return filepath.Join(from, name) }
	// struct posix_acl_xattr_header and its entries (include/uapi/linux/posix_acl_xattr.h): the
	// owner rwx, user 1234 r-x, the group r--, the mask rwx, others no permission.
	acl := []byte{2, 0, 0, 0}
	for _, e := range [][4]uint16{{1, 7, 0xffff, 0xffff}, {2, 5, 1234, 0}, {4, 4, 0xffff, 0xffff}, {16, 7, 0xffff, 0xffff}, {32, 0, 0xffff, 0xffff}} {
		for _, v := range e {
			acl = append(acl, byte(v), byte(v>>8))
		}
	}
	// struct vfs_ns_cap_data, version 2, effective: CAP_NET_BIND_SERVICE
	// (include/uapi/linux/capability.h).
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	err := errors.Join(
		unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mknod(in("a/disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 0))),
		os.Lchown(in("a/dangling"), 11, 12), os.Lchown(in("a/large"), 1000, 2000), os.Lchown(in("pipe"), 70000, 0), os.Lchown(in("a/b"), 5, 6), os.Lchown(from, 999, 998),
		os.Chmod(in("a/b"), 0o750|fs.ModeSetgid), os.Chmod(in("a/large"), 0o755|fs.ModeSetuid|fs.ModeSetgid),
		unix.Setxattr(in("a/file"), "user.note", []byte("a\x00b"), 0), unix.Setxattr(in("a/file"), "user.empty", nil, 0),
		unix.Setxattr(in("a/b"), "trusted.overlay.opaque", []byte("y"), 0), unix.Setxattr(in("a/large"), "security.capability", capability, 0),
		unix.Setxattr(in("a/b"), "system.posix_acl_default", acl, 0), unix.Setxattr(in("a/b"), "system.posix_acl_access", acl, 0),
		unix.Setxattr(in("pipe"), "system.posix_acl_access", acl, 0),
		os.WriteFile(in("a/b/inherits"), nil, 0o640),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := Copy(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	same(t, from, to)
	if err := unix.Setxattr(in("a"), systemPrefix+"project", []byte("7"), 0); err != nil {
		t.Fatal(err)
	}
	again := t.TempDir()
	if err := Copy(t.Context(), from, again); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Getxattr(filepath.Join(again, "a"), systemPrefix+"project", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("an attribute of the system was copied with a directory: %v", err)
	}
	if all := describe(t, to); strings.Count(all, "posix_acl_access") != 3 || !strings.Contains(all, "security.capability") || !strings.Contains(all, "device 103") {
		t.Errorf("the source lacks an expected property:\n%s", all)
	}
}

// TestStop checks that Copy with a canceled context creates no file.
func TestStop(t *testing.T) {
	from, to := testDirs(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ctx, from, to); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if made, err := os.ReadDir(to); err != nil || len(made) > 0 {
		t.Errorf("%v, %v", made, err)
	}
}

// TestRefused checks that Copy ends at the first file that it cannot create, and that the error
// names the file.
func TestRefused(t *testing.T) {
	from, to := testDirs(t)
	if err := os.Mkdir(filepath.Join(to, "pipe"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Copy(t.Context(), from, to); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), `"pipe"`) {
		t.Errorf("%v", err)
	}
}

// TestDeep checks that Copy copies nested directories up to a maximum depth, even if their path is
// longer than the kernel permits. Copy must leave no descriptor open.
func TestDeep(t *testing.T) {
	for depth, fits := range map[int]bool{maxDepth: true, maxDepth + 2: false} {
		from, to := t.TempDir(), t.TempDir()
		at := chain(t, from, strings.Repeat("n", 100), depth)
		err := errors.Join(unix.Mknodat(int(at.Fd()), "one", unix.S_IFREG|0o600, 0), unix.Linkat(int(at.Fd()), "one", int(at.Fd()), "two", 0))
		if err != nil {
			t.Fatal(err)
		}
		before := descriptors(t)
		if err := Copy(t.Context(), from, to); (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "directories") {
			t.Errorf("directories nested %d deep: %v", depth, err)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d open descriptors, before the copy %d", after, before)
		}
		if err := errors.Join(os.RemoveAll(from), os.RemoveAll(to)); err != nil {
			t.Fatal(err)
		}
	}
}

// chain makes nested directories and opens the innermost.
func chain(t *testing.T, root, name string, depth int) *os.File {
	t.Helper()
	return down(t, root, depth, func(at *os.File) error { return unix.Mkdirat(int(at.Fd()), name, 0o755) }, name)
}

// descend opens the innermost of nested directories.
func descend(t *testing.T, root, name string, depth int) *os.File {
	t.Helper()
	return down(t, root, depth, func(*os.File) error { return nil }, name)
}

// down descends into nested directories, and calls do before each step.
func down(t *testing.T, root string, depth int, do func(at *os.File) error, name string) *os.File {
	t.Helper()
	at, err := openDir(unix.AT_FDCWD, root)
	for range depth {
		if err == nil {
			err = do(at)
		}
		if err != nil {
			t.Fatal(err)
		}
		before := at
		at, err = openDir(int(at.Fd()), name)
		before.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
	return at
}

// linksAt makes files in the directory one, and a hard link to each file in the directory other.
func linksAt(t *testing.T, files int, one, other *os.File) {
	t.Helper()
	for i := range files {
		first, second := fmt.Sprintf("f%d", i), fmt.Sprintf("g%d", i)
		if err := errors.Join(unix.Mknodat(int(one.Fd()), first, unix.S_IFREG|0o600, 0), unix.Linkat(int(one.Fd()), first, int(other.Fd()), second, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

// inodes returns the inode numbers of the names that linksAt made in a directory, in the order of
// the files.
func inodes(t *testing.T, in *os.File, letter string, files int) []uint64 {
	t.Helper()
	var all []uint64
	for i := range files {
		var s unix.Stat_t
		if err := unix.Fstatat(int(in.Fd()), fmt.Sprintf("%s%d", letter, i), &s, unix.AT_SYMLINK_NOFOLLOW); err != nil || s.Nlink != 2 {
			t.Fatalf("%s%d: %d names, %v", letter, i, s.Nlink, err)
		}
		all = append(all, s.Ino)
	}
	return all
}

// TestLinks checks that Copy preserves hard links in the same directory and between directories at
// any depth. The memory must not grow with the depth of each file. After the copy of the last name
// of a file, Copy must hold no memory and no descriptor for the file.
func TestLinks(t *testing.T) {
	const files = 200
	for _, c := range []struct {
		one, other string // names of the directories
		most       uint64 // MiB of memory
	}{
		{"n", "n", 8},
		{"n", "m", 16},
		// The paths are longer than the kernel permits.
		{strings.Repeat("n", 255), strings.Repeat("m", 255), 128},
	} {
		from, to := t.TempDir(), t.TempDir()
		one := chain(t, from, c.one, maxDepth)
		other := one
		if c.other != c.one {
			other = chain(t, from, c.other, maxDepth)
		}
		linksAt(t, files, one, other)
		before := descriptors(t)
		var start, end runtime.MemStats
		runtime.ReadMemStats(&start)
		work := newCopier(t.Context())
		if err := work.tree(from, to); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&end)
		if took := (end.TotalAlloc - start.TotalAlloc) >> 20; took > c.most {
			t.Errorf("%.5s and %.5s: the copy took %d MiB of memory", c.one, c.other, took)
		}
		if len(work.first) > 0 || work.pending > 0 {
			t.Errorf("after the copy, %d files and %d names are still pending", len(work.first), work.pending)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d open descriptors, before the copy %d", after, before)
		}
		if a, b := inodes(t, descend(t, to, c.one, maxDepth), "f", files), inodes(t, descend(t, to, c.other, maxDepth), "g", files); !slices.Equal(a, b) {
			t.Errorf("%v\n%v", a, b)
		}
		if err := errors.Join(os.RemoveAll(from), os.RemoveAll(to)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTooManyLinks checks the limit for the number of files with names that are not copied yet,
// plus the directories above these files. A file does not count after all its names are copied.
func TestTooManyLinks(t *testing.T) {
	for _, c := range []struct {
		what string
		deep int // depth of the directories
		most int
		fits bool
	}{
		{"nine files and the root", 0, 10, true},
		{"nine files and the root, one too many", 0, 9, false},
		{"nine files, the root and three directories", 3, 13, true},
		{"nine files, the root and three directories, one too many", 3, 12, false},
	} {
		from, to, outside := t.TempDir(), t.TempDir(), t.TempDir()
		linksAt(t, 9, chain(t, from, "n", c.deep), chain(t, outside, "n", 0))
		work := newCopier(t.Context())
		work.limit = c.most
		err := work.tree(from, to)
		if (err == nil) != c.fits || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("exceed %d; remove hard links", c.most)) {
			t.Errorf("%s, limit %d: %v", c.what, c.most, err)
		}
	}
	from, to := t.TempDir(), t.TempDir()
	for i := range 9 { // each directory has both names of a file
		in := chain(t, from, fmt.Sprint(i), 1)
		linksAt(t, 1, in, in)
	}
	work := newCopier(t.Context())
	work.limit = 3
	if err := work.tree(from, to); err != nil {
		t.Error(err)
	}
}

// TestLongPath checks that an error contains the end of a long path.
func TestLongPath(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	chain(t, from, strings.Repeat("\xff", 255), maxDepth+1)
	if err := Copy(t.Context(), from, to); err == nil || len(err.Error()) > 4<<10 || !strings.Contains(err.Error(), `".../`) {
		t.Errorf("%.5000v", err)
	}
	if err := errors.Join(os.RemoveAll(from), os.RemoveAll(to)); err != nil {
		t.Fatal(err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestIdle checks that only the calling thread gets the low priority.
func TestIdle(t *testing.T) {
	priorities := make(chan map[string]int)
	look := func() map[string]int {
		nice, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid())
		if err != nil {
			t.Error(err)
		}
		class, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, 1, 0, 0)
		if errno != 0 {
			t.Error(errno)
		}
		return map[string]int{"nice": 20 - nice, "class": int(class >> 13)}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := look()
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := Idle(); err != nil {
			t.Error(err)
		}
		priorities <- look()
	}()
	if got := <-priorities; !maps.Equal(got, map[string]int{"nice": 19, "class": 3}) {
		t.Errorf("%v", got)
	}
	if after := look(); !maps.Equal(after, before) {
		t.Errorf("priority of the other thread: %v, before Idle: %v", after, before)
	}
}
