// Package scripttest runs the text scripts of a package's tests, testdata/*.txt. Their format is
// that of github.com/cockroachdb/datadriven. A script consists of comments and blocks. A block has
// commands, a line of four dashes, and the output of the commands up to a blank line:
//
//	# Two machines present the same ticket.
//	ticket w1 on a
//	copy w1 as thief
//	join thief via a
//	join w1 via b
//	----
//	thief has certificates for 10.0.0.22
//	10.0.0.12: ticket: another machine has used it
//
// A command is a word with arguments. The package under test defines the commands. A script stops
// at the first block with different output. `go test -update` writes the present output into the
// scripts.
package scripttest

import (
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"gotest.tools/v3/golden"
)

// Commands are the commands of scripts, by name. A command gets the state of its script and its
// arguments. It returns its output, which can be empty.
type Commands[S any] map[string]func(s S, args []string) string

// Run runs each script as a subtest. The function start returns the initial state of a script. The
// clock of a script is virtual (package testing/synctest).
func Run[S any](t *testing.T, start func(t *testing.T) S, commands Commands[S]) {
	t.Helper()
	if golden.FlagUpdate() {
		if err := flag.Set("rewrite", "true"); err != nil { // the flag of datadriven
			t.Fatal(err)
		}
	}
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("the directory testdata has no script (%v)", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t)
				datadriven.RunTestAny(quiet{t}, path, func(t testing.TB, d *datadriven.TestData) string {
					return commands.block(t, s, d)
				})
			})
		})
	}
}

// block runs the commands of a block and returns their combined output.
func (c Commands[S]) block(t testing.TB, s S, d *datadriven.TestData) string {
	var out strings.Builder
	for line := range strings.Lines(d.String()) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		do := c[words[0]]
		if do == nil {
			d.Fatalf(t, "unknown command: %s", line)
		}
		if text := strings.TrimRight(do(s, words[1:]), " \n"); text != "" {
			out.WriteString(text + "\n")
		}
	}
	return out.String()
}

// Word returns the argument after a preposition of a command, such as b in `join w1 via b`. It
// returns an empty string if the command does not have the preposition.
func Word(args []string, preposition string) string {
	words := Words(args, preposition)
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// Words returns the arguments after a preposition, up to the next argument that is in next. It
// returns nil if the command does not have the preposition.
func Words(args []string, preposition string, next ...string) []string {
	i := slices.Index(args, preposition)
	if i < 0 {
		return nil
	}
	words := args[i+1:]
	if end := slices.IndexFunc(words, func(word string) bool { return slices.Contains(next, word) }); end >= 0 {
		words = words[:end]
	}
	return words
}

// Duration parses an argument. An invalid duration ends the test.
func Duration(t testing.TB, arg string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(arg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// quiet is a test that drops log messages. datadriven would log a message for each command that is
// slow by the virtual clock.
type quiet struct{ testing.TB }

func (quiet) Logf(string, ...any) {}
