package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
)

// world is an actual state and a desired state, both lists of names. An operation adds a name.
type world struct {
	mu   sync.Mutex
	have []string
	want []string
	fail map[string]int // number of failures left, by name
}

type add struct {
	w    *world
	name string
}

func (a add) String() string { return "add " + a.name }
func (a add) Do(context.Context) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.w.fail[a.name] > 0 {
		a.w.fail[a.name]--
		return errors.New("no room")
	}
	a.w.have = append(a.w.have, a.name)
	return nil
}

func (w *world) diff(context.Context) ([]Op, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ops []Op
	for _, name := range w.want {
		if !slices.Contains(w.have, name) {
			ops = append(ops, add{w, name})
		}
	}
	return ops, nil
}

func (w *world) wish(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = names
}

func TestConverge(t *testing.T) {
	w := &world{want: []string{"a", "b"}}
	var lines []string
	report := func(r Report) { lines = append(lines, r.String()) }
	if err := Converge(t.Context(), Config{Name: "test", Diff: w.diff, Report: report}); err != nil {
		t.Fatal(err)
	}
	w.wish("a", "b", "c", "d")
	w.fail = map[string]int{"c": 1}
	err := Converge(t.Context(), Config{Name: "test", Diff: w.diff, Report: report})
	if err == nil || err.Error() != "test: cannot add c: no room" {
		t.Fatalf("error %v", err)
	}
	if got := strings.Join(lines, "|"); got != "test: add a|test: add b|test: cannot add c: no room" {
		t.Error(got)
	}
}

func TestKeepGoing(t *testing.T) {
	w := &world{want: []string{"a", "b", "c"}, fail: map[string]int{"a": 1, "b": 1}}
	err := Converge(t.Context(), Config{Name: "test", Diff: w.diff, KeepGoing: true})
	if err == nil || err.Error() != "test: cannot add a: no room\ntest: cannot add b: no room" || !slices.Equal(w.have, []string{"c"}) {
		t.Fatalf("error %v, done %v", err, w.have)
	}
}

type useless struct{}

func (useless) String() string           { return "turn round" }
func (useless) Do(context.Context) error { return nil }

func TestConvergeGivesUpOnACircle(t *testing.T) {
	err := Converge(t.Context(), Config{Name: "test", Diff: func(context.Context) ([]Op, error) { return []Op{useless{}}, nil }})
	if err == nil || !strings.Contains(err.Error(), "does not converge") || !strings.Contains(err.Error(), "turn round") {
		t.Fatalf("error %v", err)
	}
}

func TestConvergeReportsThatItCannotRead(t *testing.T) {
	var got string
	broken := func(context.Context) ([]Op, error) { return nil, errors.New("no kernel") }
	err := Converge(t.Context(), Config{Name: "test", Diff: broken, Report: func(r Report) { got = r.String() }})
	if err == nil || got != "test: no kernel" {
		t.Fatalf("error %v, report %q", err, got)
	}
}
