package podlogd

import (
	"bytes"
	"time"
)

// maxText is the maximum size of the text of a record in bytes. Longer lines arrive in parts.
const maxText = 64 << 10

// entry is a line of a log of the container runtime interface: "TIME STREAM TAGS TEXT".
type entry struct {
	at      time.Time
	stderr  bool
	partial bool // the text continues in the next entry of the stream
	text    []byte
}

// parse returns an entry; ok is false for another line.
func parse(line []byte) (e entry, ok bool) {
	stamp, rest, _ := bytes.Cut(line, []byte(" "))
	stream, rest, _ := bytes.Cut(rest, []byte(" "))
	tags, text, more := bytes.Cut(rest, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || !more && len(tags) == 0 {
		return entry{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte(":")) // further tags are for later versions
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

// stamp returns the time at the beginning of a file of entries in its written form, which
// identifies the file after it was renamed or compressed; empty for another file.
func stamp(start []byte) string {
	text, _, more := bytes.Cut(start, []byte(" "))
	if _, err := time.Parse(time.RFC3339Nano, string(text)); err != nil || !more {
		return ""
	}
	return string(text)
}
