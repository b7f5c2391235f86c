package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// filesHelp is the text about readable files in the help of `cat` and `ls`.
const filesHelp = "Only files without secrets are readable: most of /proc except processes, the device descriptions in /sys, and /usr and /etc of\n" +
	"the image; with the role admin also /var/log. Start with `orlopctl ls /`. The audit log records each call."

func catCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	request := &api.ReadFileRequest{}
	c := &cobra.Command{
		Use: "cat PATH", Short: "Show a file of the machine", Long: "Show a file of the machine. " + filesHelp,
		Annotations: calls(api.Machine_ReadFile_FullMethodName),
		Args:        cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			request.Path = path.Clean(args[0])
			return conn.Stream(func(ctx context.Context, c *client.Client) error {
				stream, err := c.Machine.ReadFile(ctx, request)
				if err != nil {
					return err
				}
				out, end := untrusted(ios)
				defer end()
				at := request.Offset
				return connect.Each(stream.Recv, func(r *api.ReadFileResponse) error {
					at += int64(len(r.Chunk))
					if r.Truncated {
						defer ios.Errorln(fmt.Sprintf("%s: the file continues; --offset %d shows more", request.Path, at))
					}
					return ios.PrintNext(r, func() error {
						if _, err := out.Write(r.Chunk); err != nil {
							return fmt.Errorf("output: cannot write: %w", err)
						}
						return nil
					})
				})
			})
		},
	}
	c.Flags().Int64Var(&request.Offset, "offset", 0, "start at this byte")
	flags.NotNegative(c.Flags(), "offset", &request.Offset)
	return c
}

// untrusted returns a writer for text from a machine. If the output is a terminal, the writer
// replaces control sequences, and writes only whole lines. end writes the rest of the text.
func untrusted(ios *iostreams.Streams) (out io.Writer, end func()) {
	if _, terminal := ios.Terminal(); !terminal {
		return ios.Out, func() {}
	}
	lines := &printableLines{to: ios.Out}
	return lines, lines.end
}

// printableLines is a writer of whole lines. It replaces the control characters of each line.
type printableLines struct {
	to   io.Writer
	line []byte // the last, incomplete line
}

func (p *printableLines) Write(text []byte) (int, error) {
	p.line = append(p.line, text...)
	whole := strings.LastIndexByte(string(p.line), '\n') + 1
	var out strings.Builder
	for line := range strings.Lines(string(p.line[:whole])) {
		out.WriteString(format.Clean(strings.TrimSuffix(line, "\n")) + "\n")
	}
	p.line = append(p.line[:0], p.line[whole:]...)
	if _, err := io.WriteString(p.to, out.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// end writes the last line if it has no line break.
func (p *printableLines) end() { _, _ = io.WriteString(p.to, format.Clean(string(p.line))) }

func lsCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use: "ls [PATH]", Short: "List a directory of the machine", Long: "List the readable entries of a directory of the machine (default: /). " + filesHelp,
		Annotations: calls(api.Machine_ListFiles_FullMethodName),
		Args:        cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Machine.ListFiles(ctx, &api.ListFilesRequest{Path: path.Clean("/" + first(args))})
				if err != nil {
					return err
				}
				if answer.Truncated {
					defer ios.Errorln(fmt.Sprintf("there are more entries than these %d", len(answer.Entries)))
				}
				return ios.Print(answer, func(w *tabwriter.Writer) { filesTable(w, answer.Entries) })
			})
		},
	}
}

func filesTable(w *tabwriter.Writer, entries []*api.FileEntry) {
	iostreams.Row(w, "MODE", "SIZE", "MODIFIED", "NAME")
	for _, e := range entries {
		name := format.Clean(e.Name)
		if e.Target != "" {
			name += " -> " + format.Clean(e.Target)
		}
		iostreams.Row(w, e.Mode, strconv.FormatInt(e.Size, 10), format.Stamp(e.Modified), name)
	}
}
