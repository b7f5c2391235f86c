package config

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

// FuzzParse parses arbitrary texts. Parse must not panic or take long. Every problem must have a
// reason and a position. An accepted text must have the same value after Marshal and Parse.
func FuzzParse(f *testing.F) {
	v := values(f)
	f.Add([]byte(Reference))
	files, err := filepath.Glob("testdata/bad-*.txtar")
	check(f, err)
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		check(f, err)
		for _, part := range archive.Files {
			if strings.HasSuffix(part.Name, ".yaml") {
				f.Add([]byte(expand(f, v, string(part.Data))))
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		begin := time.Now()
		c, problems := Parse("fuzz", data)
		if took := time.Since(begin); took > 5*time.Second {
			t.Fatalf("Parse took %s", took)
		}
		if (c == nil) == (len(problems) == 0) {
			t.Fatalf("Parse returned both a configuration and problems, or neither: %v", problems)
		}
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 1
		for _, p := range problems {
			if p.Reason == "" || p.File != "fuzz" || p.Line < 0 || p.Line > lines+1 || strings.ContainsAny(p.String(), "\n\r\x1b") {
				t.Fatalf("a problem without a reason or a valid position, or with a control character: %+v", p)
			}
		}
		if c == nil {
			return
		}
		printed := Marshal(c)
		again, problems := Parse("printed", printed)
		if len(problems) > 0 {
			t.Fatalf("Parse rejects the output of Marshal:\n%s\n%s", problems, printed)
		}
		if changes := Changes(c, again); len(changes) > 0 || !bytes.Equal(printed, Marshal(again)) {
			t.Fatalf("the output of Marshal has another value: %q\n%s", changes, printed)
		}
	})
}
