// Package kmsg reads the kernel log.
//
// See Documentation/ABI/testing/dev-kmsg. The kernel stores and numbers the records, and drops the
// oldest records when its buffer is full; this package stores nothing.
package kmsg

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Record is a record of the kernel log.
type Record struct {
	Priority int           // syslog(3): 0 emergency to 7 debug
	Facility int           // 0: written by the kernel; others: written by a program
	Seq      uint64        // increases by 1 with each record
	At       time.Duration // time since the kernel started, without times of suspend
	Text     string        // may have several lines
}

var errForm = errors.New("not a record of the kernel's log")

// Parse parses the result of a read of /dev/kmsg: "6,339,5140900,-;text", followed by lines that
// begin with a blank and name the device. The kernel escapes unprintable characters in the form
// \x1b. Parse decodes only newlines, so that the text is safe for a terminal.
func Parse(data string) (Record, error) {
	head, text, ok := strings.Cut(data, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return Record{}, errForm
	}
	level, err1 := strconv.ParseUint(fields[0], 10, 16)
	seq, err2 := strconv.ParseUint(fields[1], 10, 64)
	usec, err3 := strconv.ParseInt(fields[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return Record{}, errForm
	}
	text, _, _ = strings.Cut(text, "\n") // the lines that name the device follow
	return Record{
		Priority: int(level & 7), Facility: int(level >> 3), Seq: seq,
		At: time.Duration(usec) * time.Microsecond, Text: strings.ReplaceAll(text, `\x0a`, "\n"),
	}, nil
}
