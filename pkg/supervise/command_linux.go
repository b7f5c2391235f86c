package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// MaxOutput is the size of the retained end of a command's output, in bytes.
const MaxOutput = 256 << 10

// Command is a program that runs once.
type Command struct {
	Args  []string   // the executable's absolute path and its arguments
	Env   []string   // PATH and LC_ALL=C if nil
	Dir   string     // "/" when empty
	Stdin []byte     // its standard input
	UID   uint32     // user and group; unless root, it cannot gain privileges
	Files []*os.File // file descriptors from 3 on
	// standard error is not part of the output, only of an ExitError
	SeparateStderr bool
	// output limit in bytes, after which the command is killed; 0: no limit, but only the last
	// MaxOutput bytes are retained
	MaxOutput int
	Nice      int // niceness
	// KillFirst makes the kernel kill it before all other processes when memory runs out.
	KillFirst bool
}

// ErrTooMuch is returned when a command exceeds Command.MaxOutput.
var ErrTooMuch = errors.New("exceeded the output limit")

// Run runs a program until it exits, and returns its standard output and error (the last 256 KiB).
// args are the absolute path of the executable and its arguments. If the context ends first, Run
// kills the program and its children. A nonzero status is an error, an *ExitError with the last
// lines of the output.
func (r *Reaper) Run(ctx context.Context, args ...string) ([]byte, error) {
	return r.RunCommand(ctx, Command{Args: args})
}

// Parser returns a function that runs a command that parses untrusted content, each time with
// another standard input, other files and another limit of the output in bytes. The standard error
// is not part of the output, and the kernel kills the command first when memory runs out. The error
// for a nonzero status does not contain the output, which may contain text of the content.
func (r *Reaper) Parser(c Command) func(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error) {
	c.SeparateStderr, c.KillFirst = true, true
	return func(ctx context.Context, question []byte, files []*os.File, most int) ([]byte, error) {
		next := c
		next.Stdin, next.Files, next.MaxOutput = question, files, most
		text, err := r.RunCommand(ctx, next)
		if exit := (*ExitError)(nil); errors.As(err, &exit) {
			return nil, errors.New("its process " + exit.Exit.String())
		}
		return text, err
	}
}

// RunCommand is like Run, with all options of Command.
func (r *Reaper) RunCommand(ctx context.Context, c Command) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: cannot run: %w", strings.Join(c.Args, " "), err)
	}
	if c.Env == nil {
		c.Env = []string{"PATH=/usr/sbin:/usr/bin", "LC_ALL=C"}
	}
	spec := Spec{Args: c.Args, Env: c.Env, Dir: c.Dir, UID: c.UID, GID: c.UID, NoNewPrivs: c.UID != 0, Nice: c.Nice}
	files := Files{Extra: c.Files}
	if c.KillFirst {
		spec.OOMScoreAdj = new(1000)
	}
	output, err := newCapture(c.MaxOutput)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot run: %w", strings.Join(c.Args, " "), err)
	}
	defer output.close()
	files.Output = output.writer
	complaints := output
	if c.SeparateStderr {
		if complaints, err = newCapture(0); err != nil {
			return nil, fmt.Errorf("%s: cannot run: %w", strings.Join(c.Args, " "), err)
		}
		defer complaints.close()
		files.Errors = complaints.writer
	}
	if c.Stdin != nil {
		if files.Stdin, err = safefile.InMemory("stdin", c.Stdin); err != nil {
			return nil, fmt.Errorf("%s: cannot run: %w", strings.Join(c.Args, " "), err)
		}
		defer files.Stdin.Close()
	}
	p, err := r.Start(spec, files)
	if err != nil {
		return nil, err
	}
	output.begin()
	if c.SeparateStderr {
		complaints.begin()
	}
	tooMuch := false
	select {
	case <-p.Done():
	case <-output.over:
		tooMuch = true
	case <-ctx.Done():
	}
	if tooMuch || ctx.Err() != nil {
		err = errors.Join(err, p.Signal(unix.SIGKILL, true))
		<-p.Done()
	}
	text := output.end()
	said := text
	if c.SeparateStderr {
		said = complaints.end()
	}
	if tooMuch || c.MaxOutput > 0 && len(text) > c.MaxOutput {
		return nil, fmt.Errorf("%s: %w (%d bytes)", strings.Join(c.Args, " "), ErrTooMuch, c.MaxOutput)
	}
	if ctx.Err() != nil {
		return text, fmt.Errorf("%s: was killed: %w", strings.Join(c.Args, " "), errors.Join(ctx.Err(), err))
	}
	if !p.Exit().OK() {
		return text, &ExitError{Args: c.Args, Exit: p.Exit(), Output: lastLines(string(said), 5)}
	}
	return text, nil
}

// capture is a pipe for the output of a program, and the received output.
type capture struct {
	reader, writer *os.File
	most           int           // limit in bytes; 0: none
	over           chan struct{} // closed when the output exceeds the limit
	text           chan []byte
}

func newCapture(most int) (*capture, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &capture{reader: reader, writer: writer, most: most, over: make(chan struct{}), text: make(chan []byte, 1)}, nil
}

// begin starts to read. The program has inherited the write end of the pipe by now.
func (c *capture) begin() {
	c.writer.Close()
	go func() {
		var text []byte
		_ = panics.Do("output of a program", func() (err error) { // an error ends the output
			text, err = c.read()
			return err
		})
		c.text <- text
	}()
}

// read reads the output to its end or beyond the limit.
func (c *capture) read() ([]byte, error) {
	if c.most == 0 {
		return readEnd(c.reader, MaxOutput), nil
	}
	text, err := io.ReadAll(io.LimitReader(c.reader, int64(c.most)+1))
	if len(text) > c.most {
		close(c.over)
	}
	return text, err
}

// end returns the output after the exit of the program. A child of the program may hold the pipe
// open forever: end does not wait for its later output.
func (c *capture) end() []byte {
	_ = c.reader.SetReadDeadline(time.Now().Add(time.Second))
	return <-c.text
}

func (c *capture) close() {
	c.writer.Close() // fails if the program was started, because it is already closed
	c.reader.Close()
}

// ExitError is returned for a command that exited with a nonzero status, or by a signal.
type ExitError struct {
	Args   []string
	Exit   Exit
	Output string // last lines of the output
}

// Error returns "/usr/sbin/mke2fs -t ext4 /dev/vda4: ended with status 1: the last lines".
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: %s", strings.Join(e.Args, " "), e.Exit)
	if e.Output != "" {
		text += ": " + e.Output
	}
	return text
}

// readEnd reads until r ends or fails and returns the last limit bytes.
func readEnd(r io.Reader, limit int) []byte {
	var text []byte
	buffer := make([]byte, 4096)
	for {
		n, err := r.Read(buffer)
		text = append(text, buffer[:n]...)
		if len(text) > 2*limit {
			text = append(text[:0], text[len(text)-limit:]...)
		}
		if err != nil {
			return text[max(0, len(text)-limit):]
		}
	}
}

// lastLines joins the last n lines of a text by "; ".
func lastLines(text string, n int) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
