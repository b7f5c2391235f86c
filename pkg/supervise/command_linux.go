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

// MaxOutput is the number of bytes that are retained of the end of a command's output if
// Command.MaxOutput is 0.
const MaxOutput = 256 << 10

// Command is a program that runs once.
type Command struct {
	Args  []string   // the executable's absolute path and its arguments
	Env   []string   // PATH and LC_ALL=C if nil
	Dir   string     // working directory; "/" if empty
	Stdin []byte     // standard input; /dev/null if nil
	UID   uint32     // user and group ID; any ID but 0 also sets no_new_privs
	Files []*os.File // file descriptors from 3 on
	// SeparateStderr removes the standard error from the returned output. Only ExitError then
	// contains the standard error.
	SeparateStderr bool
	// MaxOutput is the limit of the output in bytes; a command that exceeds it is killed. 0 means
	// no limit, and only the last 256 KiB (the constant MaxOutput) are retained.
	MaxOutput int
	Nice      int // -20 to 19
	// KillFirst makes the kernel kill this process before all others if memory runs out.
	KillFirst bool
}

// ErrTooMuch is returned when a command exceeds Command.MaxOutput.
var ErrTooMuch = errors.New("exceeded the output limit")

// Run runs a program until it exits. It returns the last 256 KiB of the standard output and the
// standard error together. args are the absolute path of the executable and its arguments. If the
// context ends first, Run kills the program with its process group and returns an error. For a
// nonzero exit status the error is an *ExitError with the last lines of the output.
func (r *Reaper) Run(ctx context.Context, args ...string) ([]byte, error) {
	return r.RunCommand(ctx, Command{Args: args})
}

// Parser returns a function that runs the command c, which parses untrusted content. Each call of
// the function has its own standard input, files, and limit of the output in bytes; the other
// options are the options of c. The kernel kills the command before all other processes if memory
// runs out. The function returns the standard output. For a nonzero exit status the error contains
// no output of the command, because the output may repeat the untrusted content.
func (r *Reaper) Parser(c Command) func(ctx context.Context, stdin []byte, files []*os.File, most int) ([]byte, error) {
	c.SeparateStderr, c.KillFirst = true, true
	return func(ctx context.Context, stdin []byte, files []*os.File, most int) ([]byte, error) {
		next := c
		next.Stdin, next.Files, next.MaxOutput = stdin, files, most
		text, err := r.RunCommand(ctx, next)
		if exit := (*ExitError)(nil); errors.As(err, &exit) {
			return nil, errors.New("its process " + exit.Exit.String())
		}
		return text, err
	}
}

// RunCommand is like Run, with the options of Command. If the output exceeds c.MaxOutput, it
// returns no output and ErrTooMuch.
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
	stderr := output
	if c.SeparateStderr {
		if stderr, err = newCapture(0); err != nil {
			return nil, fmt.Errorf("%s: cannot run: %w", strings.Join(c.Args, " "), err)
		}
		defer stderr.close()
		files.Errors = stderr.writer
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
		stderr.begin()
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
		said = stderr.end()
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

// capture is the pipe that receives the output of a program, and the received output.
type capture struct {
	reader, writer *os.File
	most           int           // limit in bytes; 0: none
	over           chan struct{} // closed when the output exceeds the limit
	text           chan []byte   // receives the output once, at its end
}

func newCapture(most int) (*capture, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &capture{reader: reader, writer: writer, most: most, over: make(chan struct{}), text: make(chan []byte, 1)}, nil
}

// begin starts to read. The caller has started the program, which has its own copy of the write
// end, so begin closes the write end here.
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

// read reads until the output ends or exceeds the limit. If the output exceeds the limit, read
// closes c.over.
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

// end returns the output. The caller calls it after the exit of the program. A child of the program
// may hold the pipe open for ever, so end waits at most a second for the end of the output.
func (c *capture) end() []byte {
	_ = c.reader.SetReadDeadline(time.Now().Add(time.Second))
	return <-c.text
}

func (c *capture) close() {
	c.writer.Close() // fails if the program was started, because it is already closed
	c.reader.Close()
}

// ExitError is returned for a command that exited with a nonzero status or was killed by a signal.
type ExitError struct {
	Args   []string
	Exit   Exit
	Output string // last lines of the output
}

// Error returns, for example, "/usr/sbin/mke2fs -t ext4 /dev/vda4: ended with status 1: the last
// lines".
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: %s", strings.Join(e.Args, " "), e.Exit)
	if e.Output != "" {
		text += ": " + e.Output
	}
	return text
}

// readEnd reads r until it ends or fails, and returns the last limit bytes.
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

// lastLines returns the last n lines of a text that are not empty, joined by "; ".
func lastLines(text string, n int) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
