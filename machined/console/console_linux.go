package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/panics"
	"golang.org/x/sys/unix"
)

// activeConsoles is the file in which the kernel lists its consoles
// (Documentation/ABI/testing/sysfs-tty).
const activeConsoles = "/sys/class/tty/console/active"

// lineBuffer is the number of lines buffered for each serial line; further lines are dropped.
const lineBuffer = 512

// Console is the set of the machine's consoles.
type Console struct {
	status *cell.Cell[Status]
	report func(error)
	lines  []chan string // a channel per serial line
	screen []string      // paths of the screens
	serial []string      // paths of the serial lines
}

// Open finds the consoles. It passes errors of unusable consoles to report, which must not write to
// a console.
func Open(status *cell.Cell[Status], report func(error)) (*Console, error) {
	text, err := os.ReadFile(activeConsoles)
	if err != nil {
		return nil, fmt.Errorf("consoles: cannot list: %w", err)
	}
	return open(string(text), status, report), nil
}

func open(names string, status *cell.Cell[Status], report func(error)) *Console {
	c := &Console{status: status, report: report}
	for _, name := range strings.Fields(names) {
		if isScreen(name) {
			c.screen = append(c.screen, "/dev/"+name)
		} else {
			c.serial = append(c.serial, "/dev/"+name)
			c.lines = append(c.lines, make(chan string, lineBuffer))
		}
	}
	return c
}

// isScreen reports whether a console is a virtual terminal (tty0, tty1) and not a serial line
// (ttyS0, ttyAMA0, hvc0).
func isScreen(name string) bool {
	number, ok := strings.CutPrefix(name, "tty")
	return ok && strings.Trim(number, "0123456789") == ""
}

// Line adds a line to the timeline on the serial lines. It never blocks: a serial line with a full
// buffer drops the line.
func (c *Console) Line(text string) {
	for _, lines := range c.lines {
		select {
		case lines <- "orlop: " + clean(text):
		default:
		}
	}
}

// Run displays the status until the context ends.
func (c *Console) Run(ctx context.Context) {
	var all sync.WaitGroup
	for i, path := range c.serial {
		all.Go(panics.Guarded("console "+path, func() { c.runSerial(ctx, path, c.lines[i]) }))
	}
	for _, path := range c.screen {
		all.Go(panics.Guarded("console "+path, func() { c.runScreen(ctx, path) }))
	}
	all.Go(panics.Guarded("console", func() {
		before := Status{}
		for watch := c.status.Watch(); ; {
			after, _, err := watch.Next(ctx)
			if err != nil {
				return
			}
			for _, line := range Changes(before, after) {
				c.Line(line)
			}
			before = after
		}
	}))
	all.Wait()
}

func (c *Console) runSerial(ctx context.Context, path string, lines <-chan string) {
	f, err := openTTY(path)
	if err != nil {
		c.report(err)
		return
	}
	defer context.AfterFunc(ctx, func() { f.Close() })() // unblocks a Write that hangs
	defer f.Close()
	for {
		select {
		case line := <-lines:
			if _, err := f.WriteString(line + "\r\n"); err != nil && ctx.Err() == nil {
				c.report(fmt.Errorf("console %s: cannot write: %w", path, err))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *Console) runScreen(ctx context.Context, path string) {
	f, err := openTTY(path)
	if err != nil {
		c.report(err)
		return
	}
	defer context.AfterFunc(ctx, func() { f.Close() })()
	defer f.Close()
	for watch := c.status.Watch(); ; {
		status, _, err := watch.Next(ctx)
		if err != nil {
			return
		}
		width, height := size(f)
		// console_codes(4): hide the cursor; move to the home position; clear each line to its end
		// while writing it, which avoids flicker; clear the rest of the screen.
		page := strings.ReplaceAll(Render(status, width, height), "\n", "\x1b[K\r\n")
		if _, err := f.WriteString("\x1b[?25l\x1b[H" + page + "\x1b[K\x1b[J"); err != nil {
			if ctx.Err() == nil {
				c.report(fmt.Errorf("console %s: cannot write: %w", path, err))
			}
			return
		}
	}
}

// From include/uapi/linux/kd.h.
const (
	kdSetKeyboardMode = 0x4B45 // KDSKBMODE
	// K_OFF: the keyboard produces no input, and Ctrl-Alt-Del has no effect (k_spec in
	// drivers/tty/vt/keyboard.c)
	keyboardOff = 0x04
)

// openTTY opens a terminal without making it a controlling terminal, and disables its input: no
// echo, no signals, no receiver, no keyboard. Even if the receiver cannot be disabled, no process
// reads the input. Output does not wait for handshake lines.
func openTTY(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("console: cannot open: %w", err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("console %s: cannot set up: %w", path, err), f.Close())
	}
	err = raw.Control(func(fd uintptr) {
		t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		if err != nil {
			return // a console that is not a terminal (netconsole, the pipe of a test)
		}
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		t.Iflag &^= unix.IXON | unix.IXOFF | unix.IXANY
		t.Cflag &^= unix.CREAD | unix.CRTSCTS | unix.HUPCL
		t.Cflag |= unix.CLOCAL
		_ = unix.IoctlSetTermios(int(fd), unix.TCSETS, t)
		_ = unix.IoctlSetInt(int(fd), kdSetKeyboardMode, keyboardOff) // only screens support it
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("console %s: cannot set up: %w", path, err), f.Close())
	}
	return f, nil
}

// size returns the size of a screen in characters; 80 by 25 if the screen does not report it.
func size(f *os.File) (width, height int) {
	width, height = 80, 25
	raw, err := f.SyscallConn()
	if err != nil {
		return width, height
	}
	_ = raw.Control(func(fd uintptr) {
		if w, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil && w.Col > 0 && w.Row > 0 {
			width, height = int(w.Col), int(w.Row)
		}
	})
	return width, height
}
