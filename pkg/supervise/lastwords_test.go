package supervise

import "testing"

func TestLastWords(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{nil, ""},
		{[]string{"begins", "cannot open the book"}, ", last line: cannot open the book"},
		{[]string{"begins", "F1123 19:57:45.1 hooks.go:203] hook failed", "I1123 19:57:45.8 stats.go:119] of no matter"}, ": F1123 19:57:45.1 hooks.go:203] hook failed"},
		{[]string{"panic: no such page", "", "goroutine 1 [running]:", "\t/book.go:12 +0x1d"}, ": panic: no such page"},
		{[]string{"fatal error: concurrent map writes", "goroutine 7 [running]:"}, ": fatal error: concurrent map writes"},
		{[]string{`{"level":"fatal","msg":"cannot find the book"}`, "goroutine 7 [running]:"}, `: {"level":"fatal","msg":"cannot find the book"}`},
		{[]string{"Fine", `says {"level":"fatal"}`, "a panic: none"}, ", last line: a panic: none"},
	} {
		var lines []LogLine
		for _, l := range c.lines {
			lines = append(lines, LogLine{Text: l})
		}
		if got := lastWords(lines); got != c.want {
			t.Errorf("of %q: %q, want %q", c.lines, got, c.want)
		}
	}
}
