package dashboard

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

const (
	// keptLines is the number of retained log lines, and of retained events, per machine. A machine
	// retains the same number of events.
	keptLines = 1000
	// maxLine bounds a line, in bytes. A line of this length fills a large screen.
	maxLine = 16 << 10
)

// lines is a text that grows at its end. Its scroll position is either the end, or a line that
// stays at the top of the window.
type lines struct {
	kept []line
	held bool // top is fixed; otherwise the end is shown
	top  int  // the first visible line
}

type line struct {
	text string
	tone tone
}

// add returns the text with another line. It drops the oldest line beyond keptLines.
func (l lines) add(next line) lines {
	next.text = next.text[:min(len(next.text), maxLine)]
	drop := max(0, len(l.kept)+1-keptLines)
	kept := make([]line, 0, len(l.kept)+1-drop)
	l.kept = append(append(kept, l.kept[drop:]...), next)
	l.top = max(0, l.top-drop)
	return l
}

// move scrolls down by a number of lines, or up if by is negative. width and height are the size of
// the window. If the window reaches the end, it shows new lines as they arrive.
func (l lines) move(by, width, height int) lines {
	last := l.first(width, height)
	if !l.held {
		l.top = last
	}
	l.top = max(0, l.top+by)
	l.held = l.top < last
	return l
}

// first returns the number of the first visible line of a window that shows the end of the text.
func (l lines) first(width, height int) int {
	i := len(l.kept)
	for rows := 0; i > 0 && rows < height; {
		i--
		rows += len(wrap(l.kept[i].text, width))
	}
	return i
}

// draw returns the content of a window of this size: at most height rows.
func (l lines) draw(width, height int, paint func(tone, string) string) []string {
	top := l.top
	if !l.held {
		top = l.first(width, height)
	}
	var rows []string
	for i := top; i < len(l.kept) && (!l.held || len(rows) < height); i++ {
		for _, row := range wrap(l.kept[i].text, width) {
			rows = append(rows, paint(l.kept[i].tone, row))
		}
	}
	if over := len(rows) - height; over > 0 && !l.held {
		return rows[over:]
	}
	return rows[:min(len(rows), height)]
}

// wrap breaks a text into rows of at most width cells, and replaces unprintable characters.
func wrap(text string, width int) []string {
	return strings.Split(ansi.Hardwrap(sanitize.Text(text), width, true), "\n")
}

// prose does the same as wrap, but breaks rows between words.
func prose(text string, width int) []string {
	return strings.Split(ansi.Wrap(sanitize.Text(text), width, ""), "\n")
}

// fit returns a text of at most width cells, with unprintable characters replaced. The mark "…"
// shows that the text was cut.
func fit(text string, width int) string {
	return ansi.Truncate(sanitize.Text(text), max(0, width), "…")
}

// pad does the same as fit, and fills the text with blanks up to the width.
func pad(text string, width int) string {
	text = fit(text, width)
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}
