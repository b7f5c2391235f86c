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

// Loader loads the kernel modules for the devices that exist and for new devices.
type Loader struct {
	Sys   string // mount point of sysfs, "/sys"
	Index func() (*kmod.Index, error)
	// Run calls Each for every event, in order. A nil event means that events were lost; the
	// receiver must then read the whole state again. Each must return quickly, because Run waits
	// for it. Each may be nil.
	Each func(*Event)
	// Report receives a message for each load of modules, with its error, and for each failure. It
	// may be nil.
	Report func(message string, err error)

	mu        sync.Mutex
	pending   []string // requested modaliases that are not looked up yet
	tried     map[string]bool
	requested cell.Signal
}

// Run loads the modules for the present devices, and then for each new device. It returns when ctx
// ends or the socket fails. It calls ready (which may be nil) once the modules of the present
// devices are loaded.
func (l *Loader) Run(ctx context.Context, ready func()) error {
	listener, err := Listen() // before coldPlug, so no device is missed
	if err != nil {
		return err
	}
	defer listener.Close()
	l.tried, l.requested = map[string]bool{}, cell.NewSignal()
	ctx, cancel := context.WithCancel(ctx)
	var loading sync.WaitGroup
	loading.Go(func() {
		// After a panic, Run must return, because no drivers are loaded any more.
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

// Start starts Run in a goroutine. It returns nil when the modules of the present devices are
// loaded, or the error of Run if Run ends earlier. If Run ends later, ended gets its error, except
// after the end of ctx.
func (l *Loader) Start(ctx context.Context, ended func(error)) error {
	ready, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		failed <- panics.Do("devices", func() error { return l.Run(ctx, sync.OnceFunc(func() { close(ready) })) })
	}()
	select {
	case <-ready:
	case err := <-failed:
		return fmt.Errorf("devices: %w", err)
	}
	panics.Go("devices", func() {
		if err := <-failed; ctx.Err() == nil {
			ended(err)
		}
	})
	return nil
}

// rescan is a value of pending, in place of a modalias. It requests a second coldPlug.
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

// load serves the requests until ctx ends. It waits for some milliseconds and serves all requests
// of this time together: one module can create several devices, and each lookup reads the whole
// alias list.
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

// serve loads the modules for the modaliases. It loads each module at most once per Loader, because
// a loaded module serves all its devices, and a module that failed would fail again.
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
		return // the modules are built into the kernel
	}
	start := time.Now()
	err = kmod.Load(steps)
	l.report(fmt.Sprintf("loaded kernel modules for devices: %v (%d ms)", names, time.Since(start).Milliseconds()), err)
}
