package main

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestStoryCommands checks that this tool has every command and flag that a story of
// test/integration uses, and that the documents in stories have only known fields. If a flag or a
// field is renamed, this test finds the old name in a story after a second. The story itself would
// fail only after minutes.
func TestStoryCommands(t *testing.T) {
	commands, documents := 0, 0
	for name, story := range storyFiles(t) {
		for _, line := range toolLines(string(story.Comment)) {
			commands++
			if err := acceptsFlags(line); err != nil {
				t.Errorf("%s: %s: %v", name, strings.Join(line, " "), err)
			}
			if i := slices.Index(line, "-p"); i >= 0 && i+1 < len(line) {
				documents++
				for _, p := range unknownFields(line[i+1]) {
					t.Errorf("%s: %s: %s", name, line[i+1], p)
				}
			}
		}
		for _, f := range story.Files {
			if !strings.HasSuffix(f.Name, ".yaml") || slices.Contains(misspelled, name+"/"+f.Name) {
				continue
			}
			documents++
			for _, p := range unknownFields(string(f.Data)) {
				t.Errorf("%s: file %s: %s", name, f.Name, p)
			}
		}
	}
	if commands < 400 || documents < 150 {
		t.Errorf("the test found only %d command lines and %d documents in the stories", commands, documents)
	}
}

// misspelled lists files that have unknown fields on purpose, because their story tests the error.
var misspelled = []string{"bad-calls.txtar/unknown.yaml"}

// storyFiles returns all stories by the names of their files.
func storyFiles(t *testing.T) map[string]*txtar.Archive {
	t.Helper()
	found := map[string]*txtar.Archive{}
	for _, directory := range []string{"", "faults", "releases"} {
		files, err := filepath.Glob(filepath.Join("../test/integration/testdata", directory, "*.txtar"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found[filepath.Base(file)] = a
		}
	}
	return found
}

// toolLines returns the arguments of each call of this tool that a story expects to succeed. It
// omits the calls between the commands "tools DIRECTORY" and "tools", which are calls of another
// release.
func toolLines(script string) [][]string {
	var lines [][]string
	other := false
	for line := range strings.Lines(script) {
		words := quotedWords(line)
		if len(words) > 0 && words[0] == "tools" {
			other = len(words) > 1
		}
		if i := slices.Index(words, "orlopctl"); i >= 0 && !other && !slices.Contains([]string{"!", "exits", "stderr", "stdout"}, words[0]) {
			lines = append(lines, words[i+1:])
		}
	}
	return lines
}

// quotedWords splits a line into words as testscript does. Blanks outside single quotes separate
// words, and # begins a comment.
func quotedWords(line string) []string {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\'' && quoted && i+1 < len(line) && line[i+1] == '\'':
			word.WriteByte(c)
			i++
		case c == '\'':
			quoted, begun = !quoted, true
		case !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			end()
		case !quoted && c == '#':
			end()
			return words
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	end()
	return words
}

// acceptsFlags returns the error with which the tool rejects the command, the flags or the number
// of arguments of a command line, or nil. It does not execute the command.
func acceptsFlags(words []string) error {
	c, rest, err := newTool(&iostreams.Streams{}).rootCommand().Find(words)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	return err
}

// unknownFields returns the problems about unknown fields in configuration documents. It ignores
// other problems, because a patch lacks most fields, and because a story has variables in place of
// values.
func unknownFields(text string) []string {
	found := map[string]bool{}
	_, problems := config.Parse("", []byte(text))
	for _, p := range problems {
		if p.Reason == "unknown field" {
			found[p.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
