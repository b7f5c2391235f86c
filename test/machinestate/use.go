package machinestate

import (
	"context"

	"github.com/orlop-os/orlop/pkg/client"
)

// Use is the processor time that a machine has used since its boot, as the machine reports it.
type Use struct {
	CPUs         int
	Uptime, Idle float64 // seconds; Idle is the sum over all processors
	// Seconds is the processor time of each service, by its name. For a process without a service,
	// the key is the name of its program.
	Seconds map[string]float64
}

// ReadUse reads the present values from a machine.
func ReadUse(ctx context.Context, c *client.Client) (Use, error) {
	system, err := Get[struct {
		CPUs          int     `json:"cpus"`
		UptimeSeconds float64 `json:"uptimeSeconds"`
		IdleSeconds   float64 `json:"idleSeconds"`
	}](ctx, c, "system")
	if err != nil {
		return Use{}, err
	}
	processes, err := Get[[]Process](ctx, c, "processes")
	if err != nil {
		return Use{}, err
	}
	services, err := Get[[]Service](ctx, c, "services")
	if err != nil {
		return Use{}, err
	}
	u := Use{CPUs: system.CPUs, Uptime: system.UptimeSeconds, Idle: system.IdleSeconds, Seconds: map[string]float64{}}
	for i, name := range Names(processes, services) {
		u.Seconds[name] += processes[i].ProcessorSeconds
	}
	return u, nil
}

// BusySince returns the share of their time in which the processors were busy between the reading
// `before` and u, from 0 to 1. It returns nil if no time has passed.
func (u Use) BusySince(before Use) *float64 {
	time := float64(u.CPUs) * (u.Uptime - before.Uptime)
	if time <= 0 {
		return nil
	}
	busy := min(1, max(0, 1-(u.Idle-before.Idle)/time))
	return &busy
}

// worthSeconds is the processor time, in seconds, above which Since reports a service.
const worthSeconds = 0.05

// Since returns the processor time of each service between the reading `before` and u, in seconds.
// It omits services with little processor time (worthSeconds).
func (u Use) Since(before Use) map[string]float64 {
	out := map[string]float64{}
	for name, seconds := range u.Seconds {
		if took := seconds - before.Seconds[name]; took > worthSeconds {
			out[name] = took
		}
	}
	return out
}
