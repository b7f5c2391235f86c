package supervise

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/service/notify"
)

// Status is the status of a service.
type Status struct {
	Name  string `json:"name"`
	State Phase  `json:"state"`
	// reason for waiting or for the last failure; one line
	Detail     string      `json:"detail,omitempty"`
	PID        int         `json:"pid,omitempty"` // 0 without a process
	Restarts   uint32      `json:"restarts"`      // processes after the first
	Since      time.Time   `json:"since"`         // of the state
	Components []Component `json:"components,omitempty"`
}

// Find returns the status of a service in a list; its State is empty if the list does not have the
// service.
func Find(list []Status, name string) Status {
	i := slices.IndexFunc(list, func(s Status) bool { return s.Name == name })
	if i < 0 {
		return Status{}
	}
	return list[i]
}

// ComponentReady reports whether a component of the service is ready.
func (s Status) ComponentReady(name string) bool {
	return slices.ContainsFunc(s.Components, func(c Component) bool { return c.Name == name && c.Ready })
}

// Component is a part of a process with its own readiness (pkg/service/notify).
type Component struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"` // of Ready
}

// maxComponents bounds the components that a process with a bug can announce.
const maxComponents = 64

// components are the announced components of a process, in the order of their announcement. The
// component with the empty name is the process itself.
type components []Component

// record returns the components after a message.
func (c components) record(m notify.Message, now time.Time) components {
	c = slices.Clone(c) // readers hold the previous slice
	i := slices.IndexFunc(c, func(have Component) bool { return have.Name == m.Component })
	if i < 0 {
		if len(c) == maxComponents {
			return c
		}
		return append(c, Component{Name: m.Component, Ready: m.Ready, Detail: m.Detail, Since: now})
	}
	if c[i].Ready != m.Ready {
		c[i].Since = now
	}
	c[i].Ready, c[i].Detail = m.Ready, m.Detail
	return c
}

// ready reports whether the process is ready: at least one component was announced, and all
// announced components are ready.
func (c components) ready() bool {
	return len(c) > 0 && !slices.ContainsFunc(c, func(one Component) bool { return !one.Ready })
}

// waitsFor describes the components that are not ready.
func (c components) waitsFor() string {
	var parts []string
	for _, one := range c {
		if one.Ready {
			continue
		}
		text := one.Name
		switch {
		case one.Name == "":
			text = one.Detail
		case one.Detail != "":
			text = fmt.Sprintf("%s (%s)", one.Name, one.Detail)
		}
		if text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "waits for " + strings.Join(parts, ", ")
}
