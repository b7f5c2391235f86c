package api

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestTopicHangs checks that, if the read of a topic hangs, a client gets an error in time. A
// caller whose own deadline expires first gets DeadlineExceeded, not an error of the machine.
func TestTopicHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		s := machineService{deps: MachineDeps{Topics: []Topic{PolledTopic("certificates", func(context.Context) (string, error) { <-answers; return "all", nil })}}}
		get := func(ctx context.Context) (string, error) {
			v, err := s.Get(ctx, &api.GetRequest{Topic: "certificates"})
			return v.GetValue().GetStringValue(), err
		}
		start := time.Now()
		leaving, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := get(leaving); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a caller with a deadline of 1 s: %v", err)
		}
		for _, want := range []string{"no result within 15s", "an earlier read has not returned"} {
			_, err := get(t.Context())
			if status.Code(err) != codes.Internal || !strings.HasSuffix(err.Error(), "state: cannot read topic certificates: unknown: "+want) {
				t.Errorf("%v, want %s", err, want)
			}
			synctest.Wait()
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the callers waited for %v", took)
		}
		close(answers)
		synctest.Wait()
		if got, err := get(t.Context()); got != "all" || err != nil {
			t.Errorf("after the read has returned: %q, %v", got, err)
		}
	})
}
