package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/test/machinestate"
)

// These types are the reports of the machine about itself.
type (
	moment  = machinestate.Moment
	service = machinestate.Service
	process = machinestate.Process
)

// span is a period in which a service or component reported the same wait. It ends at the start of
// the next span.
type span struct {
	at   time.Time // by the local clock
	text string    // empty: no wait
}

// record holds the machine's reports about itself. It also estimates the start of init by the local
// clock. A moment is a step of the boot, with the number of seconds since init started. A watcher
// receives a moment after a delay. So the time of delivery minus these seconds is never before the
// start of init, and the earliest of all such times is the best estimate. The error of the estimate
// is the delay of the fastest delivery, a few milliseconds.
type record struct {
	mu      sync.Mutex
	moments []moment
	began   time.Time         // the estimated start of init; zero before the first moment
	spans   map[string][]span // keys: SERVICE and SERVICE/COMPONENT
	changed chan struct{}     // closed and replaced when there are new moments
	events  []event
}

func newRecord() *record {
	return &record{spans: map[string][]span{}, changed: make(chan struct{})}
}

// follow starts to watch the machine's timeline and services, until ctx ends.
func (r *record) follow(ctx context.Context, c *client.Client) {
	go watchTopic(ctx, c, "timeline", r.addMoments)
	go watchTopic(ctx, c, "services", r.addServices)
}

// watchTopic watches a topic until ctx ends. It calls add with each value and its time of arrival.
// If the stream breaks, it starts a new stream after retryPause.
func watchTopic[T any](ctx context.Context, c *client.Client, topic string, add func(time.Time, T)) {
	for ctx.Err() == nil {
		stream, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: topic})
		for err == nil {
			var s *api.TopicValue
			if s, err = stream.Recv(); err != nil {
				break
			}
			at := time.Now()
			var value T
			if value, err = machinestate.Decode[T](s.Value); err == nil {
				add(at, value)
			}
		}
		if backoff.Sleep(ctx, retryPause) != nil {
			return
		}
	}
}

func (r *record) addMoments(at time.Time, list []moment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moments = list
	for _, m := range list {
		began := at.Add(-time.Duration(m.Seconds * float64(time.Second)))
		if r.began.IsZero() || began.Before(r.began) {
			r.began = began
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *record) addServices(at time.Time, list []service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range list {
		text := ""
		if s.State != "running" {
			text = strings.TrimSuffix(s.State+": "+s.Detail, ": ")
		}
		r.addSpan(s.Name, span{at, text})
		for _, c := range s.Components {
			text := ""
			if !c.Ready {
				text = cmp.Or(c.Detail, "starting")
			}
			r.addSpan(s.Name+"/"+c.Name, span{at, text})
		}
	}
}

func (r *record) addSpan(key string, s span) {
	have := r.spans[key]
	if len(have) == 0 || have[len(have)-1].text != s.text {
		r.spans[key] = append(have, s)
	}
}

// moment returns the time of the moment with this name, in seconds since init started. It returns
// false if the machine has not reported the moment.
func (r *record) moment(name string) (float64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.moments, func(m moment) bool { return m.Name == name })
	if i < 0 {
		return 0, false
	}
	return r.moments[i].Seconds, true
}

// wait waits until the machine reports the moment with this name. It fails if ctx ends first.
func (r *record) wait(ctx context.Context, name string) error {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if _, ok := r.moment(name); ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("timeline: %s was not reached: %w", name, context.Cause(ctx))
		}
	}
}

// init returns the estimated start of init by the local clock. It fails if the machine has not
// reported any moment.
func (r *record) init() (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		return r.began, errors.New("timeline: the machine has reported no moment, so the start of init is unknown")
	}
	return r.began, nil
}

// complete reads the moments that the machine reached after the end of follow, and the events. The
// late delivery of these moments does not change the estimated start of init, because the estimate
// is the earliest time.
func (r *record) complete(ctx context.Context, c *client.Client) error {
	list, err := machinestate.Get[[]moment](ctx, c, "timeline")
	if err != nil {
		return err
	}
	r.addMoments(time.Now(), list)
	kept, err := machinestate.Events(ctx, c)
	if err != nil {
		return err
	}
	r.events = placeEvents(kept)
	return nil
}

// event is an event of the machine, placed on its timeline.
type event struct {
	Seconds float64 `json:"seconds"` // since init started
	Source  string  `json:"source"`
	Kind    string  `json:"kind"`
	Message string  `json:"message"`
}

// placeEvents returns the events with their times in seconds since init started. An event has the
// time of the machine's clock, which the machine sets during the boot. The event of a moment also
// has the seconds since init started, so it gives the start of init by the clock at that time. For
// each event, placeEvents uses the last such event up to this event. For the events before the
// first such event, it uses the first one.
func placeEvents(list []*api.Event) []event {
	var began time.Time
	find := func(e *api.Event) bool {
		at, ok := machinestate.Began(e)
		if ok {
			began = at
		}
		return ok
	}
	for _, e := range list {
		if find(e) {
			break
		}
	}
	var out []event
	for _, e := range list {
		find(e)
		seconds := 0.0
		if !began.IsZero() {
			seconds = e.Time.AsTime().Sub(began).Seconds()
		}
		out = append(out, event{Seconds: seconds, Source: e.Source, Kind: e.Kind, Message: e.Message})
	}
	return out
}

// stage is one line of the printed timeline.
type stage struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"` // since init started; negative for earlier times
	// Waits are the reported waits before the stage, in order of time.
	Waits []waited `json:"waits,omitempty"`
}

// waited is the reason and the duration of a wait.
type waited struct {
	For     string  `json:"for"`
	Seconds float64 `json:"seconds"`
}

// timeline returns the moments of the machine with their reported waits, and the observations of
// the clients, in order of time. The parameter toUserspace is the number of seconds from power-on
// to the start of init.
func (r *record) timeline(toUserspace float64, seen map[string]float64) []stage {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []stage{{What: "power on", Seconds: -toUserspace}, {What: "init"}}
	for _, m := range r.moments {
		list = append(list, stage{What: m.Name, Seconds: m.Seconds, Waits: r.waits(m)})
	}
	for what, seconds := range seen {
		list = append(list, stage{What: what, Seconds: seconds})
	}
	slices.SortFunc(list, func(a, b stage) int { return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.What, b.What)) })
	return list
}

// waits returns the waits that the service or component of the moment reported before the moment.
func (r *record) waits(m moment) []waited {
	var out []waited
	spans := r.spans[m.Name]
	for i, s := range spans {
		from, to := s.at.Sub(r.began).Seconds(), m.Seconds
		if i+1 < len(spans) {
			to = min(to, spans[i+1].at.Sub(r.began).Seconds())
		}
		if s.text == "" || to <= from {
			continue
		}
		out = append(out, waited{For: s.text, Seconds: to - from})
	}
	return out
}
