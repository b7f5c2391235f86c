package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/test/machinestate"
)

// workerWantedMiB is the target for the used memory of a worker.
const workerWantedMiB = 200

// usage is the memory use of a machine.
type usage struct {
	Name         string  `json:"name"`
	UsedMiB      float64 `json:"machine_used_mib"` // MemTotal − MemAvailable
	AnonTotalMiB float64 `json:"anon_total_mib"`
	// memory of each service; processes of no service are listed by program name
	AnonMiB map[string]float64 `json:"anon_mib"`
}

// memoryFigures are the memory figures of the idle machines.
type memoryFigures struct {
	outcome
	IdleS float64 `json:"idle_s"`
	// ControlPlane and Worker are the largest values of all machines with this role.
	ControlPlane *float64 `json:"control_plane_used_mib,omitempty"`
	Worker       *float64 `json:"worker_used_mib,omitempty"`
	Machines     []usage  `json:"machines,omitempty"`
}

func (f *memoryFigures) rows() []row {
	rows := []row{
		{"used by a control-plane machine", sizeMiB(f.ControlPlane), ""},
		{"used by a worker", sizeMiB(f.Worker), fmt.Sprintf("≤ %d MiB", workerWantedMiB)},
	}
	for _, m := range f.Machines {
		rows = append(rows, row{"  " + m.Name, fmt.Sprintf("%.1f MiB; anonymous %.1f MiB: %s", m.UsedMiB, m.AnonTotalMiB, shares(m.AnonMiB)), ""})
	}
	return rows
}

func sizeMiB(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", *v)
}

// shares lists the names with their sizes in MiB, in descending order of size.
func shares(sizes map[string]float64) string {
	var words []string
	for _, name := range slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b)) }) {
		words = append(words, fmt.Sprintf("%s %.1f", name, sizes[name]))
	}
	return strings.Join(words, ", ")
}

// memory lets the machines idle, and then reads their memory use.
func (b *bench) memory(ctx context.Context) (figures, error) {
	f := &memoryFigures{IdleS: b.idle.Seconds()}
	if err := backoff.Sleep(ctx, b.clock.Outside(b.idle)); err != nil {
		return f, err
	}
	contexts := b.cluster.Machines()
	for _, name := range slices.Sorted(maps.Keys(contexts)) {
		var u usage
		err := b.with(ctx, contexts[name], func(c *client.Client) (err error) {
			u, err = readUsage(ctx, c, name)
			return err
		})
		if err != nil {
			return f, fmt.Errorf("machine %s: %w", name, err)
		}
		f.add(u)
	}
	return f, nil
}

func (f *memoryFigures) add(u usage) {
	f.Machines = append(f.Machines, u)
	largest := &f.Worker
	if isControlPlane(u.Name) {
		largest = &f.ControlPlane
	}
	if *largest == nil || **largest < u.UsedMiB {
		*largest = &u.UsedMiB
	}
}

// isControlPlane reports whether the name is a name that `cluster create` gives to control-plane
// machines.
func isControlPlane(name string) bool { return strings.HasPrefix(name, "cp") }

func readUsage(ctx context.Context, c *client.Client, name string) (usage, error) {
	u := usage{Name: name}
	memory, err := machinestate.Get[machinestate.Memory](ctx, c, "memory")
	if err != nil {
		return u, err
	}
	processes, err := machinestate.Get[[]machinestate.Process](ctx, c, "processes")
	if err != nil {
		return u, err
	}
	services, err := machinestate.Get[[]machinestate.Service](ctx, c, "services")
	if err != nil {
		return u, err
	}
	u.UsedMiB = float64(memory.Used()) / mib
	u.addProcesses(processes, services)
	return u, nil
}

func (u *usage) addProcesses(processes []machinestate.Process, services []machinestate.Service) {
	u.AnonMiB = map[string]float64{}
	for i, name := range machinestate.Names(processes, services) {
		size := float64(processes[i].Anonymous) / mib
		u.AnonMiB[name] += size
		u.AnonTotalMiB += size
	}
}
