package configstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// content maps the file names of a directory to their content.
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

// revertJSON returns the content of return.json during a trial: the documents to which a revert
// returns (the parameter to), and the digests of the documents on trial (tried).
func revertJSON(to string, tried ...string) string {
	c := revertRecord{Documents: to}
	for _, t := range tried {
		c.Tried = append(c.Tried, digest([]byte(t)))
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestStore checks the files of the store after each operation.
func TestStore(t *testing.T) {
	begin := func(s Store) error { _, err := s.Boot(true); return err }
	leave := func(s Store) error { _, err := s.Boot(false); return err }
	stage := func(s Store) error { return s.Stage([]byte("later")) }
	stageTrial := func(s Store) error { return s.StageTrial([]byte("later"), "mine", time.Minute) }
	twice := func(s Store) error { return errors.Join(begin(s), begin(s)) }
	giveUp := func(s Store) error { _, err := s.RevertTrial(); return err }
	try := func(s Store) error { return s.StartTrial([]byte("new")) }
	put := func(s Store) error { return s.Put([]byte("new")) }
	for name, c := range map[string]struct {
		before content
		do     func(Store) error
		after  content
	}{
		"put the first configuration":        {content{}, put, content{"current.yaml": "new"}},
		"put":                                {content{"current.yaml": "old"}, put, content{"current.yaml": "new"}},
		"put ends a trial":                   {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried")}, put, content{"current.yaml": "new"}},
		"put retains a staged configuration": {content{"staged.yaml": "later"}, put, content{"current.yaml": "new", "staged.yaml": "later"}},
		"start a trial":                      {content{"current.yaml": "old"}, try, content{"current.yaml": "new", "return.json": revertJSON("old", "new")}},
		"start a second trial":               {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried")}, try, content{"current.yaml": "new", "return.json": revertJSON("old", "new", "tried")}},
		"start a trial, and no configuration is stored":       {content{}, try, content{"current.yaml": "new", "return.json": revertJSON("", "new")}},
		"start a trial, and return.json is of an older trial": {content{"current.yaml": "old", "return.json": revertJSON("older", "x")}, try, content{"current.yaml": "new", "return.json": revertJSON("old", "new")}},
		"confirm a trial":                   {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried")}, Store.ConfirmTrial, content{"current.yaml": "tried"}},
		"confirm without a trial":           {content{"current.yaml": "old"}, Store.ConfirmTrial, content{"current.yaml": "old"}},
		"revert a trial":                    {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried")}, giveUp, content{"current.yaml": "old"}},
		"revert to no stored configuration": {content{"current.yaml": "tried", "return.json": revertJSON("", "tried")}, giveUp, content{}},
		"revert without a trial":            {content{"current.yaml": "old"}, giveUp, content{"current.yaml": "old"}},
		"boot":                              {content{"current.yaml": "old"}, begin, content{"current.yaml": "old"}},
		"boot during a trial":               {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried")}, begin, content{"current.yaml": "old"}},
		"boot with a staged configuration":  {content{"current.yaml": "old", "staged.yaml": "later"}, begin, content{"current.yaml": "later"}},
		"boot during a trial, with a staged configuration":                    {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried"), "staged.yaml": "later"}, begin, content{"current.yaml": "later"}},
		"boot during a trial, without activation of the staged configuration": {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried"), "staged.yaml": "later"}, leave, content{"current.yaml": "old", "staged.yaml": "later"}},
		"boot, and return.json is of another trial":                           {content{"current.yaml": "other", "return.json": revertJSON("old", "tried")}, begin, content{"current.yaml": "other"}},
		"boot with a damaged return.json":                                     {content{"current.yaml": "old", "return.json": "{"}, begin, content{"current.yaml": "old"}},
		"stage":                                                               {content{"current.yaml": "old"}, stage, content{"current.yaml": "old", "staged.yaml": "later"}},
		"stage replaces a staged trial":                                       {content{"staged.yaml": "later", "try.json": tryJSON("later")}, stage, content{"staged.yaml": "later"}},
		"stage a trial":                                                       {content{"current.yaml": "old"}, stageTrial, content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("later")}},
		"stage a second trial":                                                {content{"staged.yaml": "x", "try.json": tryJSON("x")}, stageTrial, content{"staged.yaml": "later", "try.json": tryJSON("later", "x")}},
		"a staged trial replaces a staged configuration":                      {content{"staged.yaml": "x"}, stageTrial, content{"staged.yaml": "later", "try.json": tryJSON("later")}},
		"boot with a staged trial":                                            {content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("later")}, begin, content{"current.yaml": "later", "return.json": revertJSON("old", "later")}},
		"boot with a staged trial, and no configuration is stored":            {content{"staged.yaml": "later", "try.json": tryJSON("later")}, begin, content{"current.yaml": "later", "return.json": revertJSON("", "later")}},
		"boot during a trial, with a staged trial":                            {content{"current.yaml": "tried", "return.json": revertJSON("old", "tried"), "staged.yaml": "later", "try.json": tryJSON("later")}, begin, content{"current.yaml": "later", "return.json": revertJSON("old", "later")}},
		"boot, and try.json is of another configuration":                      {content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("x")}, begin, content{"current.yaml": "later", "try.json": tryJSON("x")}},
		"boot twice with a staged trial":                                      {content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("later")}, twice, content{"current.yaml": "old"}},
		"boot twice with a staged configuration":                              {content{"current.yaml": "old", "staged.yaml": "later"}, twice, content{"current.yaml": "later"}},
		"boot without activation of a staged trial":                           {content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("later")}, leave, content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("later")}},
		"drop a staged trial":                                                 {content{"current.yaml": "old", "staged.yaml": "later", "try.json": tryJSON("later")}, Store.DropStaged, content{"current.yaml": "old"}},
		"drop staged":                                                         {content{"current.yaml": "old", "staged.yaml": "later"}, Store.DropStaged, content{"current.yaml": "old"}},
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

// tryJSON returns a try.json for a trial of the staged documents.
func tryJSON(staged ...string) string {
	t := StagedTrial{Duration: time.Minute, Name: "mine"}
	for _, s := range staged {
		t.Tried = append(t.Tried, digest([]byte(s)))
	}
	text, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestBootOfTrial checks the trial that a boot reports, its name and duration, and that the next
// boot ends it.
func TestBootOfTrial(t *testing.T) {
	s := content{"current.yaml": "old"}.write(t)
	if err := s.StageTrial([]byte("later"), "mine", 3*time.Minute); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Boot(false); err != nil || c != (Changed{}) {
		t.Errorf("Boot(false) has changed something: %+v, %v", c, err)
	}
	c, err := s.Boot(true)
	if err != nil || !c.Staged || c.Returned || c.Trial == nil || c.Trial.Name != "mine" || c.Trial.Duration != 3*time.Minute {
		t.Fatalf("Boot(true): %+v, %v", c, err)
	}
	if text, err := s.Confirmed(); err != nil || string(text) != "old" {
		t.Errorf("the confirmed configuration: %q, %v", text, err)
	}
	if c, err := s.Boot(true); err != nil || !c.Returned || c.Staged {
		t.Errorf("the next boot: %+v, %v", c, err)
	}
}

// TestBootFails makes each step of Boot fail. Boot then returns an error, and sets Overdue if the
// active configuration may be on trial.
func TestBootFails(t *testing.T) {
	for name, c := range map[string]struct {
		have content
		// broken is the name of a file. The test replaces the file by a directory that contains a
		// file, so it cannot be read, renamed or removed.
		broken string
		want   Changed
		active string
	}{
		"the revert fails":                   {content{"current.yaml": "tried", "return.json": revertJSON("", "tried")}, "current.yaml", Changed{Overdue: true}, ""},
		"an unreadable record":               {content{"current.yaml": "tried", "staged.yaml": "later"}, "return.json", Changed{Overdue: true}, "tried"},
		"an unreadable trial":                {content{"current.yaml": "old", "staged.yaml": "later"}, "try.json", Changed{}, "old"},
		"an unreadable staged configuration": {content{"current.yaml": "old", "try.json": tryJSON("later")}, "staged.yaml", Changed{}, "old"},
		"the activation fails":               {content{"staged.yaml": "later"}, "current.yaml", Changed{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.have.write(t)
			broken := filepath.Join(s.Dir, c.broken)
			if err := os.RemoveAll(broken); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(broken, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Boot(true); err == nil || got != c.want {
				t.Errorf("%+v, %v, want %+v and an error", got, err, c.want)
			}
			if c.active != "" {
				if text, err := os.ReadFile(s.Current()); err != nil || string(text) != c.active {
					t.Errorf("the active configuration is %q, %v, want %q", text, err, c.active)
				}
			}
			if c.broken == "return.json" {
				if _, err := os.Stat(broken); err != nil {
					t.Errorf("the record of the trial is lost: %v", err)
				}
			}
		})
	}
	if os.Geteuid() == 0 {
		return // root can open every directory, so the last case cannot fail
	}
	// The rename succeeds and the sync of the directory fails: the staged configuration is active.
	s := content{"current.yaml": "old", "staged.yaml": "later"}.write(t)
	if err := os.Chmod(s.Dir, 0o300); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(s.Dir, 0o700) })
	if got, err := s.Boot(true); err == nil || got != (Changed{Staged: true}) {
		t.Errorf("the sync of the directory fails: %+v, %v", got, err)
	}
}

// TestPowerCut boots a machine twice from each state that a power cut can leave between two steps
// of a change. The machine boots with the documents before or after the change, and never retains
// documents on trial.
func TestPowerCut(t *testing.T) {
	for name, c := range map[string]struct {
		left content
		want content
	}{
		"a trial is recorded, and not active yet":                                        {content{"current.yaml": "old", "return.json": revertJSON("old", "new")}, content{"current.yaml": "old"}},
		"a second trial is recorded, and not active yet":                                 {content{"current.yaml": "tried", "return.json": revertJSON("old", "new", "tried")}, content{"current.yaml": "old"}},
		"put during a trial, and return.json is not removed yet":                         {content{"current.yaml": "new", "return.json": revertJSON("old", "tried")}, content{"current.yaml": "new"}},
		"reverted, and return.json is not removed yet":                                   {content{"current.yaml": "old", "return.json": revertJSON("old", "tried")}, content{"current.yaml": "old"}},
		"reverted to no stored configuration, and return.json is not removed yet":        {content{"return.json": revertJSON("", "tried")}, content{}},
		"a trial is recorded, and no configuration is stored":                            {content{"return.json": revertJSON("", "new")}, content{}},
		"boot: reverted, and the staged configuration is not active yet":                 {content{"current.yaml": "old", "staged.yaml": "later"}, content{"current.yaml": "later"}},
		"try.json is written, and no configuration is staged yet":                        {content{"current.yaml": "old", "try.json": tryJSON("later")}, content{"current.yaml": "old", "try.json": tryJSON("later")}},
		"try.json of a second trial is written, and its configuration is not staged yet": {content{"current.yaml": "old", "staged.yaml": "x", "try.json": tryJSON("later", "x")}, content{"current.yaml": "old"}},
		"boot: the staged trial is recorded, and not active yet":                         {content{"current.yaml": "old", "return.json": revertJSON("old", "later"), "staged.yaml": "later", "try.json": tryJSON("later")}, content{"current.yaml": "old"}},
		"boot: the staged trial is active, and try.json is not removed yet":              {content{"current.yaml": "later", "return.json": revertJSON("old", "later"), "try.json": tryJSON("later")}, content{"current.yaml": "old", "try.json": tryJSON("later")}},
		"the staged configuration is dropped, and try.json is not removed yet":           {content{"current.yaml": "old", "try.json": tryJSON("later")}, content{"current.yaml": "old", "try.json": tryJSON("later")}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.left.write(t)
			for range 2 {
				if _, err := s.Boot(true); err != nil {
					t.Fatal(err)
				}
			}
			if got := contentOf(t, s); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestConfirmed(t *testing.T) {
	for _, c := range []struct {
		have content
		want string
	}{
		{content{}, ""},
		{content{"current.yaml": "old"}, "old"},
		{content{"current.yaml": "tried", "return.json": revertJSON("old", "tried")}, "old"},
		{content{"current.yaml": "tried", "return.json": revertJSON("", "tried")}, ""},
		{content{"current.yaml": "other", "return.json": revertJSON("old", "tried")}, "other"},
	} {
		if got, err := c.have.write(t).Confirmed(); err != nil || string(got) != c.want || (got == nil) != (c.want == "") {
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
	add("b") // identical documents: no activation
	add("a")
	e, err := s.Entry(3)
	if err != nil || e.Documents != "a" || e.Changes[0] != "b → a" || e.By != "admin" || !e.At.Equal(at) {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := s.Entry(4); err == nil || !strings.Contains(err.Error(), "configuration 4: cannot find") {
		t.Errorf("got %v", err)
	}
	// A damaged entry neither blocks the next entry nor releases its number.
	if err := os.WriteFile(s.entry(3), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	add("c")
	if e, err := s.Last(); err != nil || e.Number != 4 || e.Changes[0] != " → c" {
		t.Errorf("got %+v, %v", e, err)
	}
	many := s.Add([]byte("m"), "admin", at, func(string) []string { return make([]string, 2*maxChanges) })
	if e, err := s.Last(); many != nil || err != nil || len(e.Changes) != maxChanges+1 || e.Changes[maxChanges] != fmt.Sprintf("and %d more", maxChanges) {
		t.Errorf("many changes: %v, %v, %d", many, err, len(e.Changes))
	}
	for i := range 2 * maxEntries {
		add(strings.Repeat("x", i+1))
	}
	numbers, err := s.Revisions()
	if err != nil || len(numbers) != maxEntries || numbers[maxEntries-1] != 5+2*maxEntries {
		t.Errorf("got %v, %v", numbers, err)
	}
	add(strings.Repeat("y", maxHistory+1))
	if numbers, err = s.Revisions(); err != nil || len(numbers) != 1 {
		t.Errorf("after a large entry: got %v, %v", numbers, err)
	}
}

// TestLastReachable checks that LastReachable returns the last reachable configuration, and whether
// it is the active configuration, also after a boot.
func TestLastReachable(t *testing.T) {
	for name, c := range map[string]struct {
		have    content
		want    string
		current bool
	}{
		"no reachable configuration": {content{"current.yaml": "a"}, "", false},
		"the active configuration":   {content{"current.yaml": "a", "reached.yaml": "a"}, "a", true},
		"another configuration":      {content{"current.yaml": "b", "reached.yaml": "a"}, "a", false},
		"no active configuration":    {content{"reached.yaml": "a"}, "a", false},
		"an empty store":             {content{}, "", false},
	} {
		s := c.have.write(t)
		got, current, err := s.LastReachable()
		if err != nil || string(got) != c.want || current != c.current {
			t.Errorf("%s: %q, %v, %v", name, got, current, err)
		}
		if _, err := s.Boot(true); err != nil {
			t.Fatal(err)
		}
		if again, still, err := s.LastReachable(); err != nil || string(again) != c.want || still != c.current {
			t.Errorf("%s, after a boot: %q, %v, %v", name, again, still, err)
		}
	}
	s := content{"current.yaml": "b", "reached.yaml": "a"}.write(t)
	if err := s.MarkReachable([]byte("b")); err != nil {
		t.Fatal(err)
	}
	if got, current, err := s.LastReachable(); err != nil || string(got) != "b" || !current {
		t.Errorf("after the active configuration was recorded as reachable: %q, %v, %v", got, current, err)
	}
}
