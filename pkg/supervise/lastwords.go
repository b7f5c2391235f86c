package supervise

import (
	"regexp"
)

// dying matches the first line of a fatal error of a Go program: the fatal line of klog ("F1123
// 19:57:45.890726"), the two forms of the Go runtime, and the JSON of zap. Stack traces and lines
// of other goroutines follow this line in the log.
var dying = regexp.MustCompile(`^(F\d{4} |panic: |fatal error: |\{"level":"(fatal|panic)")`)

// lastWords returns the log line that explains the exit of a process, with a separator before it,
// for use after the exit status. It is the first line that matches dying, or else the last line.
// The result is empty if there are no lines.
func lastWords(lines []LogLine) string {
	for _, l := range lines {
		if dying.MatchString(l.Text) {
			return ": " + l.Text
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return ", last line: " + lines[len(lines)-1].Text
}
