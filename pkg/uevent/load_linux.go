package uevent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/kmod"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Loader loads the modules that devices ask for, those that are there and those that come.
type Loader struct {
	Sys   string // where sysfs is mounted, "/sys"
	Index func() (*kmod.Index, error)
	// Each is called for every event, in order, from the goroutine that receives; nil events stand
	// for lost ones: look at everything. It must be quick. May be nil.
	Each func(*Event)
	// Report is told what was loaded or could not be, one line each. May be nil.
	Report func(message string, err error)

	mu      sync.Mutex
	pending []string // modaliases that nobody has looked up yet
	tried   map[string]bool
	wake    chan struct{}
}

// Run listens, loads for the devices that are there, then for each that comes, until the context
// ends or the socket breaks. ready (may be nil) is called once, when the modules of the devices
// that were there have been loaded.
func (l *Loader) Run(ctx context.Context, ready func()) error {
	listener, err := Listen() // first, so that no device falls between walking and listening
	if err != nil {
		return err
	}
	defer listener.Close()
	l.tried, l.wake = map[string]bool{}, make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	var loading sync.WaitGroup
	loading.Go(func() {
		defer cancel() // after a panic: whoever runs it hears that no drivers are loaded any more
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
			l.request(lookAgain)
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

// lookAgain stands among modaliases for: walk sysfs again.
const lookAgain = ""

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
	select {
	case l.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// load serves requests until the context ends. Loading one module makes several devices appear at
// once, so those that come together are looked up together: looking up means reading the whole list
// of aliases.
func (l *Loader) load(ctx context.Context) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		together := time.NewTimer(5 * time.Millisecond)
		select {
		case <-together.C:
		case <-ctx.Done():
			together.Stop()
			return
		}
		l.mu.Lock()
		aliases := l.pending
		l.pending = nil
		l.mu.Unlock()
		var fresh []string
		again := false
		for _, alias := range aliases {
			if alias == lookAgain {
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

// serve loads the modules for the modaliases, each module once in the life of the Loader: one that
// failed would fail again, and one that is loaded serves every device of its kind.
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
