package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// These are the outcomes of a cut.
const (
	recovered = "recovered" // the machine recovered in time, and its state is as promised
	faulty    = "fault"     // the machine recovered, but its state is not as promised
	bricked   = "bricked"   // the machine did not recover
)

// result is the result of one cut.
type result struct {
	Number  int      `json:"number"`
	Class   string   `json:"class"`
	Instant string   `json:"instant"`
	Outcome string   `json:"outcome"`
	Wrong   []string `json:"wrong,omitempty"`
	Console string   `json:"console,omitempty"` // end of the console, after a failure
	Kept    string   `json:"kept,omitempty"`    // copy of the machine's directory after a failure
	Version string   `json:"version,omitempty"` // version that ran at the first answer
	Phase   string   `json:"phase,omitempty"`   // phase of the last upgrade
	// whether the check included a healthy cluster and an upgrade
	Whole bool `json:"whole,omitempty"`
	// times in seconds since the start of the kernel, for the boot that answered
	Answered float64 `json:"answered_s,omitempty"`
	Healthy  float64 `json:"healthy_s,omitempty"`
}

// tally counts the cuts by their outcomes.
type tally struct {
	Cuts      int `json:"cuts"`
	Bricked   int `json:"bricked"`
	Faults    int `json:"faults"`
	Recovered int `json:"recovered"`
	Whole     int `json:"whole"`
}

func (t *tally) add(r result) {
	t.Cuts++
	switch r.Outcome {
	case bricked:
		t.Bricked++
	case faulty:
		t.Faults++
	default:
		t.Recovered++
	}
	if r.Whole {
		t.Whole++
	}
}

// spread holds the median and the maximum of a time, in seconds.
type spread struct {
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) *spread {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	return &spread{Median: values[(len(values)-1)/2], Max: values[len(values)-1]}
}

// report is the content of the file; docs/soak.md describes its fields.
type report struct {
	Seed   uint64 `json:"seed"`
	Wanted int    `json:"wanted"`
	tally
	ByClass  map[string]*tally `json:"by_class"`
	Answered *spread           `json:"answered_s,omitempty"`
	Healthy  *spread           `json:"healthy_s,omitempty"`
	Examined *examination      `json:"examined,omitempty"` // nil: not examined
	Failures []result          `json:"failures"`
	Runs     []result          `json:"runs"`
}

// summarise computes the counts and times from the recorded runs.
func (r *report) summarise() {
	r.tally, r.ByClass, r.Failures = tally{}, map[string]*tally{}, []result{}
	var answered, healthy []float64
	for _, run := range r.Runs {
		if r.ByClass[run.Class] == nil {
			r.ByClass[run.Class] = &tally{}
		}
		r.tally.add(run)
		r.ByClass[run.Class].add(run)
		if run.Outcome != recovered {
			r.Failures = append(r.Failures, run)
		}
		if run.Answered > 0 {
			answered = append(answered, run.Answered)
		}
		if run.Healthy > 0 {
			healthy = append(healthy, run.Healthy)
		}
	}
	r.Answered, r.Healthy = spreadOf(answered), spreadOf(healthy)
}

func (r *report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nCLASS\tCUTS\tBRICKED\tFAULTS\tRECOVERED\tCHECKED WHOLE")
	line := func(class string, t tally) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\n", class, t.Cuts, t.Bricked, t.Faults, t.Recovered, t.Whole)
	}
	var done []string
	for _, run := range r.Runs {
		if !slices.Contains(done, run.Class) {
			done = append(done, run.Class)
			line(run.Class, *r.ByClass[run.Class])
		}
	}
	line("all", r.tally)
	w.Flush()
	if r.Answered != nil {
		fmt.Fprintf(out, "first answer %.1f s after the kernel began, at most %.1f s\n", r.Answered.Median, r.Answered.Max)
	}
	if r.Healthy != nil {
		fmt.Fprintf(out, "healthy cluster %.1f s after the kernel began, at most %.1f s\n", r.Healthy.Median, r.Healthy.Max)
	}
	if r.Examined != nil {
		fmt.Fprintf(out, "what the loader would find on %d disks: %d faults\n", r.Examined.Disks, len(r.Examined.Wrong))
		for _, wrong := range r.Examined.Wrong {
			fmt.Fprintf(out, "  %s\n", wrong)
		}
	}
	for _, f := range r.Failures {
		fmt.Fprintf(out, "\ncut %d of seed %d (%s, %s): %s\n", f.Number, r.Seed, f.Class, f.Instant, f.Outcome)
		for _, wrong := range f.Wrong {
			fmt.Fprintf(out, "  %s\n", wrong)
		}
		fmt.Fprintf(out, "  kept in %s; end of the console:\n%s\n", cmp.Or(f.Kept, "(nothing)"), f.Console)
	}
}
