// Package iostreams holds the standard streams of a command. It writes answers as tables, JSON or
// YAML, and errors with their hints.
//
// It does not call machines: package connect does that.
package iostreams

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/pkg/config"
)

// Streams are the standard streams of a run of the tool, and the format of its answers.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Format   string // table, json or yaml
	Node     string // the machine of this run with --nodes; empty otherwise
}

// ReadFile reads a file or, for "-", the standard input.
func (ios *Streams) ReadFile(name string) ([]byte, error) {
	if name != "-" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, exit.Usagef("file: cannot read: %w", err)
		}
		return text, nil
	}
	text, err := io.ReadAll(io.LimitReader(ios.In, config.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("standard input: cannot read: %w", err)
	}
	return text, nil
}

// Report prints an error with its hint, and returns the exit status.
func (ios *Streams) Report(err error) int {
	if err == nil {
		return exit.OK
	}
	code, hint := exit.Code(err)
	for _, problem := range exit.ProblemsOf(err) {
		ios.Errorln(problem.String())
	}
	prefix := "orlopctl: "
	if ios.Node != "" {
		prefix = "" // each line already begins with the machine
	}
	ios.Errorln(prefix + format.CleanLines(exit.Message(err)))
	if hint != "" {
		ios.Errorln("hint: " + hint)
	}
	return code
}

// PrintProgress prints a line about the progress. With -o json or yaml, it prints the line to the
// error output.
func (ios *Streams) PrintProgress(line string) {
	if ios.Human() {
		ios.Println(line)
	} else {
		ios.Errorln(line)
	}
}

// CheckOutput returns an error for an unknown output format.
func (ios *Streams) CheckOutput() error {
	switch ios.Format {
	case "table", "json", "yaml":
		return nil
	}
	return exit.Usagef("--output %s: cannot print: expected table, json or yaml", ios.Format)
}

// ForNode returns a copy of the streams for the answer of a single machine of several.
func (ios *Streams) ForNode(node string) *Streams {
	other := *ios
	other.Node = node
	return &other
}

// Silent returns a copy of the streams without error output.
func (ios *Streams) Silent() *Streams {
	other := *ios
	other.Err = io.Discard
	return &other
}

// Human reports whether the output format is for people and not for programs.
func (ios *Streams) Human() bool { return ios.Format == "table" }

// Print prints an answer in the selected format. table writes the rows of format table.
func (ios *Streams) Print(answer proto.Message, table func(*tabwriter.Writer)) error {
	if ios.Human() {
		return DrawTable(ios.Out, table)
	}
	return ios.printAnswer(answer, false)
}

// PrintNext prints an answer of a stream: in JSON as a line, in YAML as a document. human prints it
// in format table.
func (ios *Streams) PrintNext(answer proto.Message, human func() error) error {
	if ios.Human() {
		return human()
	}
	return ios.printAnswer(answer, true)
}

func (ios *Streams) printAnswer(answer proto.Message, several bool) error {
	text, err := ToJSON(answer)
	if err != nil {
		return err
	}
	return ios.PrintDocument(text, several)
}

// ToJSON returns an answer as JSON.
func ToJSON(answer proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("answer: cannot format as JSON: %w", err)
	}
	return text, nil
}

// PrintPlain prints a value that is not an API message, as JSON or YAML.
func (ios *Streams) PrintPlain(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("answer: cannot format: %w", err)
	}
	return ios.PrintDocument(text, false)
}

// PrintDocument prints a JSON document as JSON or YAML, with a single write. If several is set, the
// document belongs to a series: a line of JSON, or a YAML document after a separator. With --nodes,
// PrintDocument adds the machine to the document.
func (ios *Streams) PrintDocument(text []byte, several bool) (err error) {
	if ios.Node != "" {
		several = true
		text, err = json.Marshal(struct {
			Node   string          `json:"node"`
			Result json.RawMessage `json:"result"`
		}{ios.Node, text})
	}
	var out bytes.Buffer
	switch {
	case err != nil:
	case ios.Format == "yaml":
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
	ios.Printf("%s", out.Bytes())
	return nil
}

// DrawTable prints the rows of table, with aligned columns. Tabs separate the cells of a row.
func DrawTable(out io.Writer, table func(*tabwriter.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.DiscardEmptyColumns)
	table(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("output: cannot write: %w", err)
	}
	return nil
}

// Row writes a line of a table.
func Row(w io.Writer, cells ...string) {
	for i, cell := range cells {
		// A tab or a line break inside a cell would break the table.
		cells[i] = strings.Join(strings.Fields(cell), " ")
	}
	// An error is ignored here, because Flush in DrawTable returns it.
	_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// Terminal reports whether the standard output is a terminal, and returns its width in columns.
func (ios *Streams) Terminal() (width int, ok bool) {
	file, ok := ios.Out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 20 {
		width = 80
	}
	return width, true
}

// Println prints a line to the standard output. A closed pipe ends the process by SIGPIPE, as for
// any Unix tool. Other write errors are ignored, because there is no place to report them.
func (ios *Streams) Println(line string) { _, _ = fmt.Fprintln(ios.Out, line) }

// Printf prints a formatted text to the standard output.
func (ios *Streams) Printf(format string, args ...any) { _, _ = fmt.Fprintf(ios.Out, format, args...) }

// Errorln prints a line to the error output.
func (ios *Streams) Errorln(line string) { _, _ = fmt.Fprintln(ios.Err, line) }
