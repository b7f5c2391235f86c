package logship

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
	Source string // what its number is counted in: "audit", "services/apid"
	// the start of the machine from which its number is counted; empty: numbers go on over starts
	Boot   string
	Number uint64 // grows by one from line to line, from 1; the same when the line is sent again
	Time   time.Time
	// Facility and Severity are syslog's (RFC 5424, 6.2.1): 0 to 23 and 0 (emergency) to 7 (debug).
	Facility, Severity int
	App                string // who wrote it: "apid", "kernel"
	Kind               string // what sort of line it is: "log", "failure"
	Text               string // without the end of the line; may hold line breaks
	// Missed is above 0 in a line that this package makes: so many up to this number are not kept
	// any more.
	Missed uint64
}

// severities are syslog's names of 0 to 7.
var severities = [8]string{"emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"}

// JSON is a line as a JSON object on a line of its own.
func JSON(machine string, l Record) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	// Nothing of this fails to be encoded: what is not UTF-8 in a text becomes U+FFFD.
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

// Syslog is a line as a message of RFC 5424 behind its length in octets, as RFC 5425 (4.3) wants
// it. The number stands in sequenceId (RFC 5424, 7.3.1), counted in what APP-NAME and PROCID name
// together; PROCID, of which a change means that something was interrupted (6.2.6), is the start of
// the machine. The text follows as it is, without a byte order mark, so that it may be compared.
func Syslog(machine string, l Record) []byte {
	const highest = 1<<31 - 1 // of sequenceId, after which it begins at 1 again
	message := fmt.Sprintf(`<%d>1 %s %s %s %s %s [meta sequenceId="%d"] %s`,
		l.Facility<<3|l.Severity&7, l.Time.UTC().Format("2006-01-02T15:04:05.000000Z"),
		field(machine, 255), field(l.App, 48), field(l.Boot, 128), field(l.Kind, 32), (l.Number-1)%highest+1, l.Text)
	return append(strconv.AppendInt(nil, int64(len(message)), 10), " "+message...)
}

// field makes a field of a message's head of a text: printable ASCII without blanks, at most so
// long; "-" for none.
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
