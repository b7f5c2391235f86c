// Package dashboard holds the state and the screens of `orlopctl dashboard`: the known data of the
// machines, the effect of a key, and the rows of the screen. The state is a value, and all
// functions on it are pure. The caller handles the terminal, the network and the clock.
//
// The data of machines is untrusted. A text reaches the user's terminal only through fit, wrap or
// prose, which replace unprintable characters.
package dashboard

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
)

// State is the known data and the user's selection. Its methods return the next state and do not
// change the present state. New returns the first state.
type State struct {
	width, height int // size of the terminal in cells
	colour        bool
	now           time.Time

	machines []machine
	chosen   int // index of the selected machine
	screen   screen
	help     bool
	quit     bool
	log      lines // lines of the log that Wants returns
}

type screen int

const (
	overview screen = iota
	services
	logs
	events
	upgrade
	screens int = iota
)

var screenNames = [screens]string{"overview", "services", "logs", "events", "upgrade"}

// machine is the known data of a machine. A field is nil or zero until its data has arrived.
type machine struct {
	context, address string

	link   link
	reason string    // why the machine is unreachable
	next   time.Time // time of the next attempt

	version  *api.VersionResponse
	health   *api.HealthResponse
	system   system
	memory   memory
	services []service
	service  int // index of the selected service, 0 without services
	events   lines
	upgrade  *api.UpgradeStatus
	problems map[string]string // source → reason why it sends no data
}

type link int

const (
	connecting link = iota // no connection has succeeded or failed yet
	connected
	away
)

// system has the shown fields of topic "system" of a machine (machined/host).
type system struct {
	CPUs          int     `json:"cpus"`
	UptimeSeconds float64 `json:"uptimeSeconds"`
	Load1         float64 `json:"load1"`
}

// memory has the shown fields of topic "memory", in bytes.
type memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}

// service is an element of topic "services" (pkg/supervise).
type service struct {
	Name       string      `json:"name"`
	State      string      `json:"state"`
	Detail     string      `json:"detail"`
	Restarts   uint32      `json:"restarts"`
	Since      time.Time   `json:"since"`
	Components []component `json:"components"`
}

type component struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Detail string    `json:"detail"`
	Since  time.Time `json:"since"`
}

// Machine identifies a machine before its first answer.
type Machine struct {
	Context string // may be empty
	Address string // host[:port]
}

// Topics are the topics that the dashboard shows.
var Topics = []string{"services", "system", "memory"}

// These are the sources of data about a machine that are not topics.
const (
	Version = "version"
	Health  = "health"
	Events  = "events"
	Upgrade = "upgrade"
	Logs    = "log"
)

// Message is data from a machine, or a change of its connection.
type Message struct {
	Machine int // index in the list given to New
	// Body is Connected, Disconnected, Started, Failed, LogLine, or a pointer to a message of the
	// API: VersionResponse, HealthResponse, TopicValue of a topic in Topics, Event or
	// UpgradeStatus.
	Body any
}

// Connected reports that the machine accepted the connection.
type Connected struct{}

// Disconnected reports that the connection to the machine ended or could not be opened.
type Disconnected struct {
	Reason string
	Next   time.Time // time of the next attempt
}

// Started reports that a source sends all its data again from the beginning. The state removes the
// problem of the source, and its earlier lines if it is Events or Logs. The value of another source
// stays until the next value arrives.
type Started struct{ Source string }

// Failed reports that a source sends no more data over this connection.
type Failed struct{ Source, Reason string }

// LogLine is a line of a service's log.
type LogLine struct {
	Service string
	Line    *api.LogLine
}

// Log identifies the log of a service of a machine. An empty service means no log.
type Log struct {
	Machine int
	Service string
}

// New returns the state before any data has arrived. machines must not be empty.
func New(machines []Machine, colour bool) State {
	s := State{colour: colour}
	for _, m := range machines {
		s.machines = append(s.machines, machine{context: m.Context, address: strings.TrimSuffix(m.Address, ":50000")})
	}
	return s
}

// At returns the state with this time as the current time.
func (s State) At(now time.Time) State {
	s.now = now
	return s
}

// Sized returns the state for a terminal with this number of columns and rows.
func (s State) Sized(width, height int) State {
	s.width, s.height = width, height
	return s
}

// Quits reports whether the user has quit.
func (s State) Quits() bool { return s.quit }

// Wants returns the log on the screen. The caller sends only the lines of this log.
func (s State) Wants() Log {
	m := s.machines[s.chosen]
	if s.screen != logs || len(m.services) == 0 {
		return Log{}
	}
	return Log{Machine: s.chosen, Service: m.services[m.service].Name}
}

// settled compares the log on the screen with the log before a change. If the two logs differ,
// settled returns the state without the lines and the problem of the former log.
func (s State) settled(before Log) State {
	if s.Wants() != before {
		s.log = lines{}
		s = s.with(s.chosen, func(m *machine) { m.problem(Logs, "") })
	}
	return s
}

// The method with returns the state after a change of machine i.
func (s State) with(i int, change func(*machine)) State {
	s.machines = slices.Clone(s.machines)
	change(&s.machines[i])
	return s
}

// problem records the reason why a source sends no data. An empty reason removes the record.
func (m *machine) problem(source, reason string) {
	m.problems = maps.Clone(m.problems)
	if reason == "" {
		delete(m.problems, source)
		return
	}
	if m.problems == nil {
		m.problems = map[string]string{}
	}
	m.problems[source] = reason
}

// Apply returns the state after a message.
func (s State) Apply(message Message) State {
	before := s.Wants()
	ofLog := message.Machine == before.Machine && before.Service != ""
	switch body := message.Body.(type) {
	case LogLine:
		if ofLog && body.Service == before.Service {
			s.log = s.log.add(line{text: clock(body.Line.Time) + "  " + body.Line.Text})
		}
		return s
	case Started:
		if ofLog && body.Source == Logs {
			s.log = lines{}
		}
	}
	return s.with(message.Machine, func(m *machine) { m.take(message.Body) }).settled(before)
}

// take stores the content of a message.
func (m *machine) take(body any) {
	switch body := body.(type) {
	case Connected:
		m.link, m.reason, m.problems = connected, "", nil
	case Disconnected:
		m.link, m.reason, m.next = away, body.Reason, body.Next
		m.health, m.system, m.memory = nil, system{}, memory{} // these values are outdated at once
	case Started:
		m.problem(body.Source, "")
		if body.Source == Events {
			m.events = lines{}
		}
	case Failed:
		m.problem(body.Source, body.Reason)
	case *api.VersionResponse:
		m.version = body
	case *api.HealthResponse:
		m.health = body
	case *api.TopicValue:
		m.topic(body)
	case *api.Event:
		tone := plain
		if body.Kind == "failure" {
			tone = bad
		}
		m.events = m.events.add(line{text: date(body.Time) + "  " + pad(body.Kind, 9) + " " + pad(body.Source, 20) + " " + body.Message, tone: tone})
	case *api.UpgradeStatus:
		m.upgrade = body
	}
}

// topic stores the value of a topic. If the value cannot be parsed, topic records the reason, and
// the earlier value stays.
func (m *machine) topic(snapshot *api.TopicValue) {
	text, err := snapshot.Value.MarshalJSON()
	if err == nil {
		switch snapshot.Topic {
		case "services":
			err = read(text, &m.services)
			m.service = max(0, min(m.service, len(m.services)-1))
		case "system":
			err = read(text, &m.system)
		case "memory":
			err = read(text, &m.memory)
		}
	}
	if err != nil {
		m.problem(snapshot.Topic, "its answer cannot be read: "+err.Error())
	}
}

// read parses a JSON text into *value. On an error it does not change *value.
func read[T any](text []byte, value *T) error {
	var next T
	if err := json.Unmarshal(text, &next); err != nil {
		return err
	}
	*value = next
	return nil
}

// Key returns the state after the press of a key. key is the name of the key in bubbletea: "j",
// "down", "shift+tab".
func (s State) Key(key string) State {
	before := s.Wants()
	switch key {
	case "q", "ctrl+c":
		s.quit = true
		return s
	case "?":
		s.help = !s.help
		return s
	}
	if s.help {
		s.help = false // every key closes the help
		return s
	}
	switch key {
	case "tab":
		s.screen = (s.screen + 1) % screen(screens)
	case "shift+tab":
		s.screen = (s.screen + screen(screens) - 1) % screen(screens)
	case "1", "2", "3", "4", "5":
		s.screen = screen(key[0] - '1')
	case "n":
		s.chosen = (s.chosen + 1) % len(s.machines)
	case "p":
		s.chosen = (s.chosen + len(s.machines) - 1) % len(s.machines)
	case "enter":
		if s.screen == overview || s.screen == services {
			s.screen++
		}
	case "h", "left":
		s = s.chooseService(-1)
	case "l", "right":
		s = s.chooseService(1)
	case "j", "down":
		s = s.move(1)
	case "k", "up":
		s = s.move(-1)
	case "pgdown", "space":
		s = s.move(s.page())
	case "pgup", "b":
		s = s.move(-s.page())
	case "g", "home":
		s = s.move(-pastEnd)
	case "G", "end":
		s = s.move(pastEnd)
	}
	return s.settled(before)
}

// pastEnd is greater than the length of any list, so a move by pastEnd rows ends at the last row.
const pastEnd = 1 << 30

// page returns the number of rows for a log or for events on the screen. The page keys move by this
// number.
func (s State) page() int { return max(1, s.rows()-1) }

// move moves the selection or the scroll position of the screen by a number of rows.
func (s State) move(by int) State {
	switch s.screen {
	case overview:
		s.chosen = max(0, min(s.chosen+by, len(s.machines)-1))
	case services:
		s = s.chooseService(by)
	case logs:
		s.log = s.log.move(by, s.width, s.page())
	case events:
		s = s.with(s.chosen, func(m *machine) { m.events = m.events.move(by, s.width, s.page()) })
	}
	return s
}

// chooseService moves the selection of a service, on the screens with a service.
func (s State) chooseService(by int) State {
	if s.screen != services && s.screen != logs {
		return s
	}
	return s.with(s.chosen, func(m *machine) { m.service = max(0, min(m.service+by, len(m.services)-1)) })
}

// clock returns the time of day in UTC. date also returns the month and the day.
func clock(at *timestamppb.Timestamp) string { return at.AsTime().UTC().Format(time.TimeOnly) }
func date(at *timestamppb.Timestamp) string  { return at.AsTime().UTC().Format("01-02 15:04:05") }
