// Package apiload measures the latency of the management API of a machine, without other clients
// and during a flood of TLS handshakes from other clients.
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

// Measured is the usual duration of a measurement. An emulated processor answers some hundred calls
// in this time.
const Measured = 10 * time.Second

// callLimit is the deadline of a single call.
const callLimit = time.Minute

// Pace holds the 50th and 99th percentile of the latency of calls, in milliseconds, and the number
// of calls per second.
type Pace struct {
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Calls float64 `json:"calls_per_s"`
}

// Measure calls Version with all clients concurrently for the given duration, and returns the
// latency and the rate of the calls. Each client starts a call when its previous call has ended.
// Measure fails if a call fails.
func Measure(ctx context.Context, clients []*client.Client, duration time.Duration) (Pace, error) {
	measuring, cancel := context.WithTimeout(ctx, duration)
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
	return pace(all, duration)
}

// pace computes the figures from the latencies of all calls. The calls were made within the given
// duration. pace fails if there is no call.
func pace(all []time.Duration, duration time.Duration) (Pace, error) {
	if len(all) == 0 {
		return Pace{}, errors.New("Version: no call was made")
	}
	slices.Sort(all)
	at := func(share float64) float64 {
		return float64(all[min(len(all)-1, int(share*float64(len(all))))].Microseconds()) / 1000
	}
	return Pace{P50: at(0.5), P99: at(0.99), Calls: float64(len(all)) / duration.Seconds()}, nil
}

const (
	// floodHosts is the number of computers of a flood. A flood needs several computers, because
	// apid limits the connections of each address.
	floodHosts = 2
	// perHost is the number of concurrent handshakes of each computer of the flood.
	perHost = 25
	// unanswered is the time after which a client of the flood closes an unanswered connection and
	// opens the next connection. Without this limit, TCP would retransmit only after a second.
	unanswered = 100 * time.Millisecond
)

// Flood is a running flood of TLS handshakes without a client certificate.
type Flood struct {
	hosts          []*vm.Host
	cancel         context.CancelFunc
	wait           sync.WaitGroup
	tried, refused atomic.Int64
}

// StartFlood starts a flood against the address of a machine's API. It calls newHost to create the
// computers of the flood in the closed network.
func StartFlood(newHost func(name string) (*vm.Host, error), address string) (*Flood, error) {
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
			f.wait.Go(func() { f.run(ctx, h, address) })
		}
	}
	return f, nil
}

func (f *Flood) run(ctx context.Context, h *vm.Host, address string) {
	for ctx.Err() == nil {
		rejected := handshake(ctx, h, address)
		if ctx.Err() != nil {
			return // Stop has cancelled the context; the error of this handshake has no meaning
		}
		f.tried.Add(1)
		if rejected {
			f.refused.Add(1)
		}
	}
}

// Stop ends the flood. A caller may call Stop several times. Stop returns the number of attempted
// handshakes, and the number of handshakes that were rejected.
func (f *Flood) Stop() (tried, refused int64) {
	f.cancel()
	f.wait.Wait()
	for _, h := range f.hosts {
		h.Close()
	}
	f.hosts = nil
	return f.tried.Load(), f.refused.Load()
}

// handshake performs a TLS handshake and reports whether the machine rejected it. A handshake is
// rejected if the machine's kernel accepts no connection, if apid closes the connection, or if
// there is no answer in time.
func handshake(ctx context.Context, h *vm.Host, address string) (refused bool) {
	ctx, cancel := context.WithTimeout(ctx, unanswered)
	defer cancel()
	raw, err := h.DialContext(ctx, "tcp", address)
	if err != nil {
		return true
	}
	defer raw.Close()
	return tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(ctx) != nil
}
