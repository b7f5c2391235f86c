// Package progress tells how much of something long was done, often enough for people and no more
// often.
package progress

import (
	"io"
	"time"
)

// every is how often progress is told.
const every = 500 * time.Millisecond

// Writer passes what is written on to w, and tells done how many bytes that were in all.
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
	if now := time.Now(); now.Sub(c.last) > every {
		c.last = now
		c.done(c.n)
	}
	return n, err
}
