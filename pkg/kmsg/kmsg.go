// Package kmsg reads the kernel's log.
//
// See Documentation/ABI/testing/dev-kmsg. The kernel keeps the log, numbers it and drops the
// oldest; this package keeps nothing.
package kmsg

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Record is one record of the kernel's log.
type Record struct {
	Priority int           // syslog(3): 0 emergency to 7 debug
	Facility int           // 0 kernel; others: a program wrote it
	Seq      uint64        // grows by one with each record
	At       time.Duration // since the kernel began, by a clock that stands still in suspend
	Text     string        // may have several lines
}

var errForm = errors.New("not a record of the kernel's log")

// Parse understands what one read of /dev/kmsg returns: "6,339,5140900,-;text", with further lines
// that begin with a blank and name the device. Characters that are not printable come as \x1b and
// are left so: nobody's terminal is at stake.
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
	text, _, _ = strings.Cut(text, "\n") // what follows is the dictionary
	return Record{
		Priority: int(level & 7), Facility: int(level >> 3), Seq: seq,
		At: time.Duration(usec) * time.Microsecond, Text: strings.ReplaceAll(text, `\x0a`, "\n"),
	}, nil
}
