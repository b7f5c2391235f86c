package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/test/apiload"
	"github.com/orlop-os/orlop/vm"
)

const (
	// These are the resources of the machine in the story apid. Like the machine of that story, the
	// machine of the flood has no configuration.
	floodCPUs, floodMemoryMiB = 1, 1024
	// settleTime is the wait between the first answer and the measurement. The boot ends within
	// this time.
	settleTime = 10 * time.Second
)

// floodMachine boots a machine and measures the latency of its management API for an admitted
// client, first without and then during a flood of handshakes.
func floodMachine(ctx context.Context, o options, s system, dir string) (f floodFigures, err error) {
	b := newBoot(o, s, dir)
	b.cpus, b.memory = floodCPUs, floodMemoryMiB
	err = b.whileOn(ctx, func(ctx context.Context, _ []byte) error {
		if _, err := b.meet(ctx); err != nil {
			return err
		}
		if err := backoff.Sleep(ctx, settleTime); err != nil {
			return err
		}
		f, err = b.flood(ctx)
		return err
	})
	return f, err
}

func (b *boot) flood(ctx context.Context) (floodFigures, error) {
	clients := []*client.Client{b.client}
	quiet, err := apiload.Measure(ctx, clients, apiload.Measured)
	if err != nil {
		return floodFigures{}, err
	}
	to := net.JoinHostPort(address, strconv.Itoa(paths.PortApid))
	load, err := apiload.StartFlood(func(name string) (*vm.Host, error) { return b.network.NewHost(name, netip.Addr{}) }, to)
	if err != nil {
		return floodFigures{}, err
	}
	defer load.Stop() // ends the flood if the measurement fails
	loud, err := apiload.Measure(ctx, clients, apiload.Measured)
	if err != nil {
		return floodFigures{}, err
	}
	tried, refused := load.Stop()
	if refused == 0 {
		return floodFigures{}, fmt.Errorf("flood: none of %d handshakes was rejected, so the flood was too small", tried)
	}
	return newFloodFigures(quiet, loud), nil
}

func newFloodFigures(quiet, loud apiload.Pace) floodFigures {
	ratio := loud.P99 / quiet.P99
	return floodFigures{QuietP99: &quiet.P99, FloodP99: &loud.P99, FloodRatio: &ratio}
}
