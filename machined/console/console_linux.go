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

// active is where the kernel lists the consoles that it writes to
// (Documentation/ABI/testing/sysfs-tty).
const active = "/sys/class/tty/console/active"

// keptLines is how many lines a serial line may be behind before some are left out.
const keptLines = 512

// Console is all of the machine's consoles.
type Console struct {
	status *cell.Cell[Status]
	report func(error)
	lines  []chan string // one for each serial line
	screen []string      // paths of screens
	serial []string      // paths of serial lines
}

// Open finds the consoles. report is told of consoles that cannot be used, and must not write to a
// console.
func Open(status *cell.Cell[Status], report func(error)) (*Console, error) {
	text, err := os.ReadFile(active)
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
			c.lines = append(c.lines, make(chan string, keptLines))
		}
	}
	return c
}

// isScreen tells a virtual terminal (tty0, tty1) from ttyS0, ttyAMA0, hvc0.
func isScreen(name string) bool {
	number, ok := strings.CutPrefix(name, "tty")
	return ok && strings.Trim(number, "0123456789") == ""
}

// Line adds a line to the timeline on the serial lines. It never blocks: a serial line that is far
// behind leaves it out.
func (c *Console) Line(text string) {
	for _, lines := range c.lines {
		select {
		case lines <- "orlop: " + clean(text):
		default:
		}
	}
}

// Run shows the status until the context ends.
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
	defer context.AfterFunc(ctx, func() { f.Close() })() // ends a Write that hangs
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
		// console_codes(4): no cursor; home; each line cleared to its end as it is written, so that
		// nothing flickers; the rest of the screen cleared.
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
	// K_OFF: keys produce nothing, Ctrl-Alt-Del neither (k_spec in drivers/tty/vt/keyboard.c)
	keyboardOff = 0x04
)

// openTTY opens a terminal without making it anyone's controlling terminal, and takes its input
// away: no echo, no signals, no receiver, no keyboard. What cannot be taken away (a console without
// a receiver of its own) is nobody's to read. Output waits for no handshake lines.
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
			return // no terminal but a console all the same (netconsole, a test's pipe)
		}
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		t.Iflag &^= unix.IXON | unix.IXOFF | unix.IXANY
		t.Cflag &^= unix.CREAD | unix.CRTSCTS | unix.HUPCL
		t.Cflag |= unix.CLOCAL
		_ = unix.IoctlSetTermios(int(fd), unix.TCSETS, t)
		_ = unix.IoctlSetInt(int(fd), kdSetKeyboardMode, keyboardOff) // only screens know it
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("console %s: cannot set up: %w", path, err), f.Close())
	}
	return f, nil
}

// size asks a screen for its size in characters; 80 by 25 when it does not know.
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
