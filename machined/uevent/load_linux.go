package uevent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Loader loads the modules for present and new devices.
type Loader struct {
	Sys   string // mount point of sysfs, "/sys"
	Index func() (*kmod.Index, error)
	// Each is called for every event, in order, from the receiving goroutine. A nil event means
	// that events were lost: read the whole state again. Each must be quick. It may be nil.
	Each func(*Event)
	// Report receives a line for each loaded module and for each failure. It may be nil.
	Report func(message string, err error)

	mu        sync.Mutex
	pending   []string // modaliases without a lookup so far
	tried     map[string]bool
	requested cell.Signal
}

// Run loads the modules for the present devices, and then for each new device, until the context
// ends or the socket breaks. It calls ready (which may be nil) once, after it has loaded the
// modules of the present devices.
func (l *Loader) Run(ctx context.Context, ready func()) error {
	listener, err := Listen() // before the walk, so that no device is missed
	if err != nil {
		return err
	}
	defer listener.Close()
	l.tried, l.requested = map[string]bool{}, cell.NewSignal()
	ctx, cancel := context.WithCancel(ctx)
	var loading sync.WaitGroup
	loading.Go(func() {
		// after a panic: the caller of Run learns that no drivers are loaded any more
		defer cancel()
		_ = panics.Do("loading drivers", func() error {
			l.coldPlug()
			if ready != nil {
				ready()
			}
			l.load(ctx)
			return nil
		})
	})
	defer loading.Wait()
	defer cancel()
	for {
		event, err := listener.Next(ctx)
		if errors.Is(err, ErrLost) {
			l.report("device events were lost, looking at all devices again", nil)
			l.request(rescan)
			l.each(nil)
			continue
		}
		if err != nil {
			return err
		}
		if alias := event.Vars["MODALIAS"]; alias != "" && event.Action == "add" {
			l.request(alias)
		}
		l.each(&event)
	}
}

// rescan, in place of a modalias, requests another walk of sysfs.
const rescan = ""

func (l *Loader) each(e *Event) {
	if l.Each != nil {
		l.Each(e)
	}
}

func (l *Loader) report(message string, err error) {
	if l.Report != nil {
		l.Report(message, err)
	}
}

func (l *Loader) request(alias string) {
	l.mu.Lock()
	l.pending = append(l.pending, alias)
	l.mu.Unlock()
	l.requested.Wake()
}

// load serves requests until the context ends. One module can make several devices appear at once,
// so load looks up simultaneous modaliases together: a lookup reads the whole alias list.
func (l *Loader) load(ctx context.Context) {
	for {
		select {
		case <-l.requested:
		case <-ctx.Done():
			return
		}
		if backoff.Sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
		l.mu.Lock()
		aliases := l.pending
		l.pending = nil
		l.mu.Unlock()
		var fresh []string
		again := false
		for _, alias := range aliases {
			if alias == rescan {
				again = true
			} else {
				fresh = append(fresh, alias)
			}
		}
		l.serve(fresh)
		if again {
			l.coldPlug()
		}
	}
}

func (l *Loader) coldPlug() {
	aliases, err := kmod.Devices(l.Sys)
	if err != nil {
		l.report("cannot look for devices", err)
		return
	}
	l.serve(aliases)
}

// serve loads the modules for the modaliases, each module once per Loader: a failed module would
// fail again, and a loaded module serves all its devices.
func (l *Loader) serve(aliases []string) {
	if len(aliases) == 0 {
		return
	}
	index, err := l.Index()
	if err != nil {
		l.report("cannot look up modules", err)
		return
	}
	var names []string
	for _, name := range index.Match(aliases...) {
		if !l.tried[name] {
			l.tried[name] = true
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	steps, err := index.Plan(names...)
	if err != nil {
		l.report("cannot plan the modules for devices", err)
	}
	if len(steps) == 0 {
		return // built in
	}
	start := time.Now()
	err = kmod.Load(steps)
	l.report(fmt.Sprintf("loaded kernel modules for devices: %v (%d ms)", names, time.Since(start).Milliseconds()), err)
}
