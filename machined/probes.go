package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The upgrade probes: checks that a version on trial runs itself once its configuration is active
// and its services are ready.

// probeTimeout bounds one run of all probes. A failed probe is repeated until the deadline of the
// upgrade.
const probeTimeout = time.Minute

// runProbes runs each probe once and returns the first error: the management API over the machine's
// own addresses, the gateway if the former version reached it (reached), and a pod sandbox if the
// machine runs pods.
func (m *machine) runProbes(ctx context.Context, now applied, reached bool) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	state, _ := m.networkState.Get()
	addresses := nodeplan.Addresses(now.config, state)
	if len(addresses) == 0 {
		return errors.New("network: no link has an address")
	}
	for _, a := range addresses {
		if err := probeAPI(ctx, netip.AddrPortFrom(a, paths.PortApid)); err != nil {
			return err
		}
	}
	if reached {
		if err := probeGateways(ctx, state); err != nil {
			return err
		}
	}
	if now.config == nil || now.config.Cluster == nil {
		return nil
	}
	if _, err := m.orchestrator(ctx, 0, "canary", nil); err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	return nil
}

// probeAPI checks that apid answers at an address with this machine's certificate. It makes no call
// and sends no certificate: apid admits no call on this connection.
func probeAPI(ctx context.Context, at netip.AddrPort) error {
	text, err := os.ReadFile(filepath.Join(paths.ApidDir, apid.ServerCertFile))
	if err != nil {
		return fmt.Errorf("management API: %w", err)
	}
	own, _ := pem.Decode(text)
	if own == nil {
		return errors.New("management API: its certificate cannot be read")
	}
	d := tls.Dialer{Config: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // no CA is used: the callback compares the certificate itself
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, own.Bytes) {
				return errors.New("another server answers")
			}
			return nil
		},
	}}
	c, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return fmt.Errorf("management API: not reached at %s: %w", at, err)
	}
	return c.Close()
}

// gatewayReached reports whether this version reaches its gateway now.
func (m *machine) gatewayReached() bool {
	state, _ := m.networkState.Get()
	return probeGateways(m.runCtx, state) == nil
}

// gatewayTimeout is the time for a gateway to answer; the kernel itself sends three requests, a
// second apart (Documentation/networking/ip-sysctl.rst, neigh mcast_solicit and retrans_time_ms).
const gatewayTimeout = 4 * time.Second

// probeGateways checks that a gateway of the machine answers.
func probeGateways(ctx context.Context, state network.State) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	return firstGateway(ctx, state.Gateways(), network.AwaitGateway)
}

// firstGateway probes all gateways in parallel, and waits for the first answer: a dead gateway uses
// the whole timeout.
func firstGateway(ctx context.Context, gateways []network.RouteState, ask func(context.Context, network.RouteState) error) error {
	if len(gateways) == 0 {
		return errors.New("network: no gateway, but the previous version had one")
	}
	problems, asked := make([]error, len(gateways)), make(chan int, len(gateways))
	for i, r := range gateways {
		go func() {
			problems[i] = panics.Do("gateway", func() error { return ask(ctx, r) })
			asked <- i
		}()
	}
	for range gateways {
		if problems[<-asked] == nil {
			return nil
		}
	}
	return errors.Join(problems...)
}
