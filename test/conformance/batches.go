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

// listed matches a line of the suite's list of tests: a source position, and the name of the test.
var listed = regexp.MustCompile(`^ +\S+:\d+: (.+)$`)

// tests returns the sorted names of the tests in the suite's list, without duplicates.
func tests(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if match := listed.FindStringSubmatch(strings.TrimRight(line, "\n")); match != nil {
			names = append(names, match[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // the suite lists a table test once for each row
}

// choose returns the names that match focus and do not match skip. An empty skip matches no name.
// It fails if no name remains.
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

// serial is the mark in the names of tests that must not run concurrently with other tests.
const serial = "[Serial]"

// batches divides the tests into batches of at most size tests. Serial tests come last, so an
// interrupted run has the results of most tests. A batch of serial tests has a fifth of size,
// because its tests run one after the other.
func batches(names []string, size int) [][]string {
	disturbing := func(name string) bool { return strings.Contains(name, serial) }
	quiet := slices.DeleteFunc(slices.Clone(names), disturbing)
	rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !disturbing(name) })
	return slices.Concat(slices.Collect(slices.Chunk(quiet, size)), slices.Collect(slices.Chunk(rest, max(1, size/5))))
}

// focus returns a regular expression that matches exactly these names.
func focus(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return `(?:` + strings.Join(quoted, "|") + `)$`
}

// runner runs the suite against a cluster.
type runner struct {
	programs, bin, dir string
	kubeconfig         string
	parallel           int // concurrent tests
	// maximum time for each test; the limits in the suite itself are shorter and apply first
	limit time.Duration
}

// list returns the names of all tests of the suite.
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

// images returns the names of all images that the suite uses.
func (r runner) images(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(r.programs, suite), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("%s: cannot list its images: %w", suite, err)
	}
	return strings.Fields(string(out)), nil
}

// run runs a batch of tests with the suite, and returns their outcomes. Tests that did not run to
// their end are not in the result.
func (r runner) run(ctx context.Context, number int, names []string) (map[string]outcome, error) {
	dir := filepath.Join(r.dir, fmt.Sprintf("batch-%03d", number))
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("batch %d: cannot empty its directory: %w", number, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("batch %d: cannot create its directory: %w", number, err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("batch %d: %w", number, err)
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(names))*r.limit)
	defer cancel()
	// The ginkgo command runs several processes of the suite. Each process takes the next test.
	// Tests with the mark [Serial] run after all other tests.
	c := exec.CommandContext(ctx, filepath.Join(r.programs, ginkgo),
		"--procs", strconv.Itoa(r.parallel), "--focus", focus(names), "--timeout", "24h", "--no-color", filepath.Join(r.programs, suite), "--",
		"--kubeconfig", r.kubeconfig, "--provider", "skeleton", "--kubectl-path", filepath.Join(r.bin, "kubectl"),
		"--report-dir", dir, "--report-complete-junit", "--dump-logs-on-failure=false")
	c.Stdout, c.Stderr = log, log
	// After an interrupt, the suite deletes its objects before it ends.
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 3 * time.Minute
	ended := c.Run()
	report, err := os.ReadFile(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		return nil, fmt.Errorf("batch %d: %w; its output ends with:\n%s", number, errors.Join(ended, err), tail(log.Name(), 20))
	}
	return parseJUnit(report, names)
}

// tail returns the last lines of a file. If it cannot open the file, it returns the error text.
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
