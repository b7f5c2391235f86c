package supervise

import (
	"regexp"

	"github.com/orlop-os/orlop/pkg/logring"
)

// dying is what a program of Go says when it gives up: a fatal line of klog ("F1123
// 19:57:45.890726"), the runtime's own two, and what zap writes as JSON. Other goroutines' lines
// and stacks come behind it.
var dying = regexp.MustCompile(`^(F\d{4} |panic: |fatal error: |\{"level":"(fatal|panic)")`)

// lastWords is what a process with these lines says of its end, to be added to how it ended; empty
// without lines.
func lastWords(lines []logring.Line) string {
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
