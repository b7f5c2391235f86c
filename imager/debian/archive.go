package debian

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Suite is the suite of Debian from which the image has its packages. This computer can have
// another suite.
const Suite = "trixie"

// keyring contains the keys of all suites (package debian-archive-keyring).
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Archive is a suite of Debian, with its updates and security updates. Its package lists are
// separate from the lists of this computer, which can have another suite. Mirrors, proxies and
// passwords are from the apt configuration of this computer.
type Archive struct {
	suite string
	dir   string
	ready bool // the configuration is written, and the lists exist
	fresh bool // the lists were downloaded by this process
}

// NewArchive returns a suite with its package lists below the directory dir. It runs no program.
func NewArchive(suite, dir string) *Archive {
	return &Archive{suite: suite, dir: filepath.Join(dir, suite)}
}

// Update downloads the package lists.
func (a *Archive) Update() error {
	if err := a.configure(); err != nil {
		return err
	}
	if _, err := a.apt(".", "apt-get", "-qq", "update"); err != nil {
		return fmt.Errorf("cannot get the package lists of Debian %s: %w", a.suite, err)
	}
	a.ready, a.fresh = true, true
	return nil
}

// open prepares the package lists for use. If there are no lists, it downloads them.
func (a *Archive) open() error {
	if a.ready {
		return nil
	}
	lists, err := filepath.Glob(filepath.Join(a.dir, "lists", "*_Packages*"))
	if err != nil {
		return err
	}
	if len(lists) == 0 {
		return a.Update()
	}
	err = a.configure()
	a.ready = err == nil
	return err
}

// configure writes the configuration of apt for this suite.
func (a *Archive) configure() error {
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("the keys of Debian are missing: %w: install debian-archive-keyring", err)
	}
	out, err := run(".", "apt-get", "indextargets", "--format", mirrorFormat, "Created-By: Packages")
	if err != nil {
		return err
	}
	m, err := parseMirrors(out)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(a.dir)
	if err != nil {
		return err
	}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	// Only the owner can read the files, because the address of a mirror may contain a password.
	for name, text := range map[string]string{"apt.conf": aptConfig(dir), "sources.list": m.sources(a.suite), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// apt runs a tool of apt in a directory with the lists of this suite, and returns its output.
func (a *Archive) apt(dir, tool string, args ...string) (string, error) {
	config, err := filepath.Abs(filepath.Join(a.dir, "apt.conf"))
	if err != nil {
		return "", err
	}
	return run(dir, append([]string{tool, "-c", config}, args...)...)
}

// aptConfig returns the settings by which apt uses only the files in dir. apt reads them after this
// computer's configuration, so proxies, certificates and timeouts of the computer remain. Each
// line #clear removes a setting of the computer: its default release, the programs that run before
// and after an update, and the list of languages, which is then set to none.
func aptConfig(dir string) string {
	var b strings.Builder
	for _, name := range []string{"APT::Default-Release", "APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success",
		"Acquire::Languages"} {
		fmt.Fprintf(&b, "#clear %s;\n", name)
	}
	for _, s := range [][2]string{
		{"Dir::Etc::sourcelist", filepath.Join(dir, "sources.list")}, {"Dir::Etc::sourceparts", os.DevNull},
		{"Dir::Etc::preferences", os.DevNull}, {"Dir::Etc::preferencesparts", os.DevNull},
		{"Dir::State::lists", filepath.Join(dir, "lists")}, {"Dir::State::status", filepath.Join(dir, "status")},
		// Container images disable the caches. Without caches, each call of apt parses the lists,
		// which takes seconds.
		{"Dir::Cache", filepath.Join(dir, "cache")}, {"Dir::Cache::pkgcache", "pkgcache.bin"}, {"Dir::Cache::srcpkgcache", "srcpkgcache.bin"},
		{"Acquire::Languages", "none"},
		// By default, apt reports success if a download fails and old lists exist.
		{"APT::Update::Error-Mode", "any"},
	} {
		fmt.Fprintf(&b, "%s %q;\n", s[0], s[1])
	}
	return b.String()
}

// mirrors are the addresses of Debian's archive and of its security archive.
type mirrors struct{ main, security string }

// mirrorFormat makes apt print label, origin and address of each package list of this computer.
const mirrorFormat = "$(LABEL)\t$(ORIGIN)\t$(REPO_URI)"

// parseMirrors returns the first mirror of each archive from lines in mirrorFormat. It ignores
// archives of other origins. It recognizes a mirror by the label and the origin of Debian, not by
// the address, because the archive signs both. It fails if the computer has no mirror of one of the
// archives.
func parseMirrors(lines string) (mirrors, error) {
	var m mirrors
	for line := range strings.Lines(lines) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 3 || f[1] != "Debian" {
			continue
		}
		switch {
		case f[0] == "Debian" && m.main == "":
			m.main = f[2]
		case f[0] == "Debian-Security" && m.security == "":
			m.security = f[2]
		}
	}
	const remedy = "add it to /etc/apt/sources.list.d and run `apt-get update`"
	switch {
	case m.main == "":
		return m, errors.New("apt of this computer has no list of Debian's archive: " + remedy)
	case m.security == "":
		return m, errors.New("apt of this computer has no list of Debian's security archive: " + remedy)
	}
	return m, nil
}

// sources returns the text of sources.list(5) for a suite.
func (m mirrors) sources(suite string) string {
	var b strings.Builder
	for _, s := range [][2]string{{m.main, suite}, {m.main, suite + "-updates"}, {m.security, suite + "-security"}} {
		fmt.Fprintf(&b, "deb [arch=amd64 target=Packages signed-by=%s] %s %s main\n", keyring, s[0], s[1])
	}
	return b.String()
}

// run runs a tool of apt in dir and returns its output. An option for root prevents the warning
// that apt downloads without its sandbox user.
func run(dir string, argv ...string) (string, error) {
	if os.Geteuid() == 0 {
		argv = slices.Insert(slices.Clone(argv), 1, "-o", "APT::Sandbox::User=root")
	}
	c := exec.Command(argv[0], argv[1:]...)
	c.Dir = dir
	c.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strconv.Quote(strings.TrimSpace(stderr.String())))
	}
	return string(out), nil
}
