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

// Reports of the machine about itself.
type (
	moment  = machinestate.Moment
	service = machinestate.Service
	process = machinestate.Process
)

// span is a time during which a service or component reported a wait; it ends where the next span
// begins.
type span struct {
	at   time.Time // by the local clock
	text string    // empty: no wait
}

// record holds the machine's reports about itself. It also relates the machine's clock to the local
// clock: a moment is delivered to a watcher some time after it was reached, never before. Of all
// differences between the time of delivery and the moment's own seconds, the smallest is therefore
// the best estimate of the start of init; it is late by the fastest delivery (a few milliseconds).
type record struct {
	mu      sync.Mutex
	moments []moment
	began   time.Time         // the estimated start of init; zero before the first moment
	spans   map[string][]span // by service, or service/component
	changed chan struct{}     // closed and replaced when there are new moments
	events  []event
}

func newRecord() *record {
	return &record{spans: map[string][]span{}, changed: make(chan struct{})}
}

// follow watches the machine's timeline and services until ctx ends.
func (r *record) follow(ctx context.Context, c *client.Client) {
	go watchTopic(ctx, c, "timeline", r.addMoments)
	go watchTopic(ctx, c, "services", r.addServices)
}

// watchTopic passes each value of a topic with the time of its arrival to add. It restarts a broken
// stream.
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

// moment returns the time of a moment, in seconds since init started.
func (r *record) moment(what string) (float64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.moments, func(m moment) bool { return m.Name == what })
	if i < 0 {
		return 0, false
	}
	return r.moments[i].Seconds, true
}

// wait waits until the machine has reached a moment.
func (r *record) wait(ctx context.Context, what string) error {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if _, ok := r.moment(what); ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("timeline: %s was not reached: %w", what, context.Cause(ctx))
		}
	}
}

// init returns the start time of init by the local clock.
func (r *record) init() (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		return r.began, errors.New("timeline: the machine sent none, so its clock cannot be tied to ours")
	}
	return r.began, nil
}

// complete reads the moments since the end of follow, and the events. These moments do not change
// the estimate of init's start, because they are delivered late.
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

// placeEvents gives events their place on the timeline. Events carry the time of day, which is set
// during the boot. The event of a moment also carries its seconds, and so relates the events around
// it: each event is placed by the last event of a moment before it, and the first events by the
// first event of a moment.
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
	Seconds float64 `json:"seconds"` // since init started; negative before it
	// Waits are the reported waits until then, in order.
	Waits []waited `json:"waits,omitempty"`
}

// waited is the reason and the duration of a wait.
type waited struct {
	For     string  `json:"for"`
	Seconds float64 `json:"seconds"`
}

// timeline joins the machine's own moments, their reported waits, and the observations from
// outside.
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

// waits returns the waits that a service or component reported until it was first ready.
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
