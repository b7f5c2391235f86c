package process

import (
	"fmt"
	"os"
	"sync"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// Announcer returns the announce function of a process. It first announces every component as not
// ready, so the process is ready only when all components are. After each announcement with which
// all components are ready, it calls settle, which must do nothing after the first call.
func Announcer(to *notify.Writer, components []component.Component, settle func()) component.Announce {
	var mu sync.Mutex
	ready := map[string]bool{}
	announce := func(name string, is bool, detail string) {
		mu.Lock()
		defer mu.Unlock()
		ready[name] = is
		if err := to.Send(name, is, detail); err != nil {
			// An error means that machined is gone or does not read. The component works without
			// it.
			fmt.Fprintf(os.Stderr, "orchestrator: %v\n", err)
		}
		for _, all := range ready {
			if !all {
				return
			}
		}
		settle()
	}
	for _, c := range components {
		announce(c.Name, false, "starting")
	}
	return announce
}
