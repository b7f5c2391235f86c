package supervise

import (
	"regexp"
)

// dying matches the first line of a fatal error of a Go program: klog's fatal line ("F1123
// 19:57:45.890726"), the two forms of the runtime, and zap's JSON. Stacks and lines of other
// goroutines follow it.
var dying = regexp.MustCompile(`^(F\d{4} |panic: |fatal error: |\{"level":"(fatal|panic)")`)

// lastWords returns the part of the log that explains the end of a process, to be appended to its
// exit status; empty without lines.
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
