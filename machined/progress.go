package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// bootProgress is the progress of the boot, for clients and the console.
type bootProgress struct {
	started  time.Time // start of init
	stage    *cell.Cell[stage]
	timeline *cell.Cell[[]moment]
	event    func(message string)
}

func newBootProgress(started time.Time, event func(message string)) *bootProgress {
	return &bootProgress{started: started, stage: cell.New(stage{Name: "starting"}), timeline: cell.New([]moment(nil)), event: event}
}

// stage is the current step of the boot: topic "stage".
type stage struct {
	// name of the step in boot.go, or "running", "not installed", "going down"
	Name       string    `json:"name"`
	WaitingFor string    `json:"waitingFor,omitempty"` // resource for which the step waits
	Since      time.Time `json:"since"`
}

// moment is the time at which a step or service was reached for the first time since power-on:
// topic "timeline".
type moment struct {
	Name    string  `json:"name"`    // step of the boot, or "service/component"
	Seconds float64 `json:"seconds"` // since the start of init, the first process
}

// enter sets the current step of the boot.
func (p *bootProgress) enter(name, waits string) {
	p.stage.Set(stage{Name: name, WaitingFor: waits, Since: time.Now()})
}

// mark records the first time at which a step or service is reached.
func (p *bootProgress) mark(what string) {
	seconds := time.Since(p.started).Seconds()
	added := false
	p.timeline.Update(func(have []moment) []moment {
		for _, h := range have {
			if h.Name == what {
				return have
			}
		}
		added = true
		return append(have[:len(have):len(have)], moment{Name: what, Seconds: seconds})
	})
	if added {
		p.event(fmt.Sprintf("%s after %.2f s", what, seconds))
	}
}

// watchServices marks the first readiness of each service and component in the timeline.
func (p *bootProgress) watchServices(ctx context.Context, services *supervise.Manager) {
	for w := services.Status().Watch(); ; {
		list, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		for _, s := range list {
			if s.State == supervise.Running {
				p.mark(s.Name)
			}
			for _, c := range s.Components {
				if c.Ready {
					p.mark(s.Name + "/" + c.Name)
				}
			}
		}
	}
}
