// Package dashboard is what `orlopctl dashboard` shows: what is known of the machines, what a key
// changes, and the rows of the screen. All of it is one value and functions of it; the terminal,
// the network and the clock belong to whoever feeds it.
//
// Machines are not to be trusted with somebody's terminal: a text is drawn through fit, wrap or
// prose only, which take out what is not printable.
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

// State is all that is known and chosen. Its methods return the next one and leave the present one
// as it is. Make it with New.
type State struct {
	width, height int // of the terminal, in cells
	colour        bool
	now           time.Time

	machines []machine
	chosen   int // machine
	screen   screen
	help     bool
	quit     bool
	log      lines // what has come of Wants
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

// machine is what is known of one machine. What is nil or zero has not been heard yet.
type machine struct {
	context, address string

	link   link
	reason string    // why it is away
	next   time.Time // when it is tried again

	version  *api.VersionResponse
	health   *api.HealthResponse
	system   system
	memory   memory
	services []service
	service  int // the chosen one, 0 when there is none
	events   lines
	upgrade  *api.UpgradeStatus
	problems map[string]string // source → why nothing comes from it
}

type link int

const (
	connecting link = iota // for the first time
	connected
	away
)

// system is topic "system" of a machine, as far as it is shown (machined/host).
type system struct {
	CPUs          int     `json:"cpus"`
	UptimeSeconds float64 `json:"uptimeSeconds"`
	Load1         float64 `json:"load1"`
}

// memory is topic "memory", in bytes.
type memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}

// service is one of topic "services" (pkg/supervise).
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

// Machine is how a machine is known before it has said anything.
type Machine struct {
	Context string // may be empty
	Address string // host[:port]
}

// Topics are the topics of a machine that are shown.
var Topics = []string{"services", "system", "memory"}

// The other sources of what is known of a machine.
const (
	Version = "version"
	Health  = "health"
	Events  = "events"
	Upgrade = "upgrade"
	Logs    = "log"
)

// Message is what came from one machine, or became of it.
type Message struct {
	Machine int // of those that New was given
	// Body is one of Connected, Away, Began, Failed, LogLine, and the API's VersionResponse,
	// HealthResponse, TopicValue of one of Topics, Event and UpgradeStatus, by pointer.
	Body any
}

// Connected: the machine has taken the connection.
type Connected struct{}

// Disconnected: there is no connection to the machine any more, or none came to be.
type Disconnected struct {
	Reason string
	Next   time.Time // when it is tried again
}

// Started: a source begins anew, with all that it has. What it sent before is to be forgotten.
type Started struct{ Source string }

// Failed: nothing more comes from a source of this connection.
type Failed struct{ Source, Reason string }

// LogLine is a line of a service's log.
type LogLine struct {
	Service string
	Line    *api.LogLine
}

// Log names the log of a service of a machine; without a service it is none.
type Log struct {
	Machine int
	Service string
}

// New is the state before anything is heard. There has to be a machine.
func New(machines []Machine, colour bool) State {
	s := State{colour: colour}
	for _, m := range machines {
		s.machines = append(s.machines, machine{context: m.Context, address: strings.TrimSuffix(m.Address, ":50000")})
	}
	return s
}

// At is the state at a time.
func (s State) At(now time.Time) State {
	s.now = now
	return s
}

// Sized is the state on a terminal of so many columns and rows.
func (s State) Sized(width, height int) State {
	s.width, s.height = width, height
	return s
}

// Quits tells whether the reader has had enough.
func (s State) Quits() bool { return s.quit }

// Wants is the log that is looked at. Its lines are to be sent, and those of no other.
func (s State) Wants() Log {
	m := s.machines[s.chosen]
	if s.screen != logs || len(m.services) == 0 {
		return Log{}
	}
	return Log{Machine: s.chosen, Service: m.services[m.service].Name}
}

// settled drops the lines of a log that is not looked at any more.
func (s State) settled(before Log) State {
	if s.Wants() != before {
		s.log = lines{}
		s = s.with(s.chosen, func(m *machine) { m.problem(Logs, "") })
	}
	return s
}

// with is the state with one machine changed.
func (s State) with(i int, change func(*machine)) State {
	s.machines = slices.Clone(s.machines)
	change(&s.machines[i])
	return s
}

// problem notes why nothing comes from a source; an empty reason forgets it.
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

// Apply is the state after a message.
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

func (m *machine) take(body any) {
	switch body := body.(type) {
	case Connected:
		m.link, m.reason, m.problems = connected, "", nil
	case Disconnected:
		m.link, m.reason, m.next = away, body.Reason, body.Next
		m.health, m.system, m.memory = nil, system{}, memory{} // they are of the moment
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

// topic reads a topic. What cannot be read leaves what was known, and the reason.
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

// read replaces a value by what a JSON text says, or leaves it.
func read[T any](text []byte, value *T) error {
	var next T
	if err := json.Unmarshal(text, &next); err != nil {
		return err
	}
	*value = next
	return nil
}

// Key is the state after a key, by the name that bubbletea has for it: "j", "down", "shift+tab".
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
		s.help = false // whichever key it was
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
		s = s.move(-most)
	case "G", "end":
		s = s.move(most)
	}
	return s.settled(before)
}

// most is further than any list goes.
const most = 1 << 30

// page is how many rows of a log or of events there are on the screen, and how far a key for a page
// goes.
func (s State) page() int { return max(1, s.rows()-1) }

// move goes up or down in what the screen shows.
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

func (s State) chooseService(by int) State {
	if s.screen != services && s.screen != logs {
		return s
	}
	return s.with(s.chosen, func(m *machine) { m.service = max(0, min(m.service+by, len(m.services)-1)) })
}

// clock is the time of the day, UTC; date has the day, too.
func clock(at *timestamppb.Timestamp) string { return at.AsTime().UTC().Format(time.TimeOnly) }
func date(at *timestamppb.Timestamp) string  { return at.AsTime().UTC().Format("01-02 15:04:05") }
