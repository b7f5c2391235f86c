package audit

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Checkpoint identifies a line of a record by its number and digest, "4711:8f43…".
type Checkpoint struct {
	Number uint64
	Digest string // of the line, lower-case hexadecimal
}

func (m Checkpoint) String() string { return fmt.Sprintf("%d:%s", m.Number, m.Digest) }

// ParseCheckpoint parses the output of Checkpoint.String.
func ParseCheckpoint(text string) (Checkpoint, error) {
	var m Checkpoint
	if n, err := fmt.Sscanf(text, "%d:%64s", &m.Number, &m.Digest); n != 2 || err != nil || m.String() != text || strings.Trim(m.Digest, "0123456789abcdef") != "" || len(m.Digest) != 64 {
		return Checkpoint{}, fmt.Errorf("%q is not a checkpoint of a record, for example 4711:8f43…", text)
	}
	return m, nil
}

// Chain verifies the lines of a record in order.
type Chain struct {
	First, Last Checkpoint // first and last verified line; zero before the first Check
	// Want is a line that the record must contain unchanged; zero: no such line.
	Want Checkpoint
	// Record is the name of the record that the lines must belong to.
	Record string
	seen   bool
}

// Check verifies the next line. The error names the changed line.
func (c *Chain) Check(line []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("the line after %d cannot be read: %w", c.Last.Number, err)
	}
	mark := Checkpoint{e.Number, digestOf(line)}
	switch {
	case e.Record != c.Record:
		return e, fmt.Errorf("line %d belongs to another record (%q)", e.Number, e.Record)
	case c.Last == (Checkpoint{}):
		c.First = mark
		if e.Number == 1 && e.PreviousDigest != "" || e.Number == 0 {
			return e, fmt.Errorf("line %d is not the beginning of a record", e.Number)
		}
	case e.Number != c.Last.Number+1:
		return e, fmt.Errorf("line %d is followed by line %d: lines are missing", c.Last.Number, e.Number)
	case e.PreviousDigest != c.Last.Digest:
		return e, fmt.Errorf("line %d does not match the digest in line %d: it was changed", c.Last.Number, e.Number)
	}
	if c.Want.Number == e.Number {
		if c.Want != mark {
			return e, fmt.Errorf("line %d does not match the checkpoint: the record was rewritten", e.Number)
		}
		c.seen = true
	}
	c.Last = mark
	return e, nil
}

// End is called after the last line. It returns nil if the record contained the line Want, and
// otherwise an error that says whether the record ends before this line or begins after it.
func (c *Chain) End() error {
	switch {
	case c.Want == (Checkpoint{}) || c.seen:
		return nil
	case c.Last.Number < c.Want.Number:
		return fmt.Errorf("the record ends with line %d, and the checkpoint is line %d: the end is missing", c.Last.Number, c.Want.Number)
	}
	return fmt.Errorf("the record begins with line %d, and the checkpoint is line %d: it is too old to be verified", c.First.Number, c.Want.Number)
}
