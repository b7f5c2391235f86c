package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/test/benchfile"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/test/targets"
	"github.com/orlop-os/orlop/vm"
)

const mib = 1 << 20

// outcome is common to all parts: the time and duration of the measurement (both outside), the time
// dilation of the machines, in whose time all other figures are, and the error. With an error the
// figures are incomplete.
type outcome struct {
	At    time.Time `json:"at"`
	TookS float64   `json:"took_s"`
	// Dilation: see vm.Clock.
	Dilation int    `json:"time_dilation"`
	Error    string `json:"error,omitempty"`
}

func (o *outcome) ended(how outcome) { *o = how }

// figures are the figures of a part.
type figures interface {
	ended(outcome)
	// rows returns the lines of the table: label, value, and target.
	rows() []row
	// values returns the figures that can be compared with those of a former release.
	values() values
}

type row struct{ what, value, wanted string }

// run measures a part within its limit.
func (p part) run(ctx context.Context, b *bench) (figures, error) {
	say("%s", p.name)
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, vm.Clock{Dilation: b.cluster.Dilation}.Outside(p.limit), fmt.Errorf("%s took longer than its limit of %s", p.name, p.limit))
	defer cancel()
	f, err := p.measure(b, ctx)
	how := outcome{At: began.UTC().Truncate(time.Second), TookS: time.Since(began).Seconds(), Dilation: max(b.cluster.Dilation, 1)}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		err = fmt.Errorf("%s: %w", p.name, err)
		how.Error = err.Error()
		say("%v", err)
	}
	f.ended(how)
	say("%s: done after %.0f s", p.name, how.TookS)
	return f, err
}

// say prints the present step.
func say(format string, values ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// record is the field Cluster of the file: an object with a field per part, and the fields of the
// comparison. Parts without a new measurement keep their figures.
type record struct {
	file     string
	former   string // version of the former release; empty: none
	fields   map[string]json.RawMessage
	against  against
	measured []measured // in this run
}

// The fields beside those of the parts.
const againstField, targetsField = "against", "targets"

func (r *record) read() error {
	r.fields = map[string]json.RawMessage{}
	text, err := benchfile.Read(r.file, benchfile.Cluster)
	if err == nil && text != nil {
		if err = json.Unmarshal(text, &r.fields); err == nil && r.fields[againstField] != nil {
			err = json.Unmarshal(r.fields[againstField], &r.against)
		}
		if err != nil {
			err = fmt.Errorf("%s: cannot keep the cluster's figures that are there: %w; remove the file if they are not wanted", r.file, err)
		}
	}
	if r.against.Version != r.former || r.against.Parts == nil {
		r.against = against{Version: r.former, Parts: map[string]json.RawMessage{}}
	}
	return err
}

// add adds the figures of a part and writes the file, so an interrupted run leaves its results.
func (r *record) add(m measured) error {
	text, err := json.Marshal(m.figures)
	if err != nil {
		return fmt.Errorf("report: cannot format: %w", err)
	}
	r.measured = append(r.measured, m)
	if m.former {
		r.against.Parts[m.name] = text
	} else {
		r.fields[m.name] = text
	}
	if r.former != "" {
		r.against.compare(r.measured)
		if r.fields[againstField], err = json.Marshal(r.against); err != nil {
			return fmt.Errorf("report: cannot format: %w", err)
		}
	}
	if err := r.addTargets(); err != nil {
		return err
	}
	return benchfile.WriteCluster(r.file, r.fields)
}

// addTargets replaces the results of the targets that were measured in this run.
func (r *record) addTargets() error {
	var all []targets.Result
	if text := r.fields[targetsField]; text != nil {
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("report: the targets of an earlier run: %w", err)
		}
	}
	for _, result := range results(r.measured, r.former) {
		if result.Ours == nil {
			continue
		}
		i := slices.IndexFunc(all, func(before targets.Result) bool { return before.Figure == result.Figure })
		if i < 0 {
			i, all = len(all), append(all, result)
		}
		all[i] = result
	}
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("report: cannot format: %w", err)
	}
	r.fields[targetsField] = text
	return nil
}

func (r *record) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nPART\tFIGURE\tVALUE\tWANTED")
	for _, m := range r.measured {
		name := m.name
		if m.former {
			name += " of " + r.former
		}
		for _, line := range m.rows() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, line.what, line.value, line.wanted)
		}
	}
	w.Flush()
}

// seconds formats a time.
func seconds(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f s", *v)
}

// since returns a time in seconds; nil if the second time was not reached.
func since(from, to time.Time) *float64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	s := to.Sub(from).Seconds()
	return &s
}

// keepLimit bounds the download of the files of all machines.
const keepLimit = time.Minute

// keep stores the consoles and the events of all machines before the cluster is deleted. A machine
// that does not answer is no failure: its console has the reason.
func (b *bench) keep(ctx context.Context) error {
	if b.power == nil {
		var err error
		if b.power, err = b.cluster.Power(); err != nil {
			return nil // the cluster was never created, and the tool printed the reason
		}
	}
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	status, err := b.power.Status(ctx)
	if err != nil {
		return err
	}
	contexts := b.cluster.Machines()
	for _, m := range status.Machines {
		dir := filepath.Join(b.dir, b.cluster.Name, m.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("logs: cannot create the directory: %w", err)
		}
		text, err := os.ReadFile(m.Console)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "console.log"), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("logs: cannot keep the console of %s: %w", m.Name, err)
		}
		if contexts[m.Name] == "" || !m.Running {
			continue
		}
		if err := b.keepEvents(ctx, contexts[m.Name], filepath.Join(dir, "events.json")); err != nil {
			say("%s: its events are not kept: %v", m.Name, err)
		}
	}
	return nil
}

func (b *bench) keepEvents(ctx context.Context, machine, file string) error {
	return b.with(ctx, machine, func(c *client.Client) error {
		events, err := machinestate.Events(ctx, c)
		if err != nil {
			return err
		}
		var text strings.Builder
		for _, e := range events {
			line, err := protojson.Marshal(e)
			if err != nil {
				return err
			}
			text.Write(line)
			text.WriteByte('\n')
		}
		return os.WriteFile(file, []byte(text.String()), 0o644)
	})
}

// with connects to a machine's own API by the name of its context.
func (b *bench) with(ctx context.Context, machine string, do func(*client.Client) error) error {
	c, err := b.cluster.Connect(ctx, machine)
	if err != nil {
		return err
	}
	defer c.Close() // no more data is sent
	return do(c)
}
