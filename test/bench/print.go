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

// printReport writes the tables: figures with every run, memory by process, the ratios.
func printReport(out io.Writer, r report) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	ours, theirs := r.numbers(), (&figures{}).numbers()
	if r.Baseline != nil {
		theirs = r.Baseline.numbers()
		fmt.Fprintln(w, "\nMEDIAN\tORLOP OS\tBASELINE\tRATIO\tRUNS OF ORLOP OS\tRUNS OF THE BASELINE")
	} else {
		fmt.Fprintln(w, "\nMEDIAN\tORLOP OS\tRUNS")
	}
	for i, n := range ours {
		if *n.at == nil && *theirs[i].at == nil {
			continue // an upgrade that was not measured
		}
		var mine, others []*float64
		for j := range r.Runs {
			mine = append(mine, *r.Runs[j].numbers()[i].at)
		}
		if r.Baseline == nil {
			fmt.Fprintf(w, "%s\t%s\t%s\n", n.what, number(*n.at), series(mine))
			continue
		}
		for j := range r.Baseline.Runs {
			others = append(others, *r.Baseline.Runs[j].numbers()[i].at)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", n.what, number(*n.at), number(*theirs[i].at), r.ratioOf(n.at), series(mine), series(others))
	}
	w.Flush()
	fmt.Fprintf(out, "\n%d programs; boots that the emulator ended early and that were repeated: ours %d", len(r.Executables), r.EarlyEnds)
	if r.Baseline != nil {
		fmt.Fprintf(out, ", the baseline's %d", r.Baseline.EarlyEnds)
	}
	fmt.Fprintln(out)
	printProcesses(out, "Orlop OS", r.AnonMiB)
	if r.Baseline != nil {
		printProcesses(out, "the baseline", r.Baseline.AnonMiB)
	}
}

// ratioOf returns the ratio for a figure of the report, if there is a ratio.
func (r *report) ratioOf(at **float64) string {
	if r.Ratio == nil {
		return "-"
	}
	switch at {
	case &r.ToKubeAPI:
		return fraction(r.Ratio.KubeAPI)
	case &r.ToNodeReady:
		return fraction(r.Ratio.NodeReady)
	case &r.ToPodRunning:
		return fraction(r.Ratio.PodRunning)
	case &r.MachineUsedMiB:
		return fraction(r.Ratio.Memory)
	}
	return "-"
}

func fraction(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *v)
}

func series(values []*float64) string {
	var words []string
	for _, v := range values {
		if v != nil {
			words = append(words, number(v))
		}
	}
	return cmp.Or(strings.Join(words, " "), "-")
}

func printProcesses(out io.Writer, whose string, sizes map[string]float64) {
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%s %.1f", name, sizes[name]))
	}
	fmt.Fprintf(out, "Anonymous memory of %s by process, MiB: %s\n", whose, strings.Join(words, ", "))
}

// waitWorth is the shortest printed wait, in seconds; shorter waits are in the file.
const waitWorth = 0.1

// printTimeline writes the timeline of one run: the time of each moment, the time since the
// previous moment, and below it the reported waits.
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

// shorten cuts a line to the width of a wide terminal.
func shorten(text string) string {
	const most = 110
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// writeTimeline stores a run's timeline and all its events, in one order, for the analysis of
// waits.
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
