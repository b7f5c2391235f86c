package outdated

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/imager/debian"
)

// Source is a go.mod file, and packages of its module. The dependencies of the packages are
// examined.
type Source struct {
	File     string
	Packages []string
	Tests    bool // the tests of the packages are examined, too
	Image    bool // the file pins modules of the image
}

// Sources are the go.mod files of the repository.
var Sources = []Source{
	{File: "go.mod", Packages: []string{"./..."}, Tests: true, Image: true},
	{File: "imager/components/go.mod", Packages: []string{"tool"}, Image: true},
	{File: "extensions/gvisor/go.mod", Packages: []string{"tool"}},
	{File: "hack/tools/go.mod", Packages: []string{"tool"}},
	{File: "hack/charts/go.mod", Packages: []string{"./...", "tool"}},
	{File: "test/conformance/suite/go.mod", Packages: []string{"tool"}},
	// The baseline is upstream Kubernetes, with which a benchmark compares the image
	// (docs/bench.md). TestBaselineVersions checks that this file has the versions of go.mod. The
	// baseline uses the container runtime of the image, which is in imager/components.
	{File: "test/bench/baseline/go.mod", Packages: []string{"./...", "tool"}},
}

// Scan is a set of packages that are built together with the same settings.
type Scan struct {
	Dir      string // of the go.mod file
	Tags     string
	CGO      bool
	Packages []string
	Tests    bool
	Image    bool // the packages are programs of the image
}

// suites is the table of Debian's suites in the package distro-info-data.
const suites = "/usr/share/distro-info/debian.csv"

// database is the module that contains the Go vulnerability database, in the directory data/osv.
const database = "golang.org/x/vulndb"

// acceptedFile is the list of vulnerabilities that do not affect the image.
const acceptedFile = "imager/vulnerabilities.json"

// Gather reads the pins of all Sources, and gets the answers of the services: the go command, the
// vulnerability database, the module proxy and Debian. image are the programs of the image. If all
// is true, Gather also looks up the modules that only other modules need. A service that fails has
// an entry in Failed. An error means that a file of the repository has a fault.
func Gather(lockFile string, lock debian.Lock, archive *debian.Archive, image []Scan, all bool, now time.Time) (Answers, error) {
	a := Answers{LockFile: lockFile, Lock: lock, Facts: map[string]Facts{}, Served: map[string]map[string]bool{}}
	for _, s := range Sources {
		text, err := os.ReadFile(s.File)
		if err != nil {
			return a, err
		}
		pins, err := Pins(s.File, text)
		if err != nil {
			return a, err
		}
		a.Pins = append(a.Pins, pins...)
	}
	text, err := os.ReadFile(acceptedFile)
	if err != nil {
		return a, err
	}
	if a.Accepted, err = ParseAccepted(acceptedFile, text); err != nil {
		return a, err
	}
	a.askGo()
	a.askDatabase(image)
	a.askProxy(all)
	a.askDebian(archive, now)
	return a, nil
}

// fail records that a service has failed.
func (a *Answers) fail(service string, err error) {
	a.Failed = append(a.Failed, service+": "+strings.TrimSpace(err.Error()))
}

// askGo gets the version of the go command, and the published versions of Go.
func (a *Answers) askGo() {
	out, err := run(".", nil, "go", "env", "GOVERSION")
	a.Go = string(bytes.TrimSpace(out))
	if err == nil {
		out, err = run(os.TempDir(), nil, "go", "list", "-m", "-e", "-versions", "-json", "go@"+strings.TrimPrefix(a.Go, "go"))
	}
	if err != nil {
		a.fail("Go toolchain", err)
		return
	}
	facts, err := ParseFacts(bytes.NewReader(out))
	if err == nil && len(facts) != 1 {
		err = fmt.Errorf("one answer expected, got %d", len(facts))
	}
	if err != nil {
		a.fail("Go toolchain", err)
		return
	}
	a.Toolchain = facts[0]
}

// askDatabase gets the vulnerabilities of the programs of the image, and of all other packages. It
// uses the database in the environment variable GOVULNDB. If the variable is not set, it downloads
// the newest version of the database from the module proxy.
func (a *Answers) askDatabase(image []Scan) {
	const source = "Go vulnerability database"
	url := os.Getenv("GOVULNDB")
	if url == "" {
		dir, published, err := downloadDatabase()
		if err != nil {
			a.fail(source, err)
			return
		}
		url, a.Database = "file://"+filepath.Join(dir, "data", "osv"), &published
	}
	scans := slices.Clone(image)
	for _, s := range Sources {
		scans = append(scans, Scan{Dir: filepath.Dir(s.File), Tags: "providerless", Packages: s.Packages, Tests: s.Tests})
	}
	for _, s := range scans {
		findings, err := s.run(url)
		if err != nil {
			a.fail(source, fmt.Errorf("%s %s: %w", s.Dir, strings.Join(s.Packages, " "), err))
			continue
		}
		a.Findings = append(a.Findings, findings...)
	}
}

// downloadDatabase downloads the module of the database. It returns the directory of the module and
// the time of its publication.
func downloadDatabase() (dir string, published time.Time, err error) {
	// outside of a module, because the command would otherwise change a go.sum file
	out, err := run(os.TempDir(), nil, "go", "mod", "download", "-json", database+"@latest")
	var m struct{ Dir, Info, Error string }
	if broken := json.Unmarshal(out, &m); err == nil {
		err = broken
	}
	if m.Error != "" {
		err = errors.New(m.Error)
	}
	if err != nil {
		return "", published, err
	}
	info, err := os.ReadFile(m.Info)
	if err != nil {
		return "", published, err
	}
	var i struct{ Time time.Time }
	err = json.Unmarshal(info, &i)
	return m.Dir, i.Time, err
}

// run returns the vulnerabilities that govulncheck finds in the packages. url is the database.
func (s Scan) run(url string) ([]Finding, error) {
	tools, err := filepath.Abs("hack/tools/go.mod")
	if err != nil {
		return nil, err
	}
	args := []string{"tool", "-modfile=" + tools, "govulncheck", "-C", s.Dir, "-db", url, "-scan", "package", "-json", "-tags", s.Tags}
	if s.Tests {
		args = append(args, "-test")
	}
	cgo := "CGO_ENABLED=0"
	if s.CGO {
		cgo = "CGO_ENABLED=1"
	}
	out, err := run(".", []string{cgo}, "go", append(args, s.Packages...)...)
	if err != nil {
		return nil, err
	}
	return ParseFindings(bytes.NewReader(out), s.Image)
}

// askProxy gets the versions of the modules that Wanted selects. For each
// module, it then requests each version that the function Probes returns, and so finds out whether
// the proxy serves this version (Served).
func (a *Answers) askProxy(all bool) {
	byFile := map[string][]Pin{}
	for _, p := range Wanted(a.Pins, a.Findings, all) {
		byFile[p.File] = append(byFile[p.File], p)
	}
	for _, s := range Sources {
		var modules []string
		for _, p := range byFile[s.File] {
			if _, ok := a.Facts[p.String()]; !ok {
				modules = append(modules, p.Module)
			}
		}
		facts, err := list(filepath.Dir(s.File), modules, "-u", "-versions")
		if err != nil {
			a.fail("versions of "+s.File, err)
			continue
		}
		for _, f := range facts {
			a.Facts[f.Path+"@"+f.Version] = f
		}
	}
	var probes []string
	for _, p := range Wanted(a.Pins, a.Findings, all) {
		for _, v := range Probes(p, a.Facts[p.String()]) {
			probes = append(probes, p.Module+"@"+v)
		}
	}
	facts, err := list(os.TempDir(), probes)
	if err != nil {
		a.fail("versions by name", err)
	}
	for _, f := range facts {
		if a.Served[f.Path] == nil {
			a.Served[f.Path] = map[string]bool{}
		}
		a.Served[f.Path][f.Version] = f.Error == nil
	}
}

// list gets the facts about modules from the go command, in the directory dir. For an empty list of
// modules it returns nothing: the go command would otherwise describe the module in dir.
func list(dir string, modules []string, options ...string) ([]Facts, error) {
	if len(modules) == 0 {
		return nil, nil
	}
	args := slices.Concat([]string{"list", "-m", "-e", "-json"}, options, modules)
	out, err := run(dir, []string{"GOFLAGS=-mod=readonly"}, "go", args...)
	if err != nil {
		return nil, err
	}
	return ParseFacts(bytes.NewReader(out))
}

// askDebian downloads the package lists. It reads the offers and the time of the lists, and the
// table of suites.
func (a *Answers) askDebian(archive *debian.Archive, now time.Time) {
	if err := archive.Update(); err != nil {
		a.fail("Debian", err)
		return
	}
	var names []string
	for _, p := range a.Lock.Packages {
		names = append(names, p.Want)
	}
	offers, err := archive.Offers(names...)
	if err != nil {
		a.fail("Debian", err)
		return
	}
	a.Offers = offers
	if published, err := archive.Time(); err != nil {
		a.fail("Debian", err)
	} else {
		a.Archive = &published
	}
	table, err := os.Open(suites)
	if err != nil {
		a.fail("Debian's suites", fmt.Errorf("%w: the package distro-info-data contains it", err))
		return
	}
	defer table.Close()
	suite, err := suiteItem(table, a.Lock.Suite, a.LockFile, now)
	if err != nil {
		a.fail("Debian's suites", err)
		return
	}
	a.Suite = &suite
}

// run runs a command in dir and returns its output, also after a failure.
func run(dir string, env []string, name string, args ...string) ([]byte, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
