// Package apiload measures the latency of a machine's management API, alone and while other
// clients open handshakes as fast as they can.
package apiload

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

// Measured is the usual duration of a measurement: some hundred calls on an emulated processor.
const Measured = 10 * time.Second

// callLimit bounds one call.
const callLimit = time.Minute

// Pace is the latency of calls in milliseconds, and their rate.
type Pace struct {
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Calls float64 `json:"calls_per_s"`
}

// Measure measures Version calls of all clients for a time. Each client makes one call after the
// other.
func Measure(ctx context.Context, clients []*client.Client, long time.Duration) (Pace, error) {
	measuring, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	var wait sync.WaitGroup
	var failed error
	for _, c := range clients {
		wait.Go(func() {
			for measuring.Err() == nil {
				began := time.Now()
				calling, stop := context.WithTimeout(ctx, callLimit)
				_, err := c.Machine.Version(calling, &api.VersionRequest{})
				stop()
				mu.Lock()
				all = append(all, time.Since(began))
				failed = errors.Join(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wait.Wait()
	if failed != nil {
		return Pace{}, fmt.Errorf("Version with %d clients: %w", len(clients), failed)
	}
	return pace(all, long)
}

// pace returns the figures of the durations of calls.
func pace(all []time.Duration, long time.Duration) (Pace, error) {
	if len(all) == 0 {
		return Pace{}, errors.New("Version: no call was made")
	}
	slices.Sort(all)
	at := func(share float64) float64 {
		return float64(all[min(len(all)-1, int(share*float64(len(all))))].Microseconds()) / 1000
	}
	return Pace{P50: at(0.5), P99: at(0.99), Calls: float64(len(all)) / long.Seconds()}, nil
}

const (
	// floodHosts are the computers of a flood; apid limits the connections of each address.
	floodHosts = 2
	// perHost is the number of concurrent handshakes of each.
	perHost = 25
	// unanswered is the time after which a client of the flood gives up a connection and opens
	// another; normal TCP retransmits after a second.
	unanswered = 100 * time.Millisecond
)

// Flood is a running flood of handshakes without a certificate.
type Flood struct {
	hosts          []*vm.Host
	cancel         context.CancelFunc
	wait           sync.WaitGroup
	tried, refused atomic.Int64
}

// StartFlood starts a flood from new hosts of the network to the address of a machine's API.
func StartFlood(newHost func(name string) (*vm.Host, error), to string) (*Flood, error) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Flood{cancel: cancel}
	for i := range floodHosts {
		h, err := newHost(fmt.Sprintf("flood%d", i))
		if err != nil {
			f.Stop()
			return nil, err
		}
		f.hosts = append(f.hosts, h)
		for range perHost {
			f.wait.Go(func() { f.run(ctx, h, to) })
		}
	}
	return f, nil
}

func (f *Flood) run(ctx context.Context, h *vm.Host, to string) {
	for ctx.Err() == nil {
		without := handshake(ctx, h, to)
		if ctx.Err() != nil {
			return // the flood was ended; its last error has no meaning
		}
		f.tried.Add(1)
		if without {
			f.refused.Add(1)
		}
	}
}

// Stop ends the flood, and may be called again. It returns the number of connections, and how many
// of them were rejected before a handshake was made.
func (f *Flood) Stop() (tried, refused int64) {
	f.cancel()
	f.wait.Wait()
	for _, h := range f.hosts {
		h.Close()
	}
	f.hosts = nil
	return f.tried.Load(), f.refused.Load()
}

// handshake opens a handshake, and reports whether it was rejected: the machine's kernel did not
// answer, or apid closed the connection.
func handshake(ctx context.Context, h *vm.Host, to string) (refused bool) {
	ctx, cancel := context.WithTimeout(ctx, unanswered)
	defer cancel()
	raw, err := h.DialContext(ctx, "tcp", to)
	if err != nil {
		return true
	}
	defer raw.Close()
	return tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(ctx) != nil
}
