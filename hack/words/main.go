// Command words measures the English of the repository, and fails if a figure is worse than its
// recorded value.
//
//	go run ./hack/words            compare with hack/words/figures.json
//	go run ./hack/words -update    record lower figures; a higher figure is never recorded
//	go run ./hack/words -list DIR  print each place in DIR that counts
//
// It measures the Go comments and the documents (Markdown and .proto files). The figures are the
// numbers of vague pronouns and of words for persons per 1,000 words, and the percentage of comment
// lines over 100 columns. It also checks the subjects of the commits since the rule for subjects
// began (verbs.go). A counted word can be correct: the figures show where to look. docs/glossary.md
// has the terms to use.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// figuresFile is the name of the file with the recorded figures, relative to the root of the
// repository.
const figuresFile = "hack/words/figures.json"

func main() {
	update := flag.Bool("update", false, "record the figures that fell")
	list := flag.String("list", "", "print each counted place below this `directory`")
	flag.Parse()
	if err := run(*update, *list); err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

func run(update bool, list string) error {
	if list != "" {
		_, places, err := measure(os.DirFS("."), filepath.ToSlash(filepath.Clean(list)))
		for _, p := range places {
			fmt.Println(p)
		}
		return err
	}
	now, _, err := measure(os.DirFS("."), ".")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(figuresFile)
	if err != nil {
		return fmt.Errorf("%s: cannot read: %w", figuresFile, err)
	}
	var recorded figures
	if err := json.Unmarshal(text, &recorded); err != nil {
		return fmt.Errorf("%s: cannot parse: %w", figuresFile, err)
	}
	worse := now.compare(recorded)
	if update {
		out, err := json.MarshalIndent(now.lower(recorded), "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(figuresFile, append(out, '\n'), 0o644); err != nil {
			return fmt.Errorf("%s: cannot write: %w", figuresFile, err)
		}
	}
	subjects, err := commits()
	if err != nil {
		return err
	}
	for _, s := range subjects {
		if problem := checkSubject(s); problem != "" {
			worse = append(worse, fmt.Sprintf("commit %q: %s", s, problem))
		}
	}
	if len(worse) > 0 {
		return errors.New(strings.Join(worse, "\n"))
	}
	return nil
}

// commits returns the subjects of the commits since firstCommit. It returns none for a tree without
// git history, such as a source archive, and for a clone that does not contain firstCommit.
func commits() ([]string, error) {
	if _, err := os.Stat(".git"); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err := exec.Command("git", "cat-file", "-e", firstCommit+"^{commit}").Run(); err != nil {
		return nil, nil // a shallow clone that begins after firstCommit
	}
	out, err := exec.Command("git", "log", "--no-merges", "--format=%s", firstCommit+"..HEAD").Output()
	if err != nil {
		return nil, fmt.Errorf("git log: cannot list the commits: %w", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}
