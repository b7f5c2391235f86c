package orlop

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// attacks are the classes of attacks in the specification of The Update Framework (section 1.5.2).
var attacks = []string{
	"Arbitrary software installation", "Rollback", "Fast-forward", "Indefinite freeze", "Endless data", "Extraneous dependencies",
	"Mix-and-match", "Wrong software installation", "Malicious mirrors preventing updates", "Vulnerability to key compromises", "Slow retrieval",
}

// code matches a package or a test in docs/updates.md.
var code = regexp.MustCompile("`([^`]+)`")

// TestUpdatesTable checks the table of attacks in docs/updates.md: it has each class of the
// specification once, each cell names a test or a limit, and each test exists.
func TestUpdatesTable(t *testing.T) {
	text, err := os.ReadFile("docs/updates.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, f := range files(t) {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[f.pkg+"."+fn.Name.Name] = true
			}
		}
	}
	_, table, found := strings.Cut(string(text), "| attack | defense | bundle | extension | add-on |\n")
	if !found {
		t.Fatal("docs/updates.md has no table of attacks")
	}
	var got []string
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 {
			t.Fatalf("docs/updates.md: %d cells, want 5: %s", len(cells), line)
		}
		name := strings.TrimSpace(cells[0])
		if strings.HasPrefix(name, "---") {
			continue
		}
		got = append(got, name)
		for i, cell := range cells[2:] {
			named := testsOf(cell)
			if len(named) == 0 && !strings.Contains(cell, "(limits.md)") {
				t.Errorf("docs/updates.md: %s: cell %d names neither a test nor a limit", name, i+1)
			}
			for _, test := range named {
				if !tests[test] {
					t.Errorf("docs/updates.md: %s: there is no test %s", name, test)
				}
			}
		}
	}
	if !slices.Equal(got, attacks) {
		t.Errorf("docs/updates.md has the attacks %q, the specification has %q", got, attacks)
	}
}

// testsOf returns the tests in a cell as PACKAGE.TEST. The cell has the form
// "`PACKAGE`: `TEST`, `TEST`; `PACKAGE`: …".
func testsOf(cell string) (tests []string) {
	for group := range strings.SplitSeq(cell, ";") {
		pkg, names, _ := strings.Cut(group, ":")
		in := code.FindStringSubmatch(pkg)
		for _, n := range code.FindAllStringSubmatch(names, -1) {
			if in == nil {
				in = []string{"", ""}
			}
			tests = append(tests, in[1]+"."+n[1])
		}
	}
	return tests
}
