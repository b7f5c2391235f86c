package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/orlop-os/orlop/pkg/joinrequest"
)

// ErrJoinRequestsDisabled is why a machine takes no request to be let into its cluster: it does not offer to,
// as one whose configuration does not say so.
var ErrJoinRequestsDisabled = errors.New("it takes no requests to join (Cluster.spec.joinRequests there)")

// RequestJoin asks a control-plane machine to be let into its cluster (package joinrequest). The
// endpoint's own certificate is not shown: who asks has none yet. The machine is verified as any
// other.
func RequestJoin(ctx context.Context, e Endpoint, r joinrequest.Request) (joinrequest.Answer, error) {
	address, err := withPort(e.Address)
	if err != nil {
		return joinrequest.Answer{}, err
	}
	answer, err := askToJoin(ctx, e, address, r)
	if err != nil {
		return answer, fmt.Errorf("machine %s: cannot ask: %w", address, err)
	}
	return answer, nil
}

func askToJoin(ctx context.Context, e Endpoint, address string, r joinrequest.Request) (answer joinrequest.Answer, err error) {
	config, err := tlsConfig(e, address)
	if err != nil {
		return answer, err
	}
	config.NextProtos, config.GetClientCertificate = []string{joinrequest.Protocol}, nil
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return answer, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		if strings.Contains(err.Error(), noProtocol) {
			return answer, ErrJoinRequestsDisabled
		}
		return answer, reasonOf(err)
	}
	answer, err = joinrequest.Send(conn, r)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return answer, err
}
