package orlop

import (
	"fmt"
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
)

// TestStoryVerbs checks that the comments in verbsFile describe each verb of the stories. It
// generates a page from these comments, and compares it with docs/stories.md. `go test . -update`
// writes the page.
func TestStoryVerbs(t *testing.T) {
	all := files(t)
	i := slices.IndexFunc(all, func(f file) bool { return f.path == verbsFile })
	if i < 0 {
		t.Fatalf("%s does not exist", verbsFile)
	}
	file := all[i].syntax
	var verbs []entry
	sections := map[string]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		switch f.Name.Name {
		case "verbs":
			verbs = entries(storyComment(file))
			checkVerbs(t, f, verbs)
		case "machineVerb":
			sections["machine"] = keys(f.Doc.Text())
		}
	}
	golden.Assert(t, storiesPage(verbs, usedIn(t), sections["machine"]), filepath.Join("..", "docs", "stories.md"))
}

const verbsFile = "test/integration/verbs_test.go"

// entry is a documented verb.
type entry struct {
	usages []string // such as `powercut NAME`; several usages can have the same text
	text   string
}

// verb returns the verb of a usage.
func verb(usage string) string { return strings.Fields(usage)[0] }

// storyComment returns the comment about the verbs.
func storyComment(file *ast.File) string {
	for _, c := range file.Comments {
		if text := c.Text(); strings.HasPrefix(text, "The verbs of the stories") {
			return text
		}
	}
	return ""
}

// entries parses a comment. An indented line is a usage, and the lines below with more indentation
// are its description.
func entries(comment string) (all []entry) {
	for line := range strings.Lines(comment) {
		text := strings.TrimSpace(line)
		last := len(all) - 1
		switch {
		case strings.HasPrefix(line, "\t    ") && last >= 0:
			all[last].text = strings.TrimSpace(all[last].text + " " + text)
		case strings.HasPrefix(line, "\t"):
			all = append(all, entry{usages: strings.Split(text, ", ")})
		}
	}
	return all
}

// checkVerbs compares the documented verbs with the keys of the map that a function returns.
func checkVerbs(t *testing.T, f *ast.FuncDecl, documented []entry) {
	t.Helper()
	known := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			known[strings.Trim(pair.Key.(*ast.BasicLit).Value, `"`)] = true
		}
		return true
	})
	found := map[string]bool{}
	for _, e := range documented {
		for _, u := range e.usages {
			found[verb(u)] = true
		}
	}
	if have, want := slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(known)); !slices.Equal(have, want) {
		t.Errorf("%s documents the verbs %v; the verbs are %v", verbsFile, have, want)
	}
}

// keys returns a Markdown table of the lines `key  description` of a comment.
func keys(comment string) string {
	var rows []string
	for line := range strings.Lines(comment) {
		key, text, ok := strings.Cut(strings.TrimSpace(line), "  ")
		switch {
		case !strings.HasPrefix(line, "\t"):
		case strings.HasPrefix(line, "\t ") || !ok: // the second line of a description
			rows[len(rows)-1] += " " + strings.TrimSpace(line)
		default:
			rows = append(rows, fmt.Sprintf("| `%s` | %s", cell(key), cell(strings.TrimSpace(text))))
		}
	}
	return "| key | meaning |\n|---|---|\n" + strings.Join(rows, " |\n") + " |\n"
}

// cell returns text for a cell of a Markdown table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// storyLine matches a line of a story with a verb.
var storyLine = regexp.MustCompile(`^(?:\[[^]]*\] )?(?:[!?] )?([a-z-]+)\b`)

// storyTexts returns the texts of the stories by name. Stories in several directories can have the
// same name.
func storyTexts(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	err := filepath.WalkDir("test/integration/testdata", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".txtar" {
			return err
		}
		text, err := os.ReadFile(path)
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		all[name] = append(all[name], string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// usedIn returns the names of the stories that use each verb.
func usedIn(t *testing.T) map[string][]string {
	t.Helper()
	used := map[string][]string{}
	for story, texts := range storyTexts(t) {
		for _, text := range texts {
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "-- ") { // the files of the story follow
					break
				}
				if m := storyLine.FindStringSubmatch(line); m != nil && !slices.Contains(used[m[1]], story) {
					used[m[1]] = append(used[m[1]], story)
				}
			}
		}
	}
	return used
}

// storiesPage returns docs/stories.md.
func storiesPage(verbs []entry, used map[string][]string, machineKeys string) string {
	var page strings.Builder
	page.WriteString(`# Verbs of the stories

A story is a text script that boots machines and uses the API, the console and the power switch. Its
format is [testscript](https://pkg.go.dev/github.com/rogpeppe/go-internal/testscript), with the
standard verbs (` + "`stdout`, `cmp`, `grep`" + ` and others) and the verbs below. The stories are in
` + "`test/integration/testdata`" + `; [status.md](status.md) names the claim that each story proves.

` + "`go test . -update`" + ` writes this page from the comments in ` + "`" + verbsFile + "`" + `. An
argument in brackets is optional. A leading ` + "`!`" + ` negates a verb if its description says so. In a
description, *the machine* is the machine NAME. The last column has the stories that use the verb, or
their number if there are more than three.

| verb | effect | stories |
|---|---|---|
`)
	for _, e := range verbs {
		var usages, names []string
		for _, u := range e.usages {
			usages = append(usages, "`"+cell(u)+"`")
			for _, name := range used[verb(u)] {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		slices.Sort(names)
		in := fmt.Sprint(len(names))
		if len(names) <= 3 {
			in = "`" + strings.Join(names, "`, `") + "`"
		}
		fmt.Fprintf(&page, "| %s | %s | %s |\n", strings.Join(usages, ", "), cell(e.text), in)
	}
	page.WriteString("\n## Keys of `machine`\n\n" + machineKeys)
	return page.String()
}
