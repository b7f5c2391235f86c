package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// printReport writes the tables: the medians and ratios with the values of all runs, and the memory
// and the use of processors of each process.
func printReport(out io.Writer, r report) {
	sides := r.sides()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"\nMEDIAN", "ORLOP OS"}
	for _, s := range sides {
		head = append(head, strings.ToUpper(s.name), "RATIO")
	}
	head = append(head, "RUNS OF ORLOP OS")
	for _, s := range sides {
		head = append(head, "RUNS OF "+strings.ToUpper(s.name))
	}
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for i, n := range r.numbers() {
		if line := r.line(i, n, sides); line != nil {
			fmt.Fprintln(w, strings.Join(line, "\t"))
		}
	}
	w.Flush()
	fmt.Fprintf(out, "\n%d programs; boots that the emulator ended early and that were repeated: ours %d", len(r.Executables), r.EarlyEnds)
	for _, s := range sides {
		fmt.Fprintf(out, ", %s %d", s.name, s.earlyEnds)
	}
	fmt.Fprintln(out)
	printProcesses(out, "Orlop OS", r.AnonMiB)
	for _, s := range sides {
		printProcesses(out, s.name, s.figures.AnonMiB)
	}
	printIdle(out, "Orlop OS", r.IdleByService)
	for _, s := range sides {
		printIdle(out, s.name, s.figures.IdleByService)
	}
}

// line returns the cells of one line of the table. It returns nil if no side has the figure.
func (r *report) line(i int, n figure, sides []other) []string {
	line := []string{n.label(), number(*n.at)}
	measured := *n.at != nil
	runs := []string{series(figuresOf(r.Runs), i)}
	for _, s := range sides {
		median := *s.figures.numbers()[i].at
		measured = measured || median != nil
		ratio := "-"
		if q, ok := s.Ratio[n.ratio]; ok {
			ratio = fmt.Sprintf("%.2f", q)
		}
		line = append(line, number(median), ratio)
		runs = append(runs, series(s.runs, i))
	}
	if !measured {
		return nil
	}
	return append(line, runs...)
}

// label returns the figure's name with its unit.
func (n figure) label() string {
	if n.unit == "" {
		return n.what
	}
	return n.what + ", " + n.unit
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *v)
}

// series returns the i-th figure of each run that has it, separated by spaces. It returns a dash if
// no run has the figure.
func series(runs []*figures, i int) string {
	var words []string
	for _, run := range runs {
		if v := *run.numbers()[i].at; v != nil {
			words = append(words, number(v))
		}
	}
	return cmp.Or(strings.Join(words, " "), "-")
}

func printProcesses(out io.Writer, whose string, sizes map[string]float64) {
	fmt.Fprintf(out, "Anonymous memory of %s by process, MiB: %s\n", whose, largestFirst(sizes))
}

func printIdle(out io.Writer, whose string, seconds map[string]float64) {
	if len(seconds) > 0 {
		fmt.Fprintf(out, "Idle use of processors of %s by process, s/min: %s\n", whose, largestFirst(seconds))
	}
}

func largestFirst(values map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%s %.1f", name, values[name]))
	}
	return strings.Join(words, ", ")
}

// waitWorth is the shortest wait that is printed, in seconds. The file with the figures (-out) has
// the shorter waits, too.
const waitWorth = 0.1

// printTimeline writes the timeline of one run. Each line has the time of a stage and the time
// since the previous stage. The lines below a stage list its reported waits.
func printTimeline(out io.Writer, run machineRun) {
	fmt.Fprintln(out, "\nThe timeline of a run of ours, in seconds since init began, and what each stage waited for:")
	last := 0.0
	for i, s := range run.Timeline {
		step := ""
		if i > 0 {
			step = fmt.Sprintf("%+.2f", s.Seconds-last)
		}
		last = s.Seconds
		fmt.Fprintf(out, "%8.2f  %7s  %s\n", s.Seconds, step, s.What)
		for _, w := range s.Waits {
			if w.Seconds >= waitWorth {
				fmt.Fprintf(out, "%19s  %6.2f s  %s\n", "", w.Seconds, shorten(w.For))
			}
		}
	}
}

// shorten cuts a line to 110 characters, which fit a wide terminal.
func shorten(text string) string {
	const most = 110
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// writeTimeline stores the timeline of a run and all its events in the file, ordered by time, for
// the analysis of waits.
func writeTimeline(file string, run machineRun) error {
	var out bytes.Buffer
	writeStages(&out, run)
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("timeline: cannot write: %w", err)
	}
	return nil
}

func writeStages(out io.Writer, run machineRun) {
	printTimeline(out, run)
	fmt.Fprintln(out, "\nEverything, with the machine's events:")
	type line struct {
		seconds float64
		text    string
	}
	var lines []line
	for _, s := range run.Timeline {
		lines = append(lines, line{s.Seconds, "* " + s.What})
	}
	for _, e := range run.Events {
		if e.Source != "boot" || e.Kind != "stage" {
			lines = append(lines, line{e.Seconds, fmt.Sprintf("  %s %s: %s", e.Source, e.Kind, e.Message)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.seconds, b.seconds) })
	for _, l := range lines {
		fmt.Fprintf(out, "%8.2f  %s\n", l.seconds, l.text)
	}
}
