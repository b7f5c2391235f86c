package component

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestResyncLoop has a failing pass, which is repeated after the interval; all other passes follow
// a change.
func TestResyncLoop(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	type said struct {
		detail string
		err    error
	}
	passes := []said{{"one", nil}, {"", nil}, {"", errors.New("refused")}, {"one", nil}, {"one", nil}, {"two", nil}}
	changed := make(chan struct{}, 1)
	made := 0
	var told []string
	ResyncLoop(ctx, changed, time.Millisecond, func(context.Context) (string, error) {
		p := passes[made]
		if made++; made == len(passes) {
			time.AfterFunc(20*time.Millisecond, cancel) // time enough for a superfluous pass
		} else if p.err == nil {
			changed <- struct{}{}
		}
		return p.detail, p.err
	}, func(detail string) { told = append(told, detail) })
	if want := []string{"one", "refused", "one", "two"}; !slices.Equal(told, want) || made != len(passes) {
		t.Errorf("told %q after %d passes, want %q after %d", told, made, want, len(passes))
	}
}
