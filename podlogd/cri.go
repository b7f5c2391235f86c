package podlogd

import (
	"bytes"
	"time"
)

// maxText is the largest size of the text of a record, in bytes. A longer line becomes several
// records.
const maxText = 64 << 10

// entry is a line in a log file of the container runtime interface: "TIME STREAM TAGS TEXT".
type entry struct {
	at      time.Time
	stderr  bool
	partial bool // the text continues in the next entry of the stream
	text    []byte
}

// parse parses a line of a log file. ok is false if the line is no valid entry.
func parse(line []byte) (e entry, ok bool) {
	stamp, rest, _ := bytes.Cut(line, []byte(" "))
	stream, rest, _ := bytes.Cut(rest, []byte(" "))
	tags, text, more := bytes.Cut(rest, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || !more && len(tags) == 0 {
		return entry{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte(":")) // the format permits further tags, which are ignored
	switch string(stream) {
	case "stdout", "stderr":
	default:
		return entry{}, false
	}
	if string(tag) != "P" && string(tag) != "F" {
		return entry{}, false
	}
	return entry{at: at, stderr: stream[3] == 'e', partial: tag[0] == 'P', text: text}, true
}

// stamp returns the time at the beginning of a log file, as text. The text identifies the file even
// after the kubelet has renamed or compressed it. stamp returns "" if the file does not begin with
// a time.
func stamp(start []byte) string {
	text, _, more := bytes.Cut(start, []byte(" "))
	if _, err := time.Parse(time.RFC3339Nano, string(text)); err != nil || !more {
		return ""
	}
	return string(text)
}
