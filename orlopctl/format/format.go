// Package format formats values for tables and messages. It does not handle the output formats:
// iostreams does that.
package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Clean sanitizes a text for a terminal. The text can come from a certificate or an untrusted
// request.
func Clean(text string) string { return sanitize.Text(text) }

// CleanLines sanitizes each line of a text.
func CleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Clean(line)
	}
	return strings.Join(lines, "\n")
}

// Count returns a number with its noun: "1 key", "2 keys".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Size formats a number of bytes: "4 KiB", "1.5 MiB", "20.0 GiB". It returns "-" for 0.
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

// Age formats the time since at: "12s", "5m", "3h", "9d". It returns "-" if at is unknown.
func Age(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return ShortDuration(time.Since(at.AsTime()))
}

// ShortDuration formats a duration with a single unit: "12s", "5m", "3h", "9d".
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

// Stamp formats the time of a log line in UTC with milliseconds. It returns "-" if the time is
// unknown.
func Stamp(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().UTC().Format("2006-01-02T15:04:05.000Z")
}

// OrDash returns the text, or "-" if the text is empty.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
