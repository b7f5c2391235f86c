package orlop

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

const module = "github.com/orlop-os/orlop"

// layer is a set of packages. These packages may import packages of lower layers. They may import
// each other only if peers is true. "/..." includes the packages below.
type layer struct {
	name     string
	peers    bool
	packages []string
}

// layers is the order of the packages, lowest first. It is a statement of policy: do not change it
// to make a build pass.
var layers = []layer{
	// The first three layers are the packages of pkg. Mechanisms do not know the cluster or its
	// documents. The package at the root has the empty name, and contains the documentation.
	{"mechanisms", true, []string{
		"",
		// files, memory, goroutines
		"pkg/backoff", "pkg/cell", "pkg/copytree", "pkg/glob", "pkg/limits", "pkg/loopback", "pkg/panics", "pkg/paths",
		"pkg/reconcile", "pkg/safefile", "pkg/sanitize", "pkg/strictyaml", "pkg/transfer",
		// the disk and the boot
		"pkg/attest", "pkg/bootenv", "pkg/disk/...", "pkg/diskkey", "pkg/diskprobe/...", "pkg/secureboot", "pkg/slot/...", "pkg/tpm/...", "pkg/verity",
		// the kernel
		"pkg/kernel/...",
		// processes and their records
		"pkg/audit/...", "pkg/bgp", "pkg/egress/...", "pkg/otlp/...", "pkg/service/...", "pkg/supervise/...",
		// images and artifacts
		"pkg/artifact/...", "pkg/imagestore/...",
	}},
	// the identity of machines and clients, and the admission of machines to the cluster
	{"cluster", true, []string{"pkg/admission/...", "pkg/disruption/...", "pkg/emulation", "pkg/etcdjoin", "pkg/pki", "pkg/trust/..."}},
	// the documents and calls by which programs and operators communicate
	{"contract", true, []string{
		"pkg/api", "pkg/approval", "pkg/buildinfo", "pkg/bundle", "pkg/client/...", "pkg/config/...", "pkg/extension", "pkg/machineapi/...", "pkg/machineprovider/...", "pkg/nodespec/...", "pkg/relay",
	}},
	{"parts of machined", false, []string{
		// decides which configuration may follow another configuration
		"machined/transition",
		// domains: plan, diff and operations of an area of the machine
		"machined/credentials", "machined/disk", "machined/extensions", "machined/firewall", "machined/host", "machined/install", "machined/network/...",
		"machined/seed", "machined/upgrade", "machined/volumes/...",
		// subjects: calls and tasks
		"machined/api", "machined/approvals", "machined/boot", "machined/clusterhealth", "machined/configstore", "machined/console", "machined/debug/...", "machined/disruption", "machined/drain", "machined/drift", "machined/etcd", "machined/events", "machined/forwarder", "machined/health", "machined/hosts", "machined/identity", "machined/images/...", "machined/lldp", "machined/logship/...", "machined/machinemetrics",
		"machined/membership/...", "machined/orchestrator", "machined/ownership", "machined/pods", "machined/power", "machined/repair", "machined/resolver", "machined/suspend", "machined/timesync/...", "machined/uevent", "machined/wear",
		"apid", "metricsd/...", "podlogd", "vm/...",
	}},
	// fills the configurations of the domains
	{"plan of the node", false, []string{"machined/nodeplan"}},
	// translates the state of disks and links for the parts that use them
	{"hardware", false, []string{"machined/hardware"}},
	// checks a configuration with the code of Kubernetes
	{"check of configurations", false, []string{"machined/configcheck"}},
	// converge the domains to the plan, hold the active configuration, and read the facts for both
	{"convergence", false, []string{"machined/activeconfig", "machined/converge", "machined/facts"}},
	{"programs", false, []string{"machined", "init", "imager/...", "orchestrator/...", "orlopctl/...", "hack/previous", "hack/words"}},
	{"tests", true, []string{"test/..."}},
}

// engines are the packages of pkg that run tasks, with a rank; all other packages have rank 0. In
// pkg, an engine may import only engines of a lower rank, and a package that is no engine may
// import no engine.
var engines = map[string]int{"pkg/cell": 1, "pkg/reconcile": 2, "pkg/supervise": 2}

// withoutEngines are the programs that import only packages of pkg, and no engine except pkg/cell.
var withoutEngines = []string{"init", "apid", "metricsd/...", "podlogd", "imager/..."}

// heavy are the packages that may link Kubernetes itself. Other packages may not, because
// Kubernetes takes minutes to compile (CONTRIBUTING.md).
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
		if matchAny(l.packages, pkg) {
			return i
		}
	}
	return -1
}

// root returns the directory to which a package belongs: pkg/NAME or machined/NAME for a package
// below pkg or machined, and otherwise the first element of its path.
func root(pkg string) string {
	e := strings.SplitN(pkg, "/", 3)
	if len(e) > 1 && (e[0] == "pkg" || e[0] == "machined") {
		return e[0] + "/" + e[1]
	}
	return e[0]
}

type file struct {
	path, pkg string // relative to the module
	src       string
	syntax    *ast.File // with comments; positions holds the positions
	imports   []string
	test      bool
	generated bool
}

// positions holds the positions of all files.
var positions = token.NewFileSet()

// parsed reads and parses the files once for all tests.
var parsed = sync.OnceValues(parseFiles)

// files returns every Go file of the module, without the modules nested in it.
func files(t *testing.T) []file {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func parseFiles() (all []file, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
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
		f, err := parser.ParseFile(positions, path, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		one := file{path: path, pkg: filepath.ToSlash(filepath.Dir(path)), src: string(src), syntax: f, test: strings.HasSuffix(path, "_test.go")}
		if one.pkg == "." {
			one.pkg = ""
		}
		one.generated = strings.Contains(one.src[:min(len(one.src), 400)], "Code generated")
		for _, i := range f.Imports {
			one.imports = append(one.imports, strings.Trim(i.Path.Value, `"`))
		}
		all = append(all, one)
		return nil
	})
	return all, err
}

// TestArrows checks that a package imports only packages of lower layers, or of its own layer if
// the layer permits this. Packages with the same root may import each other in all directions,
// except below machined. The imports of tests are not checked.
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
			switch above := layerOf(to); {
			case above > from:
				t.Errorf("%s imports %s: the layer %q is below %q", f.path, to, layers[from].name, layers[above].name)
			case above == from && !layers[from].peers:
				t.Errorf("%s imports %s: packages of the layer %q must not import each other", f.path, to, layers[from].name)
			case strings.HasPrefix(f.pkg, "pkg/") && engines[root(to)] >= engines[root(f.pkg)] && engines[root(to)] > 0:
				t.Errorf("%s imports %s: in pkg, a package may import only engines of a lower rank (house_test.go)", f.path, to)
			case matchAny(withoutEngines, f.pkg) && (engines[root(to)] > 1 || !strings.HasPrefix(to, "pkg/")):
				t.Errorf("%s imports %s: %s may import only packages of pkg, and no engine except cell", f.path, to, root(f.pkg))
			}
		}
	}
}

// TestShared checks that each package of pkg has at least two importers. A package with a single
// importer belongs below this importer. The rule holds for the packages directly below pkg, and for
// packages in a directory that only groups packages, such as pkg/kernel. A test counts as an
// importer only of packages whose name ends with "test".
func TestShared(t *testing.T) {
	importers := map[string]map[string]bool{}
	for _, f := range files(t) {
		if strings.HasPrefix(f.pkg, "pkg/") && importers[f.pkg] == nil {
			importers[f.pkg] = map[string]bool{}
		}
		for _, i := range f.imports {
			to, ours := strings.CutPrefix(i, module+"/")
			if !ours || f.test && !strings.HasSuffix(to, "test") {
				continue
			}
			if importers[to] == nil {
				importers[to] = map[string]bool{}
			}
			importers[to][f.pkg] = true
		}
	}
	for pkg, by := range importers {
		grouped := importers[root(pkg)] == nil && !strings.HasSuffix(pkg, "test")
		if strings.HasPrefix(pkg, "pkg/") && (root(pkg) == pkg || grouped) && len(by) < 2 {
			t.Errorf("package %s: only %v imports it, so it belongs below that package", pkg, slices.Collect(maps.Keys(by)))
		}
	}
}

// TestEveryPackageSaysWhatItIs checks that each package has a package comment.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	doc := map[string]bool{}
	for _, f := range files(t) {
		if !f.test {
			doc[f.pkg] = doc[f.pkg] || f.syntax.Doc != nil
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
			t.Errorf("package %s: choose a name that says what the package does", f.pkg)
		}
	}
}

// TestEveryFuzzTestRuns checks that make fuzz or make fuzz-heavy runs every fuzz test.
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
		for _, m := range declared.FindAllStringSubmatch(f.src, -1) {
			if target := regexp.MustCompile(`\b` + strings.TrimPrefix(f.pkg, "pkg/") + ":" + m[1] + `\b`); !target.Match(makefile) {
				t.Errorf("%s: %s is not in the Makefile's FUZZ", f.path, m[1])
			}
		}
	}
}

// TestSizes limits the size of files.
func TestSizes(t *testing.T) {
	for _, f := range files(t) {
		if lines := strings.Count(f.src, "\n"); lines > 800 && !f.generated {
			t.Errorf("%s has %d lines; the limit is 800, and 500 is the aim", f.path, lines)
		}
	}
}

// The limits of code outside tests. A reader must be able to read a function, struct or type as a
// whole.
const (
	maxFields  = 15 // of a struct
	maxMethods = 40 // of a type
	maxLines   = 70 // of a function
)

// TestLimits checks the limits of functions, structs and types.
func TestLimits(t *testing.T) {
	limits := map[string]int{"function": maxLines, "struct": maxFields, "methods": maxMethods}
	for name, n := range measure(t) {
		if kind, _, _ := strings.Cut(name, " "); n > limits[kind] {
			t.Errorf("%s: %d, and the limit is %d; split this code by subject", name, n, limits[kind])
		}
	}
}

// measure returns the size of code outside tests: lines of functions, fields of structs, and
// methods of types. The keys are "KIND PACKAGE.NAME". The name of a method is "Type:Method".
func measure(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, f := range files(t) {
		if f.test || f.generated {
			continue
		}
		for _, d := range f.syntax.Decls {
			for name, node := range parts(d) {
				name = f.pkg + "." + name
				if method, ok := node.(*ast.FuncDecl); ok && method.Recv != nil {
					of, _, _ := strings.Cut(name, ":")
					all["methods "+of]++
				}
				ast.Inspect(node, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.FuncDecl, *ast.FuncLit:
						lines := positions.Position(n.End()).Line - positions.Position(n.Pos()).Line + 1
						all["function "+name] = max(all["function "+name], lines)
					case *ast.StructType:
						all["struct "+name] = max(all["struct "+name], n.Fields.NumFields())
					}
					return true
				})
			}
		}
	}
	return all
}

// parts returns the named parts of a declaration: functions, methods, types, variables and
// constants.
func parts(d ast.Decl) map[string]ast.Node {
	all := map[string]ast.Node{}
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = receiver(d.Recv.List[0].Type) + ":" + name
		}
		all[name] = d
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				all[s.Name.Name] = s
			case *ast.ValueSpec:
				all[s.Names[0].Name] = s
			}
		}
	}
	return all
}

// receiver returns the name of the type in the receiver of a method.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// The limits of a decision page. A reader must be able to read the page as a whole.
const (
	maxPageLines   = 60
	maxPageColumns = 100 // of a line outside tables and examples
)

// pageForm matches a decision page: the title with the number, then the sections, each with text.
var pageForm = regexp.MustCompile(`^# (\d{4}) .+\n\n` + section("Context") + section("Decision") +
	"(?:" + section("Rejected") + ")?" + section("Consequences") + "$")

// section returns the regular expression for a section: its heading, then paragraphs and headings
// of level three.
func section(name string) string {
	return "## " + name + `\n\n(?:### .+\n\n)?[^#\n].*\n(?:(?:### )?[^#\n].*\n|\n)*`
}

// TestDecisions checks the length and the sections of the decision pages.
func TestDecisions(t *testing.T) {
	pages, err := filepath.Glob("docs/decisions/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/decisions: no pages: %v", err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, problem := range pageProblems(filepath.Base(page), string(text)) {
			t.Errorf("%s%s", page, problem)
		}
	}
}

// pageProblems returns a text for each rule that a decision page breaks. Each text continues a
// message that begins with the path of the page.
func pageProblems(name, text string) (problems []string) {
	lines := 0
	for line := range strings.Lines(text) {
		lines++
		example := strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ")
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > maxPageColumns && !example {
			problems = append(problems, fmt.Sprintf(":%d has %d columns; the limit is %d", lines, n, maxPageColumns))
		}
	}
	if lines > maxPageLines {
		problems = append(problems, fmt.Sprintf(" has %d lines; the limit is %d: remove repetition, or split the page by decision", lines, maxPageLines))
	}
	if form := pageForm.FindStringSubmatch(text); form == nil || !strings.HasPrefix(name, form[1]+"-") {
		problems = append(problems, " needs a title with the number of the file, and the sections Context, Decision, Rejected (optional) and Consequences, each with text")
	}
	return problems
}

// TestNamedFilesExist checks that each path that a document names in backquotes exists.
func TestNamedFilesExist(t *testing.T) {
	name := regexp.MustCompile("`((?:init|machined|apid|metricsd|podlogd|orchestrator|orlopctl|imager|profiles|pkg|hack|test|docs|vm)/[A-Za-z0-9_./-]*)`")
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob("docs/decisions/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(append(docs, decisions...), "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "findings/README.md") {
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
