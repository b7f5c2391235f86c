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

// outcome is the result of each part. At and TookS are the time and the duration of the measurement
// by the clock of this computer. All other figures of a part are in the time of the machines. If
// there is an error, the figures of the part are incomplete.
type outcome struct {
	At    time.Time `json:"at"`
	TookS float64   `json:"took_s"`
	// Dilation is the factor of the time dilation (vm.Clock).
	Dilation int    `json:"time_dilation"`
	Error    string `json:"error,omitempty"`
}

func (o *outcome) ended(result outcome) { *o = result }

// figures are the figures of a part, with the methods that all parts have.
type figures interface {
	// ended stores the outcome.
	ended(outcome)
	// rows returns the lines of the part in the table.
	rows() []row
	// values returns the figures that are compared with the figures of a former release.
	values() values
}

// row is a line of the table: its label, its value and its target.
type row struct{ what, value, wanted string }

// run measures a part within its limit, and adds the outcome to its figures.
func (p part) run(ctx context.Context, b *bench) (figures, error) {
	say("%s", p.name)
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, vm.Clock{Dilation: b.cluster.Dilation}.Outside(p.limit), fmt.Errorf("%s took longer than its limit of %s", p.name, p.limit))
	defer cancel()
	f, err := p.measure(b, ctx)
	result := outcome{At: began.UTC().Truncate(time.Second), TookS: time.Since(began).Seconds(), Dilation: max(b.cluster.Dilation, 1)}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		err = fmt.Errorf("%s: %w", p.name, err)
		result.Error = err.Error()
		say("%v", err)
	}
	f.ended(result)
	say("%s: done after %.0f s", p.name, result.TookS)
	return f, err
}

// say prints the time and the present step of the measurement.
func say(format string, values ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// record is the content of the field Cluster of the file: a JSON object with a field for each part,
// and the fields of the comparison. Parts that are not measured again retain their figures.
type record struct {
	file     string
	former   string // version of the former release; empty: no former release
	fields   map[string]json.RawMessage
	against  against
	measured []measured // the measurements of this run
}

// These are the names of the fields of the comparison. All other fields have the names of parts.
const againstField, targetsField = "against", "targets"

func (r *record) read() error {
	r.fields = map[string]json.RawMessage{}
	text, err := benchfile.Read(r.file, benchfile.Cluster)
	if err == nil && text != nil {
		if err = json.Unmarshal(text, &r.fields); err == nil && r.fields[againstField] != nil {
			err = json.Unmarshal(r.fields[againstField], &r.against)
		}
		if err != nil {
			err = fmt.Errorf("%s: cannot read the present figures of the cluster: %w; remove the file if you do not need these figures", r.file, err)
		}
	}
	if r.against.Version != r.former || r.against.Parts == nil {
		r.against = against{Version: r.former, Parts: map[string]json.RawMessage{}}
	}
	return err
}

// add adds the figures of a measurement and writes the file. The file of an interrupted run
// therefore has the figures of all measurements that ended.
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

// addTargets replaces the results of the targets that this run has measured.
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

// seconds formats a duration in seconds. It returns a dash for nil.
func seconds(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f s", *v)
}

// The function since returns the duration in seconds between two instants. It returns nil if an
// instant is zero. A zero instant was not reached.
func since(from, to time.Time) *float64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	s := to.Sub(from).Seconds()
	return &s
}

// keepLimit is the deadline for storing the files of all machines.
const keepLimit = time.Minute

// keep stores the console logs and the events of all machines before the cluster is deleted. If a
// machine does not answer, keep does not fail; the console log of the machine shows the reason.
func (b *bench) keep(ctx context.Context) error {
	if b.power == nil {
		var err error
		if b.power, err = b.cluster.Power(); err != nil {
			return nil // the cluster does not exist, and orlopctl has printed the reason
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
			return fmt.Errorf("logs: cannot store the console of %s: %w", m.Name, err)
		}
		if contexts[m.Name] == "" || !m.Running {
			continue
		}
		if err := b.keepEvents(ctx, contexts[m.Name], filepath.Join(dir, "events.json")); err != nil {
			say("%s: its events are not stored: %v", m.Name, err)
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

// The method with connects to the management API of a machine, calls the function do, and closes
// the connection. The parameter machine is the name of a context of orlopctl.
func (b *bench) with(ctx context.Context, machine string, do func(*client.Client) error) error {
	c, err := b.cluster.Connect(ctx, machine)
	if err != nil {
		return err
	}
	defer c.Close() // an error has no effect, because no more data is sent
	return do(c)
}
