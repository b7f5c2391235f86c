package supervise

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/notify"
)

// Status is what there is to say about a service.
type Status struct {
	Name  string `json:"name"`
	State Phase  `json:"state"`
	// what it waits for, or why it failed; one line
	Detail     string      `json:"detail,omitempty"`
	PID        int         `json:"pid,omitempty"` // 0 when there is no process
	Restarts   uint32      `json:"restarts"`      // processes after the first
	Since      time.Time   `json:"since"`         // of the state
	Components []Component `json:"components,omitempty"`
}

// Component is a part of a process that reports its readiness by itself (pkg/notify).
type Component struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"` // of Ready
}

// maxComponents bounds what a confused process can make machined remember.
const maxComponents = 64

// components are what a process has announced, in the order in which it did. The one with the empty
// name speaks for the process itself.
type components []Component

// note returns the components after a message.
func (c components) note(m notify.Message, now time.Time) components {
	c = slices.Clone(c) // readers hold the former ones
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

// ready says whether the process is: at least one component was announced, and all that were are
// ready.
func (c components) ready() bool {
	return len(c) > 0 && !slices.ContainsFunc(c, func(one Component) bool { return !one.Ready })
}

// waitsFor says in words which components are not ready.
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
