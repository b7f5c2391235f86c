// Package machinestate reads the state that a machine reports about itself. The measuring programs
// use it.
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

// IdentityLine matches the console line with the fingerprint of the machine's key.
var IdentityLine = regexp.MustCompile(`orlop: machine identity (sha256:[0-9a-f]{64})`)

// callLimit is the deadline of one call. On an emulated processor, the first TLS handshake takes a
// second.
const callLimit = 20 * time.Second

// Moment is an entry of the topic timeline: the time at which the machine reached a stage of its
// boot.
type Moment struct {
	Name    string
	Seconds float64 // since init started
}

// UnmarshalJSON decodes an entry. Release 0.1.0 has the field what in place of the field name.
func (m *Moment) UnmarshalJSON(text []byte) error {
	var entry struct {
		Name, What string
		Seconds    float64
	}
	err := json.Unmarshal(text, &entry)
	m.Name, m.Seconds = cmp.Or(entry.Name, entry.What), entry.Seconds
	return err
}

// Service has the used fields of an entry of the topic services.
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

// Process has the used fields of an entry of the topic processes.
type Process struct {
	PID       int    `json:"pid"`
	Name      string `json:"name"`
	Anonymous int64  `json:"anonymous"` // bytes
	// ProcessorSeconds is the processor time that the process has used.
	ProcessorSeconds float64 `json:"processorSeconds"`
}

// Memory has the used fields of the topic memory, in bytes.
type Memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}

// Used returns the memory that is not available to further programs, in bytes: MemTotal −
// MemAvailable.
func (m Memory) Used() int64 { return m.Total - m.Available }

// Get reads the present value of a topic.
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

// Decode decodes the value of a topic.
func Decode[T any](v *structpb.Value) (T, error) {
	var out T
	text, err := v.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return out, fmt.Errorf("state: cannot decode: %w", err)
	}
	return out, nil
}

// Names returns a name for each process, in the same order. It is the name of the process's
// service. A process without a service has the name of its program, and PID 1 has the name
// machined.
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

// afterSeconds matches the end of the message of an event about a Moment.
var afterSeconds = regexp.MustCompile(` after ([0-9]+(?:\.[0-9]+)?) s$`)

// Began returns the time of day at which init started, and true, for an event about a Moment. The
// event has the time of day, and its message has the seconds since init started. The difference is
// the result. It is wrong if the machine's clock was wrong at the time of the event. For other
// events, Began returns false.
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
