package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// listed is a line of the suite's own list: where a test stands, and its name.
var listed = regexp.MustCompile(`^ +\S+:\d+: (.+)$`)

// tests are the names in the suite's list, in its order.
func tests(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if match := listed.FindStringSubmatch(strings.TrimRight(line, "\n")); match != nil {
			names = append(names, match[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // one that stands in a table is listed for each of its rows
}

// choose are the names that match focus and, unless it is empty, not skip.
func choose(names []string, focus, skip string) ([]string, error) {
	wanted, err := regexp.Compile(focus)
	if err != nil {
		return nil, fmt.Errorf("-focus: cannot use: %w", err)
	}
	unwanted, err := regexp.Compile(skip)
	if err != nil {
		return nil, fmt.Errorf("-skip: cannot use: %w", err)
	}
	chosen := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !wanted.MatchString(name) || skip != "" && unwanted.MatchString(name)
	})
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-focus %q -skip %q: none of %d tests is left", focus, skip, len(names))
	}
	return chosen, nil
}

// serial is what upstream marks tests with that need the cluster for themselves.
const serial = "[Serial]"

// batches are at most size tests each. Those that disturb others come last, so that a run that is
// broken off has the most, and a fifth of size at a time: one by one they take as long.
func batches(names []string, size int) [][]string {
	disturbing := func(name string) bool { return strings.Contains(name, serial) }
	quiet := slices.DeleteFunc(slices.Clone(names), disturbing)
	rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !disturbing(name) })
	return slices.Concat(slices.Collect(slices.Chunk(quiet, size)), slices.Collect(slices.Chunk(rest, max(1, size/5))))
}

// focus is a regular expression for these names and no others.
func focus(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return `(?:` + strings.Join(quoted, "|") + `)$`
}

// runner runs the suite.
type runner struct {
	programs, bin, dir string
	kubeconfig         string
	parallel           int // tests at once
	// for one test, at most; upstream's own limits are shorter and end it before
	limit time.Duration
}

// list asks the suite for its tests.
func (r runner) list(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(r.programs, suite), "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("%s: cannot list its tests: %w", suite, err)
	}
	names := tests(string(out))
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: its list of tests has another form than expected: %.200s", suite, out)
	}
	return names, nil
}

// images asks the suite for the names of the images that it uses.
func (r runner) images(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(r.programs, suite), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("%s: cannot list its images: %w", suite, err)
	}
	return strings.Fields(string(out)), nil
}

// run has the suite run some tests, and returns what it says of each. Tests of which it says
// nothing are missing.
func (r runner) run(ctx context.Context, number int, names []string) (map[string]outcome, error) {
	dir := filepath.Join(r.dir, fmt.Sprintf("batch-%03d", number))
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("batch %d: cannot empty its folder: %w", number, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("batch %d: cannot make its folder: %w", number, err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("batch %d: %w", number, err)
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(names))*r.limit)
	defer cancel()
	// Ginkgo's own command runs several processes of the suite; each takes the next test, and those
	// marked [Serial] are left until the others are done.
	c := exec.CommandContext(ctx, filepath.Join(r.programs, ginkgo),
		"--procs", strconv.Itoa(r.parallel), "--focus", focus(names), "--timeout", "24h", "--no-color", filepath.Join(r.programs, suite), "--",
		"--kubeconfig", r.kubeconfig, "--provider", "skeleton", "--kubectl-path", filepath.Join(r.bin, "kubectl"),
		"--report-dir", dir, "--report-complete-junit", "--dump-logs-on-failure=false")
	c.Stdout, c.Stderr = log, log
	// so that it removes what it made
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 3 * time.Minute
	ended := c.Run()
	report, err := os.ReadFile(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		return nil, fmt.Errorf("batch %d: %w; it says:\n%s", number, errors.Join(ended, err), tail(log.Name(), 20))
	}
	return parseJUnit(report, names)
}

// tail is the end of a file.
func tail(file string, lines int) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var last []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if last = append(last, s.Text()); len(last) > lines {
			last = last[1:]
		}
	}
	return strings.Join(last, "\n")
}
