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
// test/integration uses, and that the documents in stories have only known fields. So a story with
// a flag or field that was renamed fails here after a second, and not in its run after minutes.
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
		t.Errorf("only %d command lines and %d documents were found", commands, documents)
	}
}

// misspelled lists files that have unknown fields on purpose, because their story tests the error.
var misspelled = []string{"bad-calls.txtar/unknown.yaml"}

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

// toolLines returns the arguments of each call of the tool that is expected to succeed. It leaves
// out calls of the tool of another release, between "tools DIRECTORY" and "tools".
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

// quotedWords splits a line as testscript does: blanks separate words, single quotes protect them,
// and # begins a comment.
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

// acceptsFlags returns the error with which the tool rejects a command line, or nil. It does not
// check the values of the story's variables.
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

// unknownFields returns the unknown fields in documents of this product. It ignores other problems,
// because a patch lacks most fields, and because variables stand for values.
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
