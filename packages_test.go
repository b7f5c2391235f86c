package orlop

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPackages checks that only `make bench` installs the packages of test/bench/host-packages.txt.
// One of them, busybox-static, would replace the package busybox of the computer. The test also
// checks that hack/packages installs only missing packages.
func TestPackages(t *testing.T) {
	list := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	has := regexp.MustCompile(`(?m)^busybox`)
	if has.MatchString(list("imager/host-packages.txt")) || !has.MatchString(list("test/bench/host-packages.txt")) {
		t.Error("busybox-static is in imager/host-packages.txt, or is not in test/bench/host-packages.txt")
	}
	users := regexp.MustCompile(`(?m)^([a-z-]+):.*\bbench-packages\b`).FindAllStringSubmatch(list("Makefile"), -1)
	if len(users) != 1 || users[0][1] != "bench" {
		t.Errorf("the targets %q install the packages of test/bench, want only bench", users)
	}
	// hack/packages must read all files that its arguments name, and call apt-get only for missing
	// packages. The directory has a fake dpkg-query and apt-get.
	dir := t.TempDir()
	for name, text := range map[string]string{
		"one": "# comment\nhere  why\nmissing-one  why\n", "two": "missing-two  why",
		"dpkg-query": "#!/bin/sh\ncase $3 in here) echo install ok installed;; esac\n",
		"apt-get":    "#!/bin/sh\nshift; echo apt-get \"$@\" >>" + filepath.Join(dir, "calls") + "\n",
		"sudo":       "#!/bin/sh\nexec \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "hack/packages", filepath.Join(dir, "one"), filepath.Join(dir, "two"))
	command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := command.CombinedOutput()
	if err != nil || string(out) != "installing: missing-one missing-two\n" {
		t.Errorf("hack/packages prints %s, %v", out, err)
	}
	if out, err := exec.CommandContext(t.Context(), "hack/packages", filepath.Join(dir, "none")).CombinedOutput(); err == nil {
		t.Errorf("hack/packages returns no error for a file that does not exist: %s", out)
	}
	if calls := list(filepath.Join(dir, "calls")); !strings.Contains(calls, " missing-one missing-two") {
		t.Errorf("calls of apt-get: %q", calls)
	}
}
