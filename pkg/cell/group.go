package cell

import (
	"context"
	"reflect"
	"time"
)

// Group waits for the changes of several cells. It must be used by a single goroutine.
type Group struct{ watchers []*Watcher[struct{}] }

// NewGroup returns a group of views.
func NewGroup(views ...View[struct{}]) *Group {
	g := &Group{}
	for _, v := range views {
		g.watchers = append(g.watchers, v.Watch())
	}
	return g
}

// Mark marks the present values as seen. If the caller calls Mark, reads the cells and then calls
// Wait, it misses no Set in between.
func (g *Group) Mark() {
	for _, w := range g.watchers {
		w.Current()
	}
}

// Wait waits until a cell has a value that Mark has not seen, or until the channel `later` delivers
// a time. If `later` is nil, it waits only for the cells. The only error is that of the context.
func (g *Group) Wait(ctx context.Context, later <-chan time.Time) error {
	receive := func(channel any) reflect.SelectCase {
		return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(channel)}
	}
	cases := []reflect.SelectCase{receive(ctx.Done()), receive(later)}
	for _, w := range g.watchers {
		cases = append(cases, receive(w.Changed()))
	}
	if chosen, _, _ := reflect.Select(cases); chosen == 0 {
		return ctx.Err()
	}
	return nil
}
