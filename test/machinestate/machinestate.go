// Package machinestate reads what a machine says of itself, for the programs that measure machines.
package machinestate

import (
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

// IdentityLine is the line of a console that shows the fingerprint of the machine's key.
var IdentityLine = regexp.MustCompile(`orlop: machine identity (sha256:[0-9a-f]{64})`)

// callLimit bounds one call; emulated, the first TLS handshake takes a second.
const callLimit = 20 * time.Second

// Moment is an entry of the topic "timeline".
type Moment struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"` // since init began
}

// Service is what is read of an entry of the topic "services".
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

// Process is what is read of an entry of the topic "processes".
type Process struct {
	PID       int    `json:"pid"`
	Name      string `json:"name"`
	Anonymous int64  `json:"anonymous"` // bytes
	// ProcessorSeconds is the processor time that it has taken.
	ProcessorSeconds float64 `json:"processorSeconds"`
}

// Memory is what is read of the topic "memory", in bytes.
type Memory struct {
	Total     int64 `json:"total"`
	Available int64 `json:"available"`
}

// Used is MemTotal − MemAvailable: what could not be given out to somebody else, in bytes.
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

// Names are what processes are called: services by their names, anything else by its program's.
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

// Events are all events that the machine keeps, the oldest first.
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

// afterSeconds is how machined ends the event of a moment.
var afterSeconds = regexp.MustCompile(` after ([0-9]+(?:\.[0-9]+)?) s$`)

// Began is when init began by the clock that the machine had when an event happened, if it is the
// event of a moment: it carries the time of day and the seconds.
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
