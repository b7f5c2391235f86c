// Package format formats values for tables and messages. It knows no output format; that is the
// task of iostreams.
package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Clean sanitizes a text from a certificate or from an untrusted request for a terminal.
func Clean(text string) string { return sanitize.Text(text) }

// CleanLines sanitizes each line of a text.
func CleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Clean(line)
	}
	return strings.Join(lines, "\n")
}

// Count returns a number with its noun in the singular or the plural.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Size formats a number of bytes for people.
func Size(bytes int64) string {
	switch {
	case bytes <= 0:
		return "-"
	case bytes < 1<<20:
		return strconv.FormatInt((bytes+1023)>>10, 10) + " KiB"
	}
	if bytes >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// Age formats the time since at: "12s", "5m", "3h", "9d"; "-" if it is unknown.
func Age(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return ShortDuration(time.Since(at.AsTime()))
}

// ShortDuration formats a duration with one unit.
func ShortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Stamp formats the time of a log line: UTC, milliseconds.
func Stamp(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().UTC().Format("2006-01-02T15:04:05.000Z")
}

// OrDash returns a text, or "-" instead of an empty text.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
