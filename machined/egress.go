package main

import (
	"net"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/forwarder"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/paths"
)

// newForwarder makes the forwarder of containerd and the API server.
func newForwarder(m *machine) *forwarder.Server {
	return forwarder.New(forwarder.Deps{
		Config: func() egress.Config { return egressOf(m) },
		Listen: func() (net.Listener, error) { return machinedapi.Listen(paths.ForwarderSocket, paths.UserAPI) },
		Event:  m.reports.events.From("egress"),
	})
}

// egressOf returns how servers outside the cluster are reached now.
func egressOf(m *machine) egress.Config { return nodeplan.Egress(m.config.active.Current().Config) }
