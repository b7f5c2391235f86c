package debian

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestMirrors(t *testing.T) {
	const debian, security = "Debian\tDebian\thttp://mirror.example/debian/\n", "Debian-Security\tDebian\thttp://mirror.example/debian-security/\n"
	for lines, want := range map[string]string{
		debian + debian + security: "",
		security + "Debian\tDebian\thttp://other.example/debian/\n" + debian: "",
		"":       "no list of Debian's archive",
		security: "no list of Debian's archive",
		debian:   "no list of Debian's security archive",
		// an archive of another origin, and an archive without downloaded lists
		"Debian\tExample\thttp://mirror.example/debian/\n" + security: "no list of Debian's archive",
		"\t\thttp://mirror.example/debian/\n" + security:              "no list of Debian's archive",
	} {
		m, err := parseMirrors(lines)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "apt-get update") {
				t.Errorf("%q: error %v, want %q and the remedy", lines, err, want)
			}
			continue
		}
		if err != nil || !strings.HasSuffix(m.main, ".example/debian/") || m.security != "http://mirror.example/debian-security/" {
			t.Errorf("%q: %v, %v", lines, m, err)
		}
	}
	got := mirrors{"http://a/debian/", "http://b/debian-security/"}.sources("trixie")
	const options = "deb [arch=amd64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
	want := options + "http://a/debian/ trixie main\n" + options + "http://a/debian/ trixie-updates main\n" + options + "http://b/debian-security/ trixie-security main\n"
	if got != want {
		t.Errorf("sources.list:\n%s\nwant:\n%s", got, want)
	}
}

// TestConfiguration lets apt read two configurations. The first configuration is of a computer that
// prefers another suite and runs a program after updates. The second configuration is from
// aptConfig, and must override the first, except for its proxy.
func TestConfiguration(t *testing.T) {
	dir := t.TempDir()
	host, ours := filepath.Join(dir, "host.conf"), filepath.Join(dir, "apt.conf")
	const hostText = `APT::Default-Release "bookworm"; APT::Update::Post-Invoke { "rm x"; }; Acquire::Languages { "de"; }; Acquire::http::Proxy "http://proxy.example";`
	for file, text := range map[string]string{host: hostText, ours: aptConfig(dir)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("apt-config", "-c", ours, "dump")
	c.Env = append(os.Environ(), "APT_CONFIG="+host)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := string(out)
	for _, want := range []string{
		`Dir::State::lists "` + dir + `/lists";`, `Dir::Etc::sourcelist "` + dir + `/sources.list";`, `Dir::Etc::sourceparts "/dev/null";`,
		`Dir::Cache "` + dir + `/cache";`, `Dir::Cache::pkgcache "pkgcache.bin";`, `Acquire::Languages:: "none";`, `Acquire::http::Proxy "http://proxy.example";`,
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("apt does not use %s", want)
		}
	}
	for _, gone := range []string{`"bookworm"`, `"rm x"`, `"de"`} {
		if strings.Contains(got, gone) {
			t.Errorf("apt still uses the setting %s of this computer", gone)
		}
	}
}

// TestDownload replaces apt-get by a script. The script finds the package only after an update of
// the package lists, so Fetch must update the lists and repeat the download. The keyring of Debian
// is from the packages of the build (imager/host-packages.txt).
func TestDownload(t *testing.T) {
	dir := t.TempDir()
	const program = `#!/bin/sh
echo "$*" | sed 's/.*apt.conf //' >> "$RECORD"
case "$*" in
*indextargets*) printf 'Debian\tDebian\thttp://mirror.example/debian/\nDebian-Security\tDebian\thttp://mirror.example/security/\n' ;;
*update) touch "$LISTS/x_Packages"; touch "$LISTS/fresh" ;;
*download*) test -e "$LISTS/fresh" || { echo "E: Version '1' for 'x' was not found" >&2; exit 100; }; printf content > x_1_all.deb ;;
esac
`
	standIn(t, map[string]string{"apt-get": program})
	record, lists := filepath.Join(dir, "record"), filepath.Join(dir, "apt/trixie/lists")
	t.Setenv("RECORD", record)
	t.Setenv("LISTS", lists)
	if err := os.MkdirAll(lists, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(lists, "x_Packages"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	content := sha256.Sum256([]byte("content"))
	p := Package{"x", "x", "1", "all", hex.EncodeToString(content[:])}
	for range 2 { // the second call reads from the cache
		files, err := NewArchive("trixie", filepath.Join(dir, "apt")).Fetch([]Package{p}, filepath.Join(dir, "deb"))
		if err != nil || len(files) != 1 || filepath.Base(files[0]) != p.SHA256+".deb" {
			t.Fatalf("Fetch returns %v, %v", files, err)
		}
	}
	got, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for line := range strings.Lines(string(got)) {
		calls = append(calls, strings.Fields(strings.TrimPrefix(line, "-o APT::Sandbox::User=root "))[0]+" "+line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:])
	}
	if want := "indextargets Packages\n,-qq x=1\n,indextargets Packages\n,-qq update\n,-qq x=1\n"; strings.Join(calls, ",") != want {
		t.Errorf("apt-get was called for %q, want %q", strings.Join(calls, ","), want)
	}
}

// standIn replaces programs by scripts, through PATH. The keys of scripts are the names of the
// programs.
func standIn(t *testing.T, scripts map[string]string) {
	t.Helper()
	bin := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// TestResolve replaces apt-cache by a script. Like apt-cache, the script omits unknown packages.
func TestResolve(t *testing.T) {
	const mirrors = `#!/bin/sh
printf 'Debian\tDebian\thttp://mirror.example/debian/\nDebian-Security\tDebian\thttp://mirror.example/security/\n'
`
	const cache = `#!/bin/sh
case "$*" in
*depends*) printf 'linux-image-amd64\n  Depends: linux-image-6.12.1-amd64\n' ;;
*"show --no-all-versions linux-image-6.12.1-amd64 mount"*)
	printf 'Package: linux-image-6.12.1-amd64\nVersion: 6.12.1-1\nArchitecture: amd64\nSHA256: aa\nDescription: kernel\n for servers\n\n'
	printf 'Package: mount\nArchitecture: all\nVersion: 2.41\nSHA256: bb\n\n' ;;
*) exit 100 ;;
esac
`
	standIn(t, map[string]string{"apt-get": mirrors, "apt-cache": cache})
	archive := NewArchive("trixie", t.TempDir())
	got, err := archive.Resolve([]string{"linux-image-amd64", "mount"})
	want := Lock{"trixie", []Package{{"linux-image-amd64", "linux-image-6.12.1-amd64", "6.12.1-1", "amd64", "aa"}, {"mount", "mount", "2.41", "all", "bb"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := archive.Resolve([]string{"linux-image-amd64", "mount", "awk"}); err == nil || err.Error() != "awk: Debian trixie does not have it" {
		t.Errorf("a package that is missing: error %v", err)
	}
}
