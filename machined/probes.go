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
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// What a version on trial does itself, once its configuration is in force and its services say that
// they are well.

// proofTimeout bounds one try of each proof. What fails is tried again until the deadline of the
// upgrade.
const proofTimeout = time.Minute

// prove does once what a good system can do, and returns what it could not: reach its own
// management API over its addresses, reach its gateway if the version before could (reached), and
// make a pod's sandbox if it runs pods.
func (m *machine) prove(ctx context.Context, now applied, reached bool) error {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	state, _ := m.networkState.Get()
	addresses := nodeAddresses(now.config, state)
	if len(addresses) == 0 {
		return errors.New("network: no link has an address")
	}
	for _, a := range addresses {
		if err := doorAnswers(ctx, netip.AddrPortFrom(a, apidPort)); err != nil {
			return err
		}
	}
	if reached {
		if err := reachesGateway(ctx, state); err != nil {
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

// doorAnswers tells whether apid answers at an address with this machine's certificate. It asks for
// nothing, and shows none of its own: whoever calls without a certificate gets no further than
// this.
func doorAnswers(ctx context.Context, at netip.AddrPort) error {
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
		InsecureSkipVerify: true, // no authority is asked: below it must be the very certificate
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, own.Bytes) {
				return errors.New("somebody else answers")
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

// reached tells whether this version reaches its gateway now.
func (m *machine) reached() bool {
	state, _ := m.networkState.Get()
	return reachesGateway(m.working, state) == nil
}

// gatewayTimeout is how long a gateway may take to answer; the kernel itself asks three times, a
// second apart (Documentation/networking/ip-sysctl.rst, neigh mcast_solicit and retrans_time_ms).
const gatewayTimeout = 4 * time.Second

// reachesGateway tells whether one of the machine's gateways answers.
func reachesGateway(ctx context.Context, state network.State) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	return oneAnswers(ctx, state.Gateways(), network.AwaitGateway)
}

// oneAnswers asks all gateways at once, and waits for the first that answers: one that is dead
// takes all the time there is.
func oneAnswers(ctx context.Context, gateways []network.RouteState, ask func(context.Context, network.RouteState) error) error {
	if len(gateways) == 0 {
		return errors.New("network: no gateway, and the version before had one")
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
