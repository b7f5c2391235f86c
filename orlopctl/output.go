package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"
)

func (ios *streams) checkOutput() error {
	switch ios.format {
	case "table", "json", "yaml":
		return nil
	}
	return usagef("--output %s: cannot print: expected table, json or yaml", ios.format)
}

// forNode returns the streams for the answer of one of several machines.
func (ios *streams) forNode(node string) *streams {
	other := *ios
	other.node = node
	return &other
}

// silent returns the streams without the error output.
func (ios *streams) silent() *streams {
	other := *ios
	other.err = io.Discard
	return &other
}

// human reports whether the output is for people.
func (ios *streams) human() bool { return ios.format == "table" }

// print writes an answer in the selected format; the function draws the table.
func (ios *streams) print(answer proto.Message, table func(*tabwriter.Writer)) error {
	if ios.human() {
		return drawTable(ios.out, table)
	}
	return ios.printAnswer(answer, false)
}

// printNext writes an answer of a stream: a line of JSON, a YAML document, or the output of the
// function.
func (ios *streams) printNext(answer proto.Message, human func() error) error {
	if ios.human() {
		return human()
	}
	return ios.printAnswer(answer, true)
}

func (ios *streams) printAnswer(answer proto.Message, several bool) error {
	text, err := toJSON(answer)
	if err != nil {
		return err
	}
	return ios.printDocument(text, several)
}

func toJSON(answer proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("answer: cannot format as JSON: %w", err)
	}
	return text, nil
}

// printPlain writes a value of this tool as JSON or YAML.
func (ios *streams) printPlain(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("answer: cannot format: %w", err)
	}
	return ios.printDocument(text, false)
}

// printDocument writes a JSON document with a single write, as JSON or YAML. In a series, it is a
// line of JSON, or a YAML document after a separator. With --nodes, the document contains the
// machine.
func (ios *streams) printDocument(text []byte, several bool) (err error) {
	if ios.node != "" {
		several = true
		text, err = json.Marshal(struct {
			Node   string          `json:"node"`
			Result json.RawMessage `json:"result"`
		}{ios.node, text})
	}
	var out bytes.Buffer
	switch {
	case err != nil:
	case ios.format == "yaml":
		if several {
			out.WriteString("---\n")
		}
		text, err = yaml.JSONToYAML(text)
		out.Write(text)
	case several:
		// protojson varies its spaces on purpose; scripts need a stable output.
		err = json.Compact(&out, text)
		out.WriteByte('\n')
	default:
		err = json.Indent(&out, text, "", "  ")
		out.WriteByte('\n')
	}
	if err != nil {
		return fmt.Errorf("answer: cannot format: %w", err)
	}
	ios.printf("%s", out.Bytes())
	return nil
}

// drawTable aligns columns that are separated by tabs.
func drawTable(out io.Writer, table func(*tabwriter.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.DiscardEmptyColumns)
	table(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("output: cannot write: %w", err)
	}
	return nil
}

// row writes one line of a table.
func row(w io.Writer, cells ...string) {
	for i, cell := range cells {
		// A tab or a line break inside a cell would break the table.
		cells[i] = strings.Join(strings.Fields(cell), " ")
	}
	// Flush returns the error
	_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// age formats the time since at: "12s", "5m", "3h", "9d"; "-" if it is unknown.
func age(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return shortDuration(time.Since(at.AsTime()))
}

func shortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// stamp formats the time of a log line: UTC, milliseconds.
func stamp(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().UTC().Format("2006-01-02T15:04:05.000Z")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
