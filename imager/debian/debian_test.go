package debian

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

var sum = strings.Repeat("ab", 32)

func TestLockRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	want := Lock{"trixie", []Package{
		{"libc6", "libc6", "2.41-12+deb13u5", "amd64", sum},
		{"linux-image-cloud-amd64", "linux-image-6.12.1+deb13-cloud-amd64", "6.12.1-1", "amd64", sum},
	}}
	if err := (Lock{"trixie", []Package{want.Packages[1], want.Packages[0]}}).Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadLock(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, %v; written %v", got, err, want)
	}
	if _, err := got.Find("bash"); err == nil || !strings.Contains(err.Error(), "imager lock") {
		t.Errorf("Find of an unknown package: %v; want an error with the command imager lock", err)
	}
	if got, url := want.Packages[0].PURL("trixie"), "pkg:deb/debian/libc6@2.41-12%2Bdeb13u5?arch=amd64&distro=trixie"; got != url {
		t.Errorf("PURL %s, want %s", got, url)
	}
}

func TestBehind(t *testing.T) {
	pinned := Lock{"trixie", []Package{{Want: "a", Name: "a", Version: "1", SHA256: "11"}, {Want: "k", Name: "k-1", Version: "1", SHA256: "22"},
		{Want: "same", Name: "same", Version: "1", SHA256: "33"}, {Want: "gone", Name: "gone", Version: "1"}, {Want: "file", Name: "file", Version: "1", SHA256: "44"}}}
	newest := Lock{"trixie", []Package{{Want: "a", Name: "a", Version: "1+deb12u1", SHA256: "12"}, {Want: "k", Name: "k-2", Version: "1", SHA256: "23"},
		{Want: "same", Name: "same", Version: "1", SHA256: "33"}, {Want: "new", Name: "new", Version: "2"}, {Want: "file", Name: "file", Version: "1", SHA256: "45"}}}
	want := []string{"a: pinned is a 1, Debian has a 1+deb12u1", "k: pinned is k-1 1, Debian has k-2 1", "new: is not pinned; Debian has new 2",
		"file: Debian has another file as file 1 than the one that is pinned"}
	if got := pinned.Behind(newest); !slices.Equal(got, want) {
		t.Errorf("Behind returns %q", got)
	}
	if got := pinned.Behind(pinned); len(got) > 0 {
		t.Errorf("a lock compared with itself: %q", got)
	}
	if got := pinned.Behind(Lock{Suite: "forky"}); !slices.Equal(got, []string{"suite: pinned is trixie, the imager takes forky"}) {
		t.Errorf("another suite: %q", got)
	}
}

func TestReadLockRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"# ok\nlibc6 libc6 1 amd64\n":                      ":2: 5 fields expected, 4 found",
		"libc6 libc6 1 amd64 abcd\n":                       ":1: libc6: \"abcd\" is not a SHA-256",
		strings.Repeat("libc6 libc6 1 amd64 "+sum+"\n", 2): ":2: libc6 is named twice",
		"suite trixie\nsuite bookworm\n":                   ":2: a second suite bookworm, after trixie",
		"libc6 libc6 1 amd64 " + sum + "\n":                ": it names no suite of Debian; make it with `imager lock`",
	} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadLock(path); err == nil || !strings.Contains(err.Error(), path+want) {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
	}
}

func TestFetchChecksTheCache(t *testing.T) {
	dir := t.TempDir()
	p := Package{"x", "x", "1", "all", sum}
	if err := os.WriteFile(filepath.Join(dir, sum+".deb"), []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewArchive("trixie", dir).Fetch([]Package{p}, dir); err == nil || !strings.Contains(err.Error(), "the lock file says "+sum) {
		t.Errorf("a cached file with another digest than in the lock: error %v", err)
	}
}

func TestStanza(t *testing.T) {
	got := stanza("Package: mount\nVersion: 2.38\nDescription: tools\n for mounting: things\nSHA256: 00\n\nPackage: other\n")
	want := map[string]string{"Package": "mount", "Version": "2.38", "Description": "tools", "SHA256": "00"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// deb writes a package to a file and returns its path. The package is an ar archive of three
// members, with the data compressed by xz.
func deb(t *testing.T, files map[string]string) string {
	t.Helper()
	var data bytes.Buffer
	z, err := xz.NewWriter(&data)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	var ar bytes.Buffer
	ar.WriteString("!<arch>\n")
	for _, m := range []struct{ name, content string }{{"debian-binary", "2.0"}, {"control.tar", "odd"}, {"data.tar.xz", data.String()}} {
		fmt.Fprintf(&ar, "%-16s%-12d%-6d%-6d%-8o%-10d`\n%s", m.name, 0, 0, 0, 0o644, len(m.content), m.content)
		if len(m.content)%2 == 1 {
			ar.WriteByte('\n')
		}
	}
	path := filepath.Join(t.TempDir(), "x.deb")
	if err := os.WriteFile(path, ar.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWalk(t *testing.T) {
	want := map[string]string{"/sbin/tool": "ELF", "/etc/tool.conf": "a = b\n"}
	got := map[string]string{}
	err := Walk(deb(t, map[string]string{"./sbin/tool": "ELF", "./etc/tool.conf": "a = b\n"}), func(name string, _ *tar.Header, r io.Reader) error {
		content, err := io.ReadAll(r)
		got[name] = string(content)
		return err
	})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestWalkRefuses(t *testing.T) {
	good, err := os.ReadFile(deb(t, map[string]string{"./a": "b"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"empty": nil, "not an archive": []byte("PK\x03\x04 and so on"), "no data": good[:72], "cut off": good[:len(good)-20],
		"damaged header": bytes.Replace(good, []byte("`\n"), []byte("??"), 1),
	} {
		path := filepath.Join(t.TempDir(), "x.deb")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Walk(path, func(string, *tar.Header, io.Reader) error { return nil }); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want an error with the name of the file", name, err)
		}
	}
}
