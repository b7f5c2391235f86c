package debian

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseMadison(t *testing.T) {
	got, err := parseMadison(`     libc6 | 2.36-9+deb12u14 | http://archive.example/debian bookworm/main amd64 Packages
     libc6 | 2.36-9+deb12u7 | http://archive.example/debian-security bookworm-security/main amd64 Packages
     glibc | 2.36-9+deb12u14 | http://archive.example/debian bookworm/main Sources
`)
	want := []Offer{{"libc6", "2.36-9+deb12u14", "bookworm"}, {"libc6", "2.36-9+deb12u7", "bookworm-security"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := parseMadison("libc6 2.36\n"); err == nil || !strings.Contains(err.Error(), `"libc6 2.36"`) {
		t.Errorf("a line without columns: %v", err)
	}
}

func TestReleaseFiles(t *testing.T) {
	got := releaseFiles(`bookworm /lists/archive.example_debian_dists_bookworm_main_binary-amd64_Packages.lz4
bookworm /lists/archive.example_debian_dists_bookworm_contrib_binary-amd64_Packages.lz4
bookworm-security /lists/archive.example_debian-security_dists_bookworm-security_main_binary-amd64_Packages
`)
	want := []string{"/lists/archive.example_debian_dists_bookworm_InRelease", "/lists/archive.example_debian-security_dists_bookworm-security_InRelease"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestReleaseDate(t *testing.T) {
	got, err := releaseDate([]byte("-----BEGIN PGP SIGNED MESSAGE-----\n\nOrigin: Debian\nDate: Wed, 25 Nov 2026 22:33:12 UTC\nValid-Until: Wed, 02 Dec 2026 22:33:12 UTC\n"))
	if want := time.Date(2026, 11, 25, 22, 33, 12, 0, time.UTC); err != nil || !got.Equal(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, text := range []string{"Origin: Debian\n", "Date: yesterday\n"} {
		if date, err := releaseDate([]byte(text)); err == nil {
			t.Errorf("%q: date %v, want an error", text, date)
		}
	}
}

func TestUpdatesTime(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for name, date := range map[string]string{
		"archive.example_debian_dists_trixie_InRelease":                   "Sat, 21 Nov 2026 09:15:44 UTC",
		"archive.example_debian_dists_trixie-updates_InRelease":           "Thu, 26 Nov 2026 02:14:46 UTC",
		"archive.example_debian-security_dists_trixie-security_InRelease": "Wed, 25 Nov 2026 22:33:13 UTC",
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("Date: "+date+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	got, err := updatesTime(files, "trixie")
	if want := time.Date(2026, 11, 25, 22, 33, 13, 0, time.UTC); err != nil || !got.Equal(want) {
		t.Errorf("%v, %v; want %v, the date of the security updates", got, err, want)
	}
	for want, files := range map[string][]string{
		"apt has no lists of the updates of Debian trixie": {filepath.Join(dir, "archive.example_debian_dists_trixie_InRelease")},
		"cannot read release file":                         {filepath.Join(dir, "none")},
	} {
		if date, err := updatesTime(files, "trixie"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, error %v, want %q", files, date, err, want)
		}
	}
}
