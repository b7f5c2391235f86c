package main

import (
	"context"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/test/machinestate"
)

// machineTimes has the times at which a machine reached the steps of its start, in seconds since
// the power-on of the first machine. A step that the machine did not reach is nil.
type machineTimes struct {
	Name       string   `json:"name"`
	PowerOn    *float64 `json:"poweron_s,omitempty"`
	Userspace  *float64 `json:"userspace_s,omitempty"`  // init started
	API        *float64 `json:"api_s,omitempty"`        // the management API listens
	Configured *float64 `json:"configured_s,omitempty"` // the machine accepted its configuration
	EtcdVoter  *float64 `json:"etcd_voter_s,omitempty"` // etcd serves as a voting member
	KubeAPI    *float64 `json:"kube_api_s,omitempty"`   // the API server of the machine is ready
	NodeReady  *float64 `json:"node_ready_s,omitempty"` // the Node of the machine is Ready
}

// These are the names of steps in the topic timeline, in which a step is called a moment.
const (
	momentAPI     = "apid"
	momentEtcd    = "orchestrator-api/etcd"
	momentKubeAPI = "orchestrator-api/kube-apiserver"
)

// said holds what a machine reports about its boot.
type said struct {
	moments    []machinestate.Moment
	events     []*api.Event
	configured time.Time
}

// times converts the reports of a machine to the clock of this computer.
//
// The timeline has seconds since the start of init, and an event about a moment also has the time
// of day. Their difference is the start of init (machinestate.Began). times uses the latest such
// event: at that time, the machine had synchronized its clock with this computer by NTP.
//
// The parameters first and poweron are the times of the power-on of the first machine and of this
// machine.
func (s said) times(name string, first, poweron, ready time.Time) machineTimes {
	var began time.Time
	for _, e := range slices.Backward(s.events) {
		if at, ok := machinestate.Began(e); ok {
			began = at
			break
		}
	}
	reached := func(what string) *float64 {
		i := slices.IndexFunc(s.moments, func(m machinestate.Moment) bool { return m.Name == what })
		if i < 0 || began.IsZero() {
			return nil
		}
		return since(first, began.Add(time.Duration(s.moments[i].Seconds*float64(time.Second))))
	}
	return machineTimes{
		Name: name, PowerOn: since(first, poweron), Userspace: since(first, began), API: reached(momentAPI), Configured: since(first, s.configured),
		EtcdVoter: reached(momentEtcd), KubeAPI: reached(momentKubeAPI), NodeReady: since(first, ready),
	}
}

// ask reads the reports of a machine about its boot.
func ask(ctx context.Context, c *client.Client) (said, error) {
	var s said
	var err error
	if s.moments, err = machinestate.Get[[]machinestate.Moment](ctx, c, "timeline"); err != nil {
		return s, err
	}
	if s.events, err = machinestate.Events(ctx, c); err != nil {
		return s, err
	}
	configuration, err := machinestate.Get[struct {
		Applied time.Time `json:"applied"`
	}](ctx, c, "configuration")
	s.configured = configuration.Applied
	return s, err
}
