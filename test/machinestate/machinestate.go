// Package machinestate reads the state that a machine reports, for the measuring programs.
package machinestate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// IdentityLine is the console line with the key fingerprint of the machine.
var IdentityLine = regexp.MustCompile(`orlop: machine identity (sha256:[0-9a-f]{64})`)

// callLimit bounds one call; in emulation, the first TLS handshake takes a second.
const callLimit = 20 * time.Second

// Moment is an entry of the topic "timeline".
type Moment struct {
	Name    string
	Seconds float64 // since init started
}

// UnmarshalJSON reads an entry. In release 0.1.0 the field of the name has another name.
func (m *Moment) UnmarshalJSON(text []byte) error {
	var entry struct {
		Name, What string
		Seconds    float64
	}
	err := json.Unmarshal(text, &entry)
	m.Name, m.Seconds = cmp.Or(entry.Name, entry.What), entry.Seconds
	return err
}

// Service is the used part of an entry of the topic "services".
type Service struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Detail     string `json:"detail"`
	PID        int    `json:"pid"`
	Components []struct {
		Name   string `json:"name"`
		Ready  bool   `json:"ready"`
		Detail string `json:"detail"`
	} `json:"components"`
}

// Process is the used part of an entry of the topic "processes".
type Process struct {
	PID       int    `json:"pid"`
	Name      string `json:"name"`
	Anonymous int64  `json:"anonymous"` // bytes
	// ProcessorSeconds is its used processor time.
	ProcessorSeconds float64 `json:"processorSeconds"`
}

// Memory is the used part of the topic "memory", in bytes.
type Memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}

// Used is MemTotal − MemAvailable: the memory that is not available for other programs, in bytes.
func (m Memory) Used() int64 { return m.Total - m.Available }

// Get reads a topic.
func Get[T any](ctx context.Context, c *client.Client, topic string) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := c.Machine.Get(ctx, &api.GetRequest{Topic: topic})
	if err != nil {
		return none, fmt.Errorf("topic %s: %w", topic, err)
	}
	return Decode[T](s.Value)
}

// Decode reads the value of a topic.
func Decode[T any](v *structpb.Value) (T, error) {
	var out T
	text, err := v.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return out, fmt.Errorf("state: cannot understand: %w", err)
	}
	return out, nil
}

// Names returns the names of processes: the service's name, or the program's name for other
// processes.
func Names(processes []Process, services []Service) []string {
	known := map[int]string{1: "machined"}
	for _, s := range services {
		if s.PID != 0 {
			known[s.PID] = s.Name
		}
	}
	var names []string
	for _, p := range processes {
		name, ok := known[p.PID]
		if !ok {
			name = p.Name
		}
		names = append(names, name)
	}
	return names
}

// Events returns all events that the machine retains, the oldest first.
func Events(ctx context.Context, c *client.Client) ([]*api.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	stream, err := c.Machine.Events(ctx, &api.EventsRequest{})
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	var kept []*api.Event
	for {
		e, err := stream.Recv()
		if err == io.EOF {
			return kept, nil
		}
		if err != nil {
			return nil, fmt.Errorf("events: %w", err)
		}
		kept = append(kept, e)
	}
}

// afterSeconds matches the end of the event of a moment.
var afterSeconds = regexp.MustCompile(` after ([0-9]+(?:\.[0-9]+)?) s$`)

// Began returns the start of init by the machine's clock at the time of an event, if it is the
// event of a moment: such an event has the time of day and the seconds.
func Began(e *api.Event) (time.Time, bool) {
	match := afterSeconds.FindStringSubmatch(e.Message)
	if e.Source != "boot" || e.Kind != "stage" || match == nil {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		return time.Time{}, false
	}
	return e.Time.AsTime().Add(-time.Duration(seconds * float64(time.Second))), true
}
