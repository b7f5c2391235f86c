package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// chunkSize is the number of bytes of an archive in a message; the API allows 1 MiB.
const chunkSize = 1 << 20

// importTimeout bounds an import. A slow machine unpacks an archive for minutes.
const importTimeout = 15 * time.Minute

func imageCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "List or import container images on the machine"}
	c.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the container images", Args: cobra.NoArgs,
			Annotations: calls(api.Image_List_FullMethodName),
			RunE: func(*cobra.Command, []string) error {
				return conn.Call(func(ctx context.Context, c *client.Client) error {
					answer, err := c.Image.List(ctx, &api.ListImagesRequest{})
					if err != nil {
						return err
					}
					return ios.Print(answer, func(w *tabwriter.Writer) { imagesTable(w, answer.Images) })
				})
			},
		},
		&cobra.Command{
			Use:         "import FILE|-",
			Annotations: calls(api.Image_Import_FullMethodName),
			Short:       "Store the images of an OCI or docker save archive on the machine",
			Args:        cobra.ExactArgs(1),
			RunE:        func(_ *cobra.Command, args []string) error { return importImage(ios, conn, args[0]) },
		},
	)
	return c
}

func imagesTable(w io.Writer, images []*api.ContainerImage) {
	iostreams.Row(w, "IMAGE", "DIGEST", "SIZE")
	for _, image := range images {
		iostreams.Row(w, image.Name, image.Digest, format.Size(image.Size))
	}
}

func importImage(ios *iostreams.Streams, conn *connect.Connector, name string) error {
	archive, total, err := openInput(ios, name)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }() // the file was only read
	return conn.CallFor(importTimeout, func(ctx context.Context, c *client.Client) error {
		stream, err := c.Image.Import(ctx)
		if err != nil {
			return err
		}
		progress := newProgress(ios, "sent", total)
		err = send(archive, progress, func(chunk []byte) error { return stream.Send(&api.ImportImageRequest{Chunk: chunk}) })
		if err != nil {
			return err
		}
		done := showWaiting(ios, "the machine verifies and unpacks the archive")
		answer, err := stream.CloseAndRecv()
		done()
		if err != nil {
			return err
		}
		return ios.Print(answer, func(w *tabwriter.Writer) { imagesTable(w, answer.Images) })
	})
}

// showWaiting shows the elapsed time of an operation until done is called. It updates the line on a
// terminal each second. Elsewhere it prints a line every 15 s.
func showWaiting(ios *iostreams.Streams, what string) (done func()) {
	const often, long = time.Second, 15 * time.Second
	_, terminal := ios.Terminal()
	step := long
	if terminal {
		step = often
	}
	began, end, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(step)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				errorSoFar(ios, terminal, what, now.Sub(began))
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		if terminal {
			_, _ = fmt.Fprint(ios.Err, "\r\x1b[K")
		}
	}
}

// errorSoFar writes the elapsed time of an operation to the error output.
func errorSoFar(ios *iostreams.Streams, terminal bool, what string, taken time.Duration) {
	line := fmt.Sprintf("%s: %s so far", what, taken.Round(time.Second))
	if terminal {
		_, _ = fmt.Fprint(ios.Err, "\r\x1b[K"+line)
		return
	}
	ios.Errorln(line)
}

// openInput opens the archive that a command reads, or the standard input for "-". It returns the
// size in bytes, or 0 if the size is unknown.
func openInput(ios *iostreams.Streams, name string) (file io.ReadCloser, size int64, err error) {
	if name == "-" {
		return io.NopCloser(ios.In), 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, exit.Usagef("image: cannot read: %w", err)
	}
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	return f, size, nil
}

// send copies a file into a stream, chunk by chunk. If the machine ends the stream early, send
// returns nil, and CloseAndRecv of the stream returns the reason.
func send(file io.Reader, progress func(int64), stream func(chunk []byte) error) error {
	buffer, sent := make([]byte, chunkSize), int64(0)
	for {
		n, err := io.ReadFull(file, buffer)
		if n > 0 {
			sending := stream(buffer[:n])
			if errors.Is(sending, io.EOF) {
				return nil
			}
			if sending != nil {
				return sending
			}
			sent += int64(n)
			progress(sent)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the file: %w", err)
		}
	}
}

// newProgress returns a function that shows the progress of a transfer. did is the verb ("sent").
// total is the size in bytes, or 0 if it is unknown. On a terminal, the function replaces its line,
// and clears the line at the end. Elsewhere it prints a line each progressInterval.
func newProgress(ios *iostreams.Streams, did string, total int64) func(bytes int64) {
	_, terminal := ios.Terminal()
	return progressOn(ios, terminal, did, total)
}

// progressInterval is the interval of lines about a transfer without a terminal.
const progressInterval = 15 * time.Second

func progressOn(ios *iostreams.Streams, terminal bool, did string, total int64) func(bytes int64) {
	last := time.Now()
	return func(bytes int64) {
		line := did + " " + format.Size(bytes)
		if total > 0 {
			line = fmt.Sprintf("%s of %s (%d%%)", line, format.Size(total), bytes*100/total)
		}
		switch now := time.Now(); {
		case terminal && bytes == total:
			_, _ = fmt.Fprint(ios.Err, "\r\x1b[K")
		case terminal:
			_, _ = fmt.Fprint(ios.Err, "\r\x1b[K"+line)
		case now.Sub(last) >= progressInterval:
			last = now
			ios.Errorln(line)
		}
	}
}
