package limits

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithin checks that the context that Within returns ends when the context of the caller ends,
// when its time limit has passed, and at shutdown.
func TestWithin(t *testing.T) {
	for name, end := range map[string]func(leave, shutDown func()){
		"the caller":   func(leave, _ func()) { leave() },
		"the time":     func(_, _ func()) { time.Sleep(time.Minute) },
		"the shutdown": func(_, shutDown func()) { shutDown() },
	} {
		synctest.Test(t, func(t *testing.T) {
			caller, leave := context.WithCancel(t.Context())
			stopping, shutDown := context.WithCancel(t.Context())
			defer leave()
			defer shutDown()
			ctx, cancel := Within(caller, stopping, time.Minute)
			defer cancel()
			if ctx.Err() != nil {
				t.Errorf("%s: the context has ended too early", name)
			}
			end(leave, shutDown)
			synctest.Wait()
			if ctx.Err() == nil {
				t.Errorf("%s: the context has not ended", name)
			}
		})
	}
}
