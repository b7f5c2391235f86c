package process

import (
	"fmt"
	"os"
	"sync"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// Announcer returns the announce function of a process. It announces every component as not ready
// at once, so that the process is ready when all components are. It calls settle when that is the
// case for the first time.
func Announcer(to *notify.Writer, components []component.Component, settle func()) component.Announce {
	var mu sync.Mutex
	ready := map[string]bool{}
	announce := func(name string, is bool, detail string) {
		mu.Lock()
		defer mu.Unlock()
		ready[name] = is
		if err := to.Send(name, is, detail); err != nil {
			// machined is gone or does not read; the component works without it.
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
