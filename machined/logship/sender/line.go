package sender

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Record is one line of a source.
type Record struct {
	Source string // scope of Number: "audit", "services/apid"
	// the boot in which Number is counted; empty if the numbers continue over boots
	Boot   string
	Number uint64 // increases by 1 with each line, from 1; unchanged when the line is sent again
	Time   time.Time
	// Facility and Severity are syslog codes (RFC 5424, 6.2.1): 0 to 23, and 0 (emergency) to 7
	// (debug).
	Facility, Severity int
	App                string // the writer: "apid", "kernel"
	Kind               string // kind of the line: "log", "failure"
	Text               string // without the newline at the end; may contain line breaks
	// Missed is positive only in a line that this package adds. It is the number of lost lines; the
	// last of them had this Number.
	Missed uint64
}

// severities are the syslog names of 0 to 7.
var severities = [8]string{"emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"}

// JSON returns a line as a JSON object with a newline.
func JSON(machine string, l Record) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	// The encoding cannot fail: bytes that are not UTF-8 become U+FFFD.
	_ = e.Encode(struct {
		Machine  string    `json:"machine"`
		Boot     string    `json:"boot,omitempty"`
		Source   string    `json:"source"`
		Number   uint64    `json:"number"`
		Time     time.Time `json:"time"`
		Severity string    `json:"severity"`
		Kind     string    `json:"kind"`
		Missed   uint64    `json:"missed,omitempty"`
		Text     string    `json:"text"`
	}{machine, l.Boot, l.Source, l.Number, l.Time.UTC(), severities[l.Severity&7], l.Kind, l.Missed, l.Text})
	return out.Bytes()
}

// Syslog returns a line as an RFC 5424 message after its length in octets (RFC 5425, 4.3). The
// number is in sequenceId (RFC 5424, 7.3.1), which is counted per APP-NAME and PROCID. PROCID is
// the boot; a change of PROCID indicates an interruption (6.2.6). The text follows unchanged,
// without a byte order mark, so that it can be compared.
func Syslog(machine string, l Record) []byte {
	const highest = 1<<31 - 1 // maximum of sequenceId, after which it restarts at 1
	message := fmt.Sprintf(`<%d>1 %s %s %s %s %s [meta sequenceId="%d"] %s`,
		l.Facility<<3|l.Severity&7, l.Time.UTC().Format("2006-01-02T15:04:05.000000Z"),
		field(machine, 255), field(l.App, 48), field(l.Boot, 128), field(l.Kind, 32), (l.Number-1)%highest+1, l.Text)
	return append(strconv.AppendInt(nil, int64(len(message)), 10), " "+message...)
}

// field converts a text to a header field: printable ASCII without blanks, cut to most bytes; "-"
// if empty.
func field(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	if text == "" {
		return "-"
	}
	return text[:min(len(text), most)]
}
