package transfer

import (
	"io"
	"time"
)

// reportInterval is the minimum time between two reports.
const reportInterval = 500 * time.Millisecond

// ProgressWriter returns a writer that forwards writes to w. It calls the function done with the
// number of bytes so far: after the first write, and then at most once in each reportInterval. The
// last call can therefore miss the end of the data.
func ProgressWriter(w io.Writer, done func(bytes int64)) io.Writer {
	return &progressWriter{to: w, done: done}
}

type progressWriter struct {
	to   io.Writer
	n    int64
	last time.Time
	done func(int64)
}

func (c *progressWriter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	if now := time.Now(); now.Sub(c.last) > reportInterval {
		c.last = now
		c.done(c.n)
	}
	return n, err
}
