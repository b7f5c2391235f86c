package events

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Progress is the progress of the boot, for clients and the console.
type Progress struct {
	started  time.Time // start of init
	stage    *cell.Cell[Stage]
	timeline *cell.Cell[[]Moment]
	event    func(message string)
}

// NewProgress returns the progress of a boot that started at a time; event adds an event of the
// boot.
func NewProgress(started time.Time, event func(message string)) *Progress {
	return &Progress{started: started, stage: cell.New(Stage{Name: "starting"}), timeline: cell.New([]Moment(nil)), event: event}
}

// Stage is the current step of the boot: topic "stage".
type Stage struct {
	// name of the step in boot.go, or "running", "not installed", "going down"
	Name       string    `json:"name"`
	WaitingFor string    `json:"waitingFor,omitempty"` // resource for which the step waits
	Since      time.Time `json:"since"`
}

// Moment is the time at which a step or service was reached for the first time since power-on:
// topic "timeline".
type Moment struct {
	Name    string  `json:"name"`    // step of the boot, or "service/component"
	Seconds float64 `json:"seconds"` // since the start of init, the first process
}

// Started returns the start of init.
func (p *Progress) Started() time.Time { return p.started }

// Stage holds the current step of the boot.
func (p *Progress) Stage() *cell.Cell[Stage] { return p.stage }

// Timeline holds the first time of each step and service.
func (p *Progress) Timeline() *cell.Cell[[]Moment] { return p.timeline }

// Enter sets the current step of the boot.
func (p *Progress) Enter(name, waits string) {
	p.stage.Set(Stage{Name: name, WaitingFor: waits, Since: time.Now()})
}

// Mark records the first time at which a step or service is reached.
func (p *Progress) Mark(what string) {
	seconds := time.Since(p.started).Seconds()
	added := false
	p.timeline.Update(func(have []Moment) []Moment {
		for _, h := range have {
			if h.Name == what {
				return have
			}
		}
		added = true
		return append(have[:len(have):len(have)], Moment{Name: what, Seconds: seconds})
	})
	if added {
		p.event(fmt.Sprintf("%s after %.2f s", what, seconds))
	}
}

// WatchServices marks the first readiness of each service and component in the timeline.
func (p *Progress) WatchServices(ctx context.Context, services *supervise.Manager) {
	for w := services.Status().Watch(); ; {
		list, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		for _, s := range list {
			if s.State == supervise.Running {
				p.Mark(s.Name)
			}
			for _, c := range s.Components {
				if c.Ready {
					p.Mark(s.Name + "/" + c.Name)
				}
			}
		}
	}
}
