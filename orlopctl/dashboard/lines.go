package dashboard

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

const (
	// keptLines is how many lines of a log, and how many events, can be gone back to: what a
	// machine keeps of its events.
	keptLines = 1000
	// maxLine bounds a line, in bytes: as many as fill a large screen.
	maxLine = 16 << 10
)

// lines is a text that grows at its end, and the place in it that is looked at: the end, or a line
// that stays on top.
type lines struct {
	kept []line
	held bool // top stays where it is; otherwise the end is shown
	top  int  // the first line that is shown
}

type line struct {
	text string
	tone tone
}

// add is the text with one more line. The oldest goes when there are too many.
func (l lines) add(next line) lines {
	next.text = next.text[:min(len(next.text), maxLine)]
	drop := max(0, len(l.kept)+1-keptLines)
	kept := make([]line, 0, len(l.kept)+1-drop)
	l.kept = append(append(kept, l.kept[drop:]...), next)
	l.top = max(0, l.top-drop)
	return l
}

// move goes down by so many lines, or up, in a window of this size. At the end it stays at the end.
func (l lines) move(by, width, height int) lines {
	last := l.first(width, height)
	if !l.held {
		l.top = last
	}
	l.top = max(0, l.top+by)
	l.held = l.top < last
	return l
}

// first is the first line that is at least in part in a window that shows the end.
func (l lines) first(width, height int) int {
	i := len(l.kept)
	for rows := 0; i > 0 && rows < height; {
		i--
		rows += len(wrap(l.kept[i].text, width))
	}
	return i
}

// draw is what a window of this size shows: at most height rows.
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

// wrap is a text as rows of at most width cells, without what is not printable.
func wrap(text string, width int) []string {
	return strings.Split(ansi.Hardwrap(sanitize.Text(text), width, true), "\n")
}

// prose is wrap between words.
func prose(text string, width int) []string {
	return strings.Split(ansi.Wrap(sanitize.Text(text), width, ""), "\n")
}

// fit is a text in at most width cells, cut with a mark, without what is not printable.
func fit(text string, width int) string {
	return ansi.Truncate(sanitize.Text(text), max(0, width), "…")
}

// pad is fit with blanks up to the width.
func pad(text string, width int) string {
	text = fit(text, width)
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}
