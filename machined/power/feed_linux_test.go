package power

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAlive checks that alive returns an error only if the service manager has not answered for
// longer than maxServicesSilence.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, reports := make(chan struct{}), 0
		defer close(hang)
		silent := false
		alive := WatchdogDeps{
			Services: func() {
				if silent {
					<-hang
				}
			},
			Reports: func() { reports++ },
		}.alive(t.Context())
		check := func() error { synctest.Wait(); return alive(t.Context()) }
		if err := check(); err != nil || reports != 1 {
			t.Errorf("the first check: %v, Reports was called %d times", err, reports)
		}
		silent = true
		for range 2 { // up to two responses from before the block arrive
			if err := check(); err != nil {
				t.Error(err)
			}
		}
		<-time.After(maxServicesSilence)
		if err := check(); err != nil {
			t.Errorf("a service manager that is blocked for maxServicesSilence: %v", err)
		}
		<-time.After(time.Second)
		if err := check(); err == nil || err.Error() != "the services have not answered for 5m1s" {
			t.Errorf("a service manager that is blocked for longer: %v", err)
		}
	})
}
