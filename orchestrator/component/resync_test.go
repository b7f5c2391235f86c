package component

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestResyncLoop checks that ResyncLoop repeats a failed pass after the interval, and makes each
// other pass after a change. It reports a detail only if the detail is not empty and differs from
// the previous report.
func TestResyncLoop(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	type result struct {
		detail string
		err    error
	}
	passes := []result{{"one", nil}, {"", nil}, {"", errors.New("refused")}, {"one", nil}, {"one", nil}, {"two", nil}}
	changed := make(chan struct{}, 1)
	made := 0
	var reports []string
	ResyncLoop(ctx, changed, time.Millisecond, func(context.Context) (string, error) {
		p := passes[made]
		if made++; made == len(passes) {
			time.AfterFunc(20*time.Millisecond, cancel) // long enough for a superfluous pass
		} else if p.err == nil {
			changed <- struct{}{}
		}
		return p.detail, p.err
	}, func(detail string) { reports = append(reports, detail) })
	if want := []string{"one", "refused", "one", "two"}; !slices.Equal(reports, want) || made != len(passes) {
		t.Errorf("reported %q in %d passes, want %q in %d", reports, made, want, len(passes))
	}
}
