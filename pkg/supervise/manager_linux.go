package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"golang.org/x/sys/unix"
)

// Config configures a Manager.
type Config struct {
	Reaper *Reaper     // starts the processes; its Loop must run
	Groups cgroup.Tree // parent of the services' control groups; cgroup.Mount on a machine
	// Event receives messages of one line. kind is "state" for a change of state and "failure" for
	// an error. The manager holds its lock during the call, so Event must return quickly and must
	// not call the manager. It may be nil.
	Event func(service, kind, message string)
}

// Manager starts, stops and restarts the processes of services. All methods are safe for concurrent
// use.
type Manager struct {
	config Config
	status *cell.Cell[[]Status]

	mu       sync.Mutex
	units    map[string]*unit
	order    []string // names of all units in the order of Set, then the removed units
	killNow  bool     // Shutdown has timed out, so the manager sends SIGKILL instead of SIGTERM
	shutDown bool     // Shutdown was called, so Set fails
}

// unit is a service with its run-time state. The lock of the manager guards it.
type unit struct {
	service Service  // description of the present process
	next    *Service // description of the next process; nil if it is the same
	removed bool     // Set has removed it, so it is deleted when it has stopped
	log     *LogRing

	state   State
	since   time.Time // time of the last change of the phase
	failure string    // text of the last failure
	starts  uint32    // number of processes that the manager has started

	process    *Process           // nil without a process
	endProbe   context.CancelFunc // ends the probe of the present process
	components components
	probe      string // last error of the probe; empty after a success

	timer      *time.Timer
	generation int // increases with each new timer, so a replaced timer has an older number
}

// NewManager returns a manager without services.
func NewManager(config Config) *Manager {
	if config.Event == nil {
		config.Event = func(string, string, string) {}
	}
	return &Manager{config: config, status: cell.New([]Status(nil)), units: map[string]*unit{}}
}

// Status returns the cell with the status of every service, in the order of Set. Services that are
// being stopped for removal follow at the end.
func (m *Manager) Status() *cell.Cell[[]Status] { return m.status }

// Log returns the log of a service. It fails if there is no service with this name.
func (m *Manager) Log(name string) (*LogRing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.find(name)
	if err != nil {
		return nil, err
	}
	return u.log, nil
}

func (m *Manager) find(name string) (*unit, error) {
	if u, there := m.units[name]; there {
		return u, nil
	}
	return nil, fmt.Errorf("service %q: does not exist; there are: %s", name, strings.Join(slices.Sorted(maps.Keys(m.units)), ", "))
}

// Set sets the complete list of services. It starts new services, stops removed services, restarts
// changed services, and does not touch the others. It returns before these changes are complete;
// Status shows the progress. If the list is invalid, Set changes nothing and returns the error of
// Validate. After Shutdown, it returns ErrShutdown.
func (m *Manager) Set(services []Service) error {
	if err := Validate(services); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shutDown {
		return ErrShutdown
	}
	m.set(services)
	return nil
}

// ErrShutdown is returned by Set after Shutdown.
var ErrShutdown = errors.New("services: the machine is shutting down")

func (m *Manager) set(services []Service) {
	var order []string
	for _, s := range services {
		m.setOne(s.withDefaults())
		order = append(order, s.Name)
	}
	for _, name := range m.order {
		if !slices.Contains(order, name) && m.units[name] != nil {
			m.units[name].removed = true
			order = append(order, name)
		}
	}
	m.order = order
	m.converge()
}

func (m *Manager) setOne(s Service) {
	u, there := m.units[s.Name]
	if !there {
		u = &unit{service: s, log: NewLogRing(s.LogLines, s.LogBytes), state: State{Phase: Stopped}, since: time.Now()}
		m.units[s.Name] = u
		m.step(u, Want)
		return
	}
	if u.removed {
		u.removed = false
		m.step(u, Want)
	}
	if reflect.DeepEqual(u.planned(), s) {
		return
	}
	u.next = &s
	if u.state.Phase.Alive() {
		m.step(u, Restart)
	} else {
		u.applyNext()
	}
}

// planned returns the description of the next process of the service.
func (u *unit) planned() Service {
	if u.next != nil {
		return *u.next
	}
	return u.service
}

// applyNext replaces the description of the present process by that of the next process.
func (u *unit) applyNext() {
	if u.next == nil {
		return
	}
	if u.next.LogLines != u.service.LogLines || u.next.LogBytes != u.service.LogBytes {
		u.log = NewLogRing(u.next.LogLines, u.next.LogBytes)
	}
	u.service, u.next = *u.next, nil
}

// Services returns the list of services of the last Set, with defaults. Diff can compare it with
// another list.
func (m *Manager) Services() []Service {
	m.mu.Lock()
	defer m.mu.Unlock()
	var services []Service
	for _, name := range m.order {
		if u := m.units[name]; !u.removed {
			services = append(services, u.planned())
		}
	}
	return services
}

// Restart stops the process of a service and starts a new one, without the delay of a back-off. It
// returns before the new process runs. It fails if the service does not exist or is being removed.
func (m *Manager) Restart(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.find(name)
	if err != nil {
		return err
	}
	if u.removed {
		return fmt.Errorf("service %q: cannot restart: it is being stopped", name)
	}
	m.step(u, Restart)
	m.converge()
	return nil
}

// Signal sends a signal to the main process of a service. It fails if the service does not exist or
// has no process.
func (m *Manager) Signal(name string, signal syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.find(name)
	if err != nil {
		return err
	}
	if u.process == nil {
		return fmt.Errorf("service %q: cannot send signal: it is not running", name)
	}
	return u.process.Signal(signal, false)
}

// Shutdown stops all services, each after the services that depend on it, and returns when all have
// stopped. If the context ends first, Shutdown kills the remaining services, waits up to five
// seconds for their end, and returns an error with their names.
func (m *Manager) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.shutDown = true
	m.set(nil)
	m.mu.Unlock()
	none := func(s []Status) bool { return len(s) == 0 }
	_, err := cell.Wait(ctx, m.status, none)
	if err == nil {
		return nil
	}
	killed := m.killAll()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, stuck := cell.Wait(ctx, m.status, none)
	if stuck != nil {
		stuck = errors.New("some are still running")
	}
	return errors.Join(fmt.Errorf("services %s: killed, because they did not stop in time", strings.Join(killed, ", ")), stuck)
}

// killAll kills all remaining processes and returns the names of their services.
func (m *Manager) killAll() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.killNow = true
	for _, name := range m.order {
		if u := m.units[name]; u.state.Phase.Alive() {
			names = append(names, name)
			m.step(u, Unwant)
			m.perform(u, Action{Kind: Kill})
		}
	}
	m.converge()
	return names
}

// converge passes events to the state machine of each service: that its dependencies have become
// ready or unready, or, for a removed service, that no running service depends on it any more. It
// repeats this until no state changes, and then publishes the status. Every method that changes the
// state of a service calls converge last.
func (m *Manager) converge() {
	for again := true; again; {
		again = false
		for _, name := range m.order {
			u := m.units[name]
			before := u.state
			switch {
			case u.removed && u.state.Phase == Stopped && !u.state.Wanted:
				delete(m.units, name)
				m.order = slices.DeleteFunc(slices.Clone(m.order), func(n string) bool { return n == name })
				again = true
				continue
			case u.removed && u.state.Wanted && !m.needed(name):
				m.step(u, Unwant)
			case !u.removed && u.state.Needs != m.needsReady(u):
				m.step(u, map[bool]Event{true: DependenciesReady, false: DependenciesLost}[!u.state.Needs])
			}
			again = again || u.state != before
		}
	}
	m.publish()
}

// needsReady reports whether all dependencies of the service are ready.
func (m *Manager) needsReady(u *unit) bool {
	for _, need := range u.planned().DependsOn {
		if n := m.units[need]; n == nil || n.state.Phase != Running {
			return false
		}
	}
	return true
}

// needed reports whether another service with a live process depends on this service.
func (m *Manager) needed(name string) bool {
	for _, u := range m.units {
		if u.state.Phase.Alive() && slices.Contains(u.service.DependsOn, name) {
			return true
		}
	}
	return false
}

// step passes an event to the state machine of the service and performs the actions that it
// returns.
func (m *Manager) step(u *unit, e Event) {
	before := u.state.Phase
	var actions []Action
	u.state, actions = Step(u.state, e, u.service)
	if u.state.Phase != before {
		u.since = time.Now()
		m.config.Event(u.service.Name, "state", strings.TrimRight(fmt.Sprintf("%s → %s: %s", before, u.state.Phase, m.detail(u)), ": "))
	}
	for _, a := range actions {
		m.perform(u, a)
	}
}

// perform performs an action. Start is always the last action that step performs for an event,
// because a start that fails or is ready at once calls step with another event.
func (m *Manager) perform(u *unit, a Action) {
	switch a.Kind {
	case SetTimer:
		m.setTimer(u, a.Timer)
	case Start:
		if err := m.start(u); err != nil {
			u.failure = err.Error()
			m.config.Event(u.service.Name, "failure", u.failure)
			m.step(u, StartFailed)
		} else if u.service.Ready == (Probe{}) {
			m.step(u, Ready)
		}
	case Term, Kill:
		force := a.Kind == Kill || m.killNow
		if err := m.end(u, force); err != nil {
			m.config.Event(u.service.Name, "failure", err.Error())
		}
	}
}

// end sends SIGTERM to the main process. If force is true, it sends SIGKILL instead. It then also
// kills the other processes in the control group, unless LeaveChildren is set.
func (m *Manager) end(u *unit, force bool) error {
	if u.process == nil {
		return nil
	}
	if !force {
		return u.process.Signal(unix.SIGTERM, false)
	}
	err := u.process.Signal(unix.SIGKILL, false)
	if u.service.Cgroup != "" && !u.service.LeaveChildren {
		err = errors.Join(err, m.config.Groups.Kill(u.service.Cgroup))
	}
	return err
}

// setTimer replaces the timer of the service by one that causes the event Timeout after this time.
// If after is 0, it only removes the timer.
func (m *Manager) setTimer(u *unit, after time.Duration) {
	if u.timer != nil {
		u.timer.Stop()
		u.timer = nil
	}
	u.generation++
	if after == 0 {
		return
	}
	generation := u.generation
	u.timer = time.AfterFunc(after, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if u.generation != generation {
			return
		}
		if u.state.Phase == Starting {
			u.failure = fmt.Sprintf("was not ready within %v", after)
			m.config.Event(u.service.Name, "failure", u.failure)
		}
		m.step(u, Timeout)
		m.converge()
	})
}

// publish sets the status cell if the status has changed.
func (m *Manager) publish() {
	statuses := make([]Status, 0, len(m.order))
	for _, name := range m.order {
		u := m.units[name]
		s := Status{Name: name, State: u.state.Phase, Detail: m.detail(u), Since: u.since, Components: u.components}
		if u.process != nil {
			s.PID = u.process.PID
		}
		if u.starts > 1 {
			s.Restarts = u.starts - 1
		}
		statuses = append(statuses, s)
	}
	if have, _ := m.status.Get(); !reflect.DeepEqual(have, statuses) {
		m.status.Set(statuses)
	}
}

// detail returns a line with the reason why the service is not ready; empty if there is no reason.
func (m *Manager) detail(u *unit) string {
	var parts []string
	add := func(text string) {
		if text != "" {
			parts = append(parts, text)
		}
	}
	switch u.state.Phase {
	case Waiting:
		for _, need := range u.planned().DependsOn {
			if n := m.units[need]; n == nil || n.state.Phase != Running {
				add("waits for " + need)
			}
		}
		add(u.failure)
	case Starting, Unready:
		add(u.components.waitsFor())
		add(u.probe)
		if u.state.Failures > 0 {
			add("before: " + u.failure)
		}
	case BackingOff:
		add(u.failure)
	}
	return strings.Join(parts, "; ")
}
