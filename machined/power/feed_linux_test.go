package power

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAlive checks that the service manager may be blocked for maxServicesSilence, and no longer.
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
			t.Errorf("%v, %d passes through the reports", err, reports)
		}
		silent = true
		for range 2 { // up to two responses from before the block arrive
			if err := check(); err != nil {
				t.Error(err)
			}
		}
		<-time.After(maxServicesSilence)
		if err := check(); err != nil {
			t.Errorf("a service that waits for the disk: %v", err)
		}
		<-time.After(time.Second)
		if err := check(); err == nil || err.Error() != "the services have not answered for 5m1s" {
			t.Errorf("a service manager that hangs: %v", err)
		}
	})
}
