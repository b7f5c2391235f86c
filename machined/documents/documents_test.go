package documents

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// content is a folder, file by file.
type content map[string]string

func (c content) write(t *testing.T) Store {
	t.Helper()
	s := Store{Dir: t.TempDir()}
	for name, text := range c {
		if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func contentOf(t *testing.T, s Store) content {
	t.Helper()
	list, err := os.ReadDir(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	c := content{}
	for _, e := range list {
		text, err := os.ReadFile(filepath.Join(s.Dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		c[e.Name()] = string(text)
	}
	return c
}

func TestStore(t *testing.T) {
	begin := func(s Store) error { _, _, err := s.Begin(); return err }
	try := func(s Store) error { return s.Try([]byte("new")) }
	put := func(s Store) error { return s.Put([]byte("new")) }
	for name, c := range map[string]struct {
		before content
		do     func(Store) error
		after  content
	}{
		"put the first":        {content{}, put, content{"current.yaml": "new"}},
		"put":                  {content{"current.yaml": "old"}, put, content{"current.yaml": "new"}},
		"put ends a trial":     {content{"current.yaml": "tried", "return.yaml": "old"}, put, content{"current.yaml": "new"}},
		"put leaves staged":    {content{"staged.yaml": "later"}, put, content{"current.yaml": "new", "staged.yaml": "later"}},
		"try":                  {content{"current.yaml": "old"}, try, content{"current.yaml": "new", "return.yaml": "old"}},
		"try another":          {content{"current.yaml": "tried", "return.yaml": "old"}, try, content{"current.yaml": "new", "return.yaml": "old"}},
		"try over the image's": {content{}, try, content{"current.yaml": "new", "return.yaml": ""}},
		"confirm":              {content{"current.yaml": "tried", "return.yaml": "old"}, Store.Confirm, content{"current.yaml": "tried"}},
		"confirm nothing":      {content{"current.yaml": "old"}, Store.Confirm, content{"current.yaml": "old"}},
		"return":               {content{"current.yaml": "tried", "return.yaml": "old"}, Store.Return, content{"current.yaml": "old"}},
		"return to the image":  {content{"current.yaml": "tried", "return.yaml": ""}, Store.Return, content{}},
		"return, cut between":  {content{"return.yaml": ""}, Store.Return, content{}},
		"return from nothing":  {content{"current.yaml": "old"}, Store.Return, content{"current.yaml": "old"}},
		"begin":                {content{"current.yaml": "old"}, begin, content{"current.yaml": "old"}},
		"begin after a trial":  {content{"current.yaml": "tried", "return.yaml": "old"}, begin, content{"current.yaml": "old"}},
		"begin, staged":        {content{"current.yaml": "old", "staged.yaml": "later"}, begin, content{"current.yaml": "later"}},
		"begin, both":          {content{"current.yaml": "tried", "return.yaml": "old", "staged.yaml": "later"}, begin, content{"current.yaml": "later"}},
		"drop staged":          {content{"current.yaml": "old", "staged.yaml": "later"}, Store.DropStaged, content{"current.yaml": "old"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.before.write(t)
			if err := c.do(s); err != nil {
				t.Fatal(err)
			}
			if got := contentOf(t, s); !maps.Equal(got, c.after) {
				t.Errorf("got %v, want %v", got, c.after)
			}
		})
	}
}

// TestCut starts a machine on each state that a power cut can leave between two steps of a change: it comes up with the documents before
// the change, or, where the change was all but reported, after it.
func TestCut(t *testing.T) {
	for name, c := range map[string]struct {
		left content
		want content
	}{
		"trial begun, not in force":      {content{"current.yaml": "old", "return.yaml": "old"}, content{"current.yaml": "old"}},
		"put over a trial, not ended":    {content{"current.yaml": "new", "return.yaml": "old"}, content{"current.yaml": "old"}},
		"returning to the image's":       {content{"return.yaml": ""}, content{}},
		"trial over the image's, begun":  {content{"return.yaml": ""}, content{}},
		"begun: returned and not staged": {content{"current.yaml": "old", "staged.yaml": "later"}, content{"current.yaml": "later"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.left.write(t)
			if _, _, err := s.Begin(); err != nil {
				t.Fatal(err)
			}
			if got := contentOf(t, s); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestLasting(t *testing.T) {
	for _, c := range []struct {
		have content
		want string
	}{
		{content{}, ""},
		{content{"current.yaml": "old"}, "old"},
		{content{"current.yaml": "tried", "return.yaml": "old"}, "old"},
		{content{"current.yaml": "tried", "return.yaml": ""}, ""},
	} {
		if got, err := c.have.write(t).Lasting(); err != nil || string(got) != c.want || (got == nil) != (c.want == "") {
			t.Errorf("%v: got %q, %v, want %q", c.have, got, err, c.want)
		}
	}
}

func TestHistory(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if e, err := s.Last(); err != nil || e.Number != 0 {
		t.Fatalf("empty: got %v, %v", e, err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	add := func(text string) {
		t.Helper()
		err := s.Add([]byte(text), "admin", at, func(before string) []string { return []string{before + " → " + text} })
		if err != nil {
			t.Fatal(err)
		}
	}
	add("a")
	add("b")
	add("b") // the same: nothing was put in force
	add("a")
	e, err := s.Entry(3)
	if err != nil || e.Documents != "a" || e.Changes[0] != "b → a" || e.By != "admin" || !e.At.Equal(at) {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := s.Entry(4); err == nil || !strings.Contains(err.Error(), "configuration 4: cannot find") {
		t.Errorf("got %v", err)
	}
	// A damaged one neither stops the next nor gives its number away.
	if err := os.WriteFile(s.entry(3), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	add("c")
	if e, err := s.Last(); err != nil || e.Number != 4 || e.Changes[0] != " → c" {
		t.Errorf("got %+v, %v", e, err)
	}
	for i := range 2 * maxEntries {
		add(strings.Repeat("x", i+1))
	}
	numbers, err := s.Numbers()
	if err != nil || len(numbers) != maxEntries || numbers[maxEntries-1] != 4+2*maxEntries {
		t.Errorf("got %v, %v", numbers, err)
	}
	add(strings.Repeat("y", maxHistory+1))
	if numbers, err = s.Numbers(); err != nil || len(numbers) != 1 {
		t.Errorf("after a large one: got %v, %v", numbers, err)
	}
}
