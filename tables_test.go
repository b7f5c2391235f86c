package orlop

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// namedTests returns the tests of the module as PACKAGE.TEST, and the stories as .STORY.
func namedTests(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, f := range files(t) {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				tests[f.pkg+"."+fn.Name.Name] = true
			}
		}
	}
	for story := range storyTexts(t) {
		tests["."+story] = true
	}
	return tests
}

// tableOf returns the rows of the table with this header in a document. A row is a list of cells.
func tableOf(t *testing.T, path, header string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), header+"\n")
	if !found {
		t.Fatalf("%s has no table with the header %s", path, header)
	}
	columns := strings.Count(header, "|") - 1
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if line == "" {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != columns {
			t.Fatalf("%s: %d cells, want %d: %s", path, len(cells), columns, line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(cells[0], "---") {
			rows = append(rows, cells)
		}
	}
	return rows
}

// checkProof checks that a cell names a test or refers to limits.md, and that each named test
// exists.
func checkProof(t *testing.T, where, cell string, tests map[string]bool) {
	t.Helper()
	named := testsOf(cell)
	if len(named) == 0 && !strings.Contains(cell, "(limits.md)") {
		t.Errorf("%s names neither a test nor a limit", where)
	}
	for _, test := range named {
		if !tests[test] {
			t.Errorf("%s: there is no test %s", where, test)
		}
	}
}

// code matches a package, a test or a story in a cell.
var code = regexp.MustCompile("`([^`]+)`")

// testsOf returns the tests in a cell as PACKAGE.TEST, and the stories as .STORY. The cell has the
// form "`PACKAGE`: `TEST`, `TEST`; `PACKAGE`: …; stories: `STORY`, …".
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
