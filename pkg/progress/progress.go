// Package progress reports the progress of a long transfer at a rate suited to people.
package progress

import (
	"io"
	"time"
)

// reportInterval is the minimum interval between reports.
const reportInterval = 500 * time.Millisecond

// Writer forwards writes to w, and calls done with the total number of bytes.
func Writer(w io.Writer, done func(bytes int64)) io.Writer { return &writer{to: w, done: done} }

type writer struct {
	to   io.Writer
	n    int64
	last time.Time
	done func(int64)
}

func (c *writer) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	if now := time.Now(); now.Sub(c.last) > reportInterval {
		c.last = now
		c.done(c.n)
	}
	return n, err
}
