package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
)

// TestDocumentedCommands checks that this tool accepts every command line, with arguments and
// flags, that the README and docs contain.
func TestDocumentedCommands(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range append(files, "../README.md") {
		for _, line := range commandLines(read(t, file)) {
			count++
			c, rest, err := newTool(&iostreams.Streams{}).rootCommand().Find(strings.Fields(line)[1:])
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err == nil {
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err == nil && !c.Runnable() {
				t.Errorf("%s: %s: the command is incomplete", file, line)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", file, line, err)
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d command lines were found", count)
	}
}

// TestRunbook checks that each task of the runbook has commands, and that each command is run by a
// story or script that the task names after "Shown by".
func TestRunbook(t *testing.T) {
	tasks := regexp.MustCompile(`(?m)^### `).Split(read(t, "../docs/runbook.md"), -1)[1:]
	for _, task := range tasks {
		title, _, _ := strings.Cut(task, "\n")
		shown := regexp.MustCompile(`(?m)^Shown by: (.*)$`).FindStringSubmatch(task)
		lines := commandLines(task)
		if shown == nil || len(lines) == 0 {
			t.Errorf("%s: no commands, or no line Shown by", title)
			continue
		}
		var all strings.Builder
		for name := range strings.SplitSeq(shown[1], ", ") {
			text := ""
			for _, directory := range []string{"testdata/script", "../test/integration/testdata", "../test/integration/testdata/faults", "../test/integration/testdata/releases"} {
				if content, err := os.ReadFile(filepath.Join(directory, name+".txtar")); err == nil {
					text += string(content)
				}
			}
			if text == "" {
				t.Errorf("%s: there is neither a story nor a script %s", title, name)
			}
			all.WriteString(text)
		}
		for _, line := range lines {
			if words := wordsOf(line); !strings.Contains(all.String(), words) {
				t.Errorf("%s: none of %s runs: %s", title, shown[1], words)
			}
		}
	}
	if len(tasks) < 30 {
		t.Errorf("only %d tasks were found", len(tasks))
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commandLines returns the lines of code (indented by four blanks) that call this tool, without
// comments.
func commandLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		code, is := strings.CutPrefix(line, "    ")
		if !is {
			continue
		}
		code, _, _ = strings.Cut(code, " #")
		for command := range strings.SplitSeq(code, "&&") {
			if command = strings.TrimSpace(command); strings.HasPrefix(command, "orlopctl ") {
				lines = append(lines, command)
			}
		}
	}
	return lines
}

// wordsOf returns the command of a command line without its flags and arguments: "orlopctl etcd
// status". It retains the topic of `get` and `watch`: "orlopctl get disks".
func wordsOf(line string) string {
	fields := strings.Fields(line)
	c, _, err := newTool(&iostreams.Streams{}).rootCommand().Find(fields[1:])
	if err != nil {
		return line
	}
	words := strings.Count(c.CommandPath(), " ") + 1
	if name := c.Name(); name == "get" || name == "watch" {
		words++
	}
	return strings.Join(fields[:words], " ")
}

// TestPages checks that each page has a title and is found by its name and by its path, and that
// unknown or ambiguous names are rejected.
func TestPages(t *testing.T) {
	all := pages()
	for _, p := range all {
		if p.Title == "" || p.Name != referencePage && !strings.HasPrefix(p.text, "# "+p.Title+"\n") {
			t.Errorf("page %s has the title %q", p.Name, p.Title)
		}
	}
	for name, want := range map[string]string{
		"runbook": "runbook", "README.md": "readme", "docs/config/README.md": "config/readme", "pkg/config/reference.yaml": referencePage,
		"docs/decisions/0014-media.md": "decisions/0014-media", "0014": "decisions/0014-media", "Arch": "architecture",
		"config": "", "decisions": "", "nonsense": "", "": "",
	} {
		if p, err := pageNamed(name, all); p.Name != want || (err == nil) != (want != "") {
			t.Errorf("%q: got page %q, %v; want %q", name, p.Name, err, want)
		}
	}
}

// TestManPages checks that there is a manual page for each command, and that its text does not
// depend on the time or the home directory.
func TestManPages(t *testing.T) {
	make := func(home, epoch string) map[string]string {
		t.Setenv("HOME", home)
		t.Setenv("SOURCE_DATE_EPOCH", epoch)
		dir := t.TempDir()
		var out strings.Builder
		if code := run([]string{"man", "--out", dir}, strings.NewReader(""), &out, &out); code != exit.OK {
			t.Fatalf("exit status %d: %s", code, out.String())
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		pages := map[string]string{}
		for _, file := range files {
			pages[filepath.Base(file)] = read(t, file)
		}
		return pages
	}
	pages := make("/home/dora", "1000000000")
	for name, text := range make("/home/emil", "1700000000") {
		if pages[name] != text {
			t.Errorf("%s depends on the time or the home directory:\n%s", name, text)
		}
	}
	for _, name := range []string{"orlopctl.1", "orlopctl-trust-issue.1", "orlopctl-completion-bash.1"} {
		if !strings.HasPrefix(pages[name], ".nh\n.TH \""+strings.ToUpper(strings.TrimSuffix(name, ".1"))+"\" \"1\" \"\" \"Orlop OS\"") {
			t.Errorf("%s: got %.200s", name, pages[name])
		}
	}
}
