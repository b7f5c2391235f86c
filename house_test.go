package orlop

import (
	"bufio"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const module = "github.com/orlop-os/orlop"

// layers is the order of the packages, lowest first: a package may import packages of lower layers,
// and of its own layer only if peers permits it. It is a statement of policy: do not change it to
// make a build pass.
var layers = [][]string{
	// mechanisms; the next table orders them. The package at the root contains the documents
	{"pkg/...", ""},
	{"machined/disk", "machined/configstore", "machined/firewall", "machined/network", "machined/host", "machined/console", "machined/credentials", "machined/power", "machined/upgrade", "machined/install", "machined/seed", "machined/logship", "machined/debug", "machined/ownership", "machined/images", "machined/etcd", "machined/membership", "machined/transition", "apid", "vm/..."},
	// fills the configurations of the domains
	{"machined/nodeplan"},
	{"machined", "init", "imager/...", "orchestrator/...", "orlopctl/...", "hack/words"},
	{"test/..."},
}

// mechanisms orders pkg: leaves < cell < reconcile, supervise. Packages not named here are leaves.
var mechanisms = map[string]int{"pkg/cell": 1, "pkg/reconcile": 2, "pkg/supervise": 2, "pkg/timesync": 2}

// leavesOnly are the parts that import only mechanisms, never a domain, and of the mechanisms only
// leaves and cell.
var leavesOnly = []string{"init", "apid", "imager/..."}

// heavy are the only packages that may link Kubernetes itself: they take minutes to compile. See
// CONTRIBUTING.md.
var heavy = []string{"orchestrator/..."}

func match(pattern, pkg string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
	}
	return pattern == pkg
}

func matchAny(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if match(p, pkg) {
			return true
		}
	}
	return false
}

func layerOf(pkg string) int {
	for i, l := range layers {
		if matchAny(l, pkg) {
			return i
		}
	}
	return -1
}

// root returns the part that a package belongs to: its first path element, or the first two below
// pkg and machined.
func root(pkg string) string {
	e := strings.SplitN(pkg, "/", 3)
	if len(e) > 1 && (e[0] == "pkg" || e[0] == "machined") {
		return e[0] + "/" + e[1]
	}
	return e[0]
}

type file struct {
	path, pkg string // relative to the module
	imports   []string
	doc       bool // has a package comment
	lines     int
	test      bool
	generated bool
}

// files returns every Go file of the module, without the modules nested in it.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); (err == nil && path != ".") || d.Name() == "testdata" || d.Name() == "build" || d.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		one := file{path: path, pkg: filepath.ToSlash(filepath.Dir(path)), doc: f.Doc != nil, lines: strings.Count(string(src), "\n"), test: strings.HasSuffix(path, "_test.go")}
		if one.pkg == "." {
			one.pkg = ""
		}
		one.generated = strings.Contains(string(src[:min(len(src), 400)]), "Code generated")
		for _, i := range f.Imports {
			one.imports = append(one.imports, strings.Trim(i.Path.Value, `"`))
		}
		all = append(all, one)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestArrows checks that imports point in one direction.
func TestArrows(t *testing.T) {
	for _, f := range files(t) {
		from := layerOf(f.pkg)
		if from < 0 {
			t.Errorf("%s: package %s is missing in layers (house_test.go)", f.path, f.pkg)
			continue
		}
		if f.test {
			continue
		}
		for _, i := range f.imports {
			if strings.HasPrefix(i, "k8s.io/kubernetes") && !matchAny(heavy, f.pkg) {
				t.Errorf("%s imports %s: only %s may link Kubernetes itself", f.path, i, strings.Join(heavy, ", "))
			}
			to, ours := strings.CutPrefix(i+"/", module+"/")
			if !ours {
				continue
			}
			to = strings.TrimSuffix(to, "/")
			if root(to) == root(f.pkg) && root(to) != "machined" {
				continue
			}
			switch {
			case layerOf(to) > from, layerOf(to) == from && from > 0 && !(f.pkg == "orlopctl" && strings.HasPrefix(to, "vm")):
				t.Errorf("%s imports %s: arrows point from machined to domains to pkg, never back or sideways", f.path, to)
			case from == 0 && mechanisms[root(to)] >= mechanisms[root(f.pkg)] && mechanisms[root(to)] > 0:
				t.Errorf("%s imports %s: within pkg the order is leaves, cell, then reconcile and supervise", f.path, to)
			case matchAny(leavesOnly, f.pkg) && mechanisms[root(to)] > 1:
				t.Errorf("%s imports %s: %s may import leaf packages only", f.path, to, root(f.pkg))
			}
		}
	}
}

// TestEveryPackageSaysWhatItIs checks that each package has a package comment.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	doc := map[string]bool{}
	for _, f := range files(t) {
		if !f.test {
			doc[f.pkg] = doc[f.pkg] || f.doc
		}
	}
	for pkg, ok := range doc {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

// TestNames rejects package names that say nothing about the content.
func TestNames(t *testing.T) {
	bad := regexp.MustCompile(`(^|/)(utils?|common|helpers?|misc|base|constants?)(/|$)`)
	for _, f := range files(t) {
		if bad.MatchString(f.pkg) {
			t.Errorf("package %s: name it by what it does", f.pkg)
		}
	}
}

// TestEveryFuzzTestRuns checks that make fuzz runs every fuzz test.
func TestEveryFuzzTestRuns(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	for _, f := range files(t) {
		if !f.test {
			continue
		}
		src, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllStringSubmatch(string(src), -1) {
			if target := regexp.MustCompile(`\b` + strings.TrimPrefix(f.pkg, "pkg/") + ":" + m[1] + `\b`); !target.Match(makefile) {
				t.Errorf("%s: %s is not in the Makefile's FUZZ", f.path, m[1])
			}
		}
	}
}

// TestSizes limits the size of files.
func TestSizes(t *testing.T) {
	for _, f := range files(t) {
		if f.lines > 800 && !f.generated {
			t.Errorf("%s has %d lines; the limit is 800, and 500 is the aim", f.path, f.lines)
		}
	}
}

// TestNamedFilesExist: each path that a document names in backquotes exists.
func TestNamedFilesExist(t *testing.T) {
	name := regexp.MustCompile("`((?:init|machined|apid|orchestrator|orlopctl|imager|profiles|pkg|hack|test|docs|vm)/[A-Za-z0-9_./-]*)`")
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(docs, "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "findings/README.md") {
		if doc == "docs/glossary.md" { // names the packages into which machined will be split
			continue
		}
		f, err := os.Open(doc)
		if err != nil {
			t.Error(err)
			continue
		}
		for s, n := bufio.NewScanner(f), 1; s.Scan(); n++ {
			for _, m := range name.FindAllStringSubmatch(s.Text(), -1) {
				if _, err := os.Stat(m[1]); err != nil {
					t.Errorf("%s:%d names %s, which does not exist", doc, n, m[1])
				}
			}
		}
		f.Close()
	}
}
