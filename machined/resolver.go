package main

import (
	"time"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/resolver"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/pki"
)

// newResolver makes the forwarder of queries over TLS.
func newResolver(m *machine) *resolver.Forwarder {
	return resolver.New(resolver.Deps{
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) resolver.Config { return nodeplan.Resolver(now.Config) }),
		Clock:  m.domains.clock.view,
		Listen: nodeplan.StubResolver,
		Event:  m.reports.events.From("resolver"),
	})
}

// view returns the knowledge of the time. A machine without time servers relies on its hardware
// clock.
func (c clock) view() pki.ClockView {
	s, _ := c.status.Get()
	return pki.ClockView{
		Now: time.Now(), Floor: c.floor.Now(time.Now()),
		Unknown: s.LastSync.IsZero() && len(s.Servers) > 0,
	}
}
