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
	"github.com/orlop-os/orlop/pkg/cgroup"
	"github.com/orlop-os/orlop/pkg/logring"
	"golang.org/x/sys/unix"
)

// Config is what a Manager works with.
type Config struct {
	Reaper *Reaper     // its Loop must run
	Groups cgroup.Tree // where services' control groups are made; cgroup.Mount on a machine
	// Event is told what happens, one line each: kind is "state" or "failure". It is called with
	// the manager's lock held, so it must be quick and must not call the manager. May be nil.
	Event func(service, kind, message string)
}

// Manager runs services. All methods may be called from any goroutine.
type Manager struct {
	config Config
	status *cell.Cell[[]Status]

	mu    sync.Mutex
	units map[string]*unit
	order []string // names in the order in which they were given
	hurry bool     // a shutdown has run out of time: end processes by force
	shut  bool     // Shutdown was called: nothing is started any more
}

// unit is a service and what it is doing. The manager's lock guards it.
type unit struct {
	service Service  // as the present process was started, or as the next one will be
	next    *Service // what the next process will be started as, when that differs
	doomed  bool     // to be forgotten once it has stopped
	log     *logring.Ring

	state   State
	since   time.Time
	failure string // how it last ended by itself
	starts  uint32

	process    *Process
	endProbe   context.CancelFunc // of the present process
	components components
	probe      string // what the probe said last

	timer      *time.Timer
	generation int // of the timer: one that was replaced but fires all the same is told by it
}

// NewManager returns a manager without services.
func NewManager(config Config) *Manager {
	if config.Event == nil {
		config.Event = func(string, string, string) {}
	}
	return &Manager{config: config, status: cell.New([]Status(nil)), units: map[string]*unit{}}
}

// Status returns the cell with the status of every service, in the order in which they were given.
func (m *Manager) Status() *cell.Cell[[]Status] { return m.status }

// Log returns a service's output.
func (m *Manager) Log(name string) (*logring.Ring, error) {
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

// Set says which services should run: all of them, each time. New ones are started, those that are
// not named any more are stopped, those that differ are restarted; the others are left alone. It
// returns at once; Status shows the progress. A set that is not valid changes nothing. After
// Shutdown there is no set any more, and that is an error.
func (m *Manager) Set(services []Service) error {
	if err := Validate(services); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shut {
		return ErrShutdown
	}
	m.set(services)
	return nil
}

// ErrShutdown says that the services are stopped for good.
var ErrShutdown = errors.New("services: the machine is going down")

func (m *Manager) set(services []Service) {
	var order []string
	for _, s := range services {
		m.setOne(s.withDefaults())
		order = append(order, s.Name)
	}
	for _, name := range m.order {
		if !slices.Contains(order, name) && m.units[name] != nil {
			m.units[name].doomed = true
			order = append(order, name)
		}
	}
	m.order = order
	m.settle()
}

func (m *Manager) setOne(s Service) {
	u, there := m.units[s.Name]
	if !there {
		u = &unit{service: s, log: logring.New(s.LogLines, s.LogBytes), state: State{Phase: Stopped}, since: time.Now()}
		m.units[s.Name] = u
		m.step(u, Want)
		return
	}
	if u.doomed {
		u.doomed = false
		m.step(u, Want)
	}
	if reflect.DeepEqual(u.planned(), s) {
		return
	}
	u.next = &s
	if u.state.Phase.Alive() {
		m.step(u, Restart)
	} else {
		u.takeNext()
	}
}

// planned is the service as it should be.
func (u *unit) planned() Service {
	if u.next != nil {
		return *u.next
	}
	return u.service
}

func (u *unit) takeNext() {
	if u.next == nil {
		return
	}
	if u.next.LogLines != u.service.LogLines || u.next.LogBytes != u.service.LogBytes {
		u.log = logring.New(u.next.LogLines, u.next.LogBytes)
	}
	u.service, u.next = *u.next, nil
}

// Services returns the services as they should be, in order: what Diff compares a new set with.
func (m *Manager) Services() []Service {
	m.mu.Lock()
	defer m.mu.Unlock()
	var services []Service
	for _, name := range m.order {
		if u := m.units[name]; !u.doomed {
			services = append(services, u.planned())
		}
	}
	return services
}

// Restart ends a service's process and starts it anew, at once even if it was waiting after a
// failure.
func (m *Manager) Restart(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.find(name)
	if err != nil {
		return err
	}
	if u.doomed {
		return fmt.Errorf("service %q: cannot restart: it is being stopped", name)
	}
	m.step(u, Restart)
	m.settle()
	return nil
}

// Signal sends a signal to a service's process, which must be there. What the process makes of it
// is its own affair.
func (m *Manager) Signal(name string, signal syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.find(name)
	if err != nil {
		return err
	}
	if u.process == nil {
		return fmt.Errorf("service %q: cannot send it a signal: it does not run", name)
	}
	return u.process.Signal(signal, false)
}

// Shutdown stops all services, those that are needed after those that need them, and returns when
// none is left. When the context ends first, what is left is killed, and the error names it.
func (m *Manager) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.shut = true
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
		stuck = errors.New("some are still there")
	}
	return errors.Join(fmt.Errorf("services %s: killed, because they did not end in time", strings.Join(killed, ", ")), stuck)
}

func (m *Manager) killAll() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hurry = true
	for _, name := range m.order {
		if u := m.units[name]; u.state.Phase.Alive() {
			names = append(names, name)
			m.step(u, Unwant)
			m.perform(u, Action{Kind: Kill})
		}
	}
	m.settle()
	return names
}

// settle tells each service what has become of those it needs and of those that need it, until
// nothing more follows, and publishes the outcome. Every entry to the manager ends with it.
func (m *Manager) settle() {
	for again := true; again; {
		again = false
		for _, name := range m.order {
			u := m.units[name]
			before := u.state
			switch {
			case u.doomed && u.state.Phase == Stopped && !u.state.Wanted:
				delete(m.units, name)
				m.order = slices.DeleteFunc(slices.Clone(m.order), func(n string) bool { return n == name })
				again = true
				continue
			case u.doomed && u.state.Wanted && !m.needed(name):
				m.step(u, Unwant)
			case !u.doomed && u.state.Needs != m.needsReady(u):
				m.step(u, map[bool]Event{true: DependenciesReady, false: DependenciesLost}[!u.state.Needs])
			}
			again = again || u.state != before
		}
	}
	m.publish()
}

// needsReady says whether all that the service needs is ready.
func (m *Manager) needsReady(u *unit) bool {
	for _, need := range u.planned().DependsOn {
		if n := m.units[need]; n == nil || n.state.Phase != Running {
			return false
		}
	}
	return true
}

// needed says whether there is a process of another service that was started to rely on this one.
func (m *Manager) needed(name string) bool {
	for _, u := range m.units {
		if u.state.Phase.Alive() && slices.Contains(u.service.DependsOn, name) {
			return true
		}
	}
	return false
}

// step feeds the service's machine and does what it asks for.
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

// perform does one action. Start comes last in a list of actions, because it may step the machine
// again.
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
		force := a.Kind == Kill || m.hurry
		if err := m.end(u, force); err != nil {
			m.config.Event(u.service.Name, "failure", err.Error())
		}
	}
}

// end asks the process to end, or kills it with all that belongs to it.
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
		m.settle()
	})
}

// publish sets the status cell when something has changed.
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

// detail says in one line what the service waits for or why it failed.
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
