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
	// Detail is the reason why the service waits, or its last failure, in one line.
	Detail     string      `json:"detail,omitempty"`
	PID        int         `json:"pid,omitempty"` // 0 without a process
	Restarts   uint32      `json:"restarts"`      // number of processes after the first
	Since      time.Time   `json:"since"`         // time of the last change of State
	Components []Component `json:"components,omitempty"`
}

// Find returns the status of a service in a list, or the zero Status if the list does not contain
// the service.
func Find(list []Status, name string) Status {
	i := slices.IndexFunc(list, func(s Status) bool { return s.Name == name })
	if i < 0 {
		return Status{}
	}
	return list[i]
}

// ComponentReady reports whether the process has announced the component with this name, and the
// component is ready.
func (s Status) ComponentReady(name string) bool {
	return slices.ContainsFunc(s.Components, func(c Component) bool { return c.Name == name && c.Ready })
}

// Component is a part of a process that reports its own readiness (pkg/service/notify).
type Component struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"` // time of the last change of Ready
}

// maxComponents is the maximum number of components of a process. A process with a bug could
// announce any number of them.
const maxComponents = 64

// components are the components that a process has announced, in the order of their first messages.
// The component with the empty name is the process itself.
type components []Component

// record returns the components after a message. A message about a new component beyond
// maxComponents has no effect.
func (c components) record(m notify.Message, now time.Time) components {
	c = slices.Clone(c) // readers may still use the previous slice
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

// ready reports whether the process is ready: it has announced at least one component, and all
// announced components are ready.
func (c components) ready() bool {
	return len(c) > 0 && !slices.ContainsFunc(c, func(one Component) bool { return !one.Ready })
}

// waitsFor returns a text with the components that are not ready, or an empty string if there are
// none.
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
