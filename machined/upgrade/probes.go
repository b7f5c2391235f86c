package upgrade

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The upgrade probes: a version on trial runs these checks against itself once its configuration is
// active and its services are ready.

// probes runs the upgrade probes.
type probes struct{ deps *Deps }

// probeTimeout is the longest time of one run of all probes. After a failure, the probes run again
// until the deadline of the upgrade.
const probeTimeout = time.Minute

// run runs each probe once and returns the first error. The first probe connects to the management
// API at each address of the machine. The second probe checks the gateway, if the previous version
// has reached its gateway (reached). The third probe creates a pod sandbox if the machine runs
// pods.
func (p probes) run(ctx context.Context, active *config.Config, reached bool) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	addresses := p.deps.Network.Addresses(active)
	if len(addresses) == 0 {
		return errors.New("network: no link has an address")
	}
	for _, a := range addresses {
		if err := p.api(ctx, netip.AddrPortFrom(a, paths.PortApid)); err != nil {
			return err
		}
	}
	if reached {
		if err := p.gateways(ctx); err != nil {
			return err
		}
	}
	if active == nil || active.Cluster == nil {
		return nil
	}
	if _, err := p.deps.Node.Command(ctx, 0, "canary", nil); err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	return nil
}

// api checks that apid answers at an address with the certificate of this machine. It only performs
// the TLS handshake: without a client certificate, apid would reject every call.
func (p probes) api(ctx context.Context, at netip.AddrPort) error {
	text, err := os.ReadFile(p.deps.Files.APICertificate)
	if err != nil {
		return fmt.Errorf("management API: %w", err)
	}
	own, _ := pem.Decode(text)
	if own == nil {
		return errors.New("management API: its certificate cannot be read")
	}
	d := tls.Dialer{Config: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // the callback compares the certificate itself, without a CA
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, own.Bytes) {
				return errors.New("another server answers")
			}
			return nil
		},
	}}
	conn, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return fmt.Errorf("management API: not reached at %s: %w", at, err)
	}
	return conn.Close()
}

// gatewayReached reports whether a gateway of the machine responds at present.
func (p probes) gatewayReached() bool {
	return p.gateways(p.deps.Running) == nil
}

// gatewayTimeout is the longest time for a gateway to respond. The kernel sends three ARP or NDP
// requests, one second apart (Documentation/networking/ip-sysctl.rst, neigh mcast_solicit and
// retrans_time_ms).
const gatewayTimeout = 4 * time.Second

// gateways returns nil if at least one gateway of the machine responds.
func (p probes) gateways(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	return firstGateway(ctx, p.deps.Network.Gateways())
}

// firstGateway probes all gateways in parallel and returns nil at the first response, because the
// probe of a dead gateway lasts for the whole timeout.
func firstGateway(ctx context.Context, gateways []func(context.Context) error) error {
	if len(gateways) == 0 {
		return errors.New("network: no gateway, but the previous version had one")
	}
	problems, asked := make([]error, len(gateways)), make(chan int, len(gateways))
	for i, probe := range gateways {
		go func() {
			problems[i] = panics.Do("gateway", func() error { return probe(ctx) })
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
