package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
)

// ErrJoinRequestsDisabled is returned when a machine accepts no join requests because its
// configuration does not enable them.
var ErrJoinRequestsDisabled = errors.New("it accepts no join requests (Cluster.spec.joinRequests of that machine)")

// RequestJoin sends a join request to a control-plane machine (package joinrequest). It does not
// send the endpoint's client certificate, because an unjoined machine has none. It verifies the
// control-plane machine by the endpoint, as Dial does.
func RequestJoin(ctx context.Context, e Endpoint, r joinrequest.Request) (joinrequest.Answer, error) {
	address, err := withPort(e.Address)
	if err != nil {
		return joinrequest.Answer{}, err
	}
	answer, err := requestJoin(ctx, e, address, r)
	if err != nil {
		return answer, fmt.Errorf("machine %s: cannot send the join request: %w", address, err)
	}
	return answer, nil
}

func requestJoin(ctx context.Context, e Endpoint, address string, r joinrequest.Request) (answer joinrequest.Answer, err error) {
	config, err := tlsConfig(e, address)
	if err != nil {
		return answer, err
	}
	config.NextProtos, config.GetClientCertificate = []string{joinrequest.Protocol}, nil
	err = exchange(ctx, address, config, ErrJoinRequestsDisabled, func(conn *tls.Conn) error {
		answer, err = joinrequest.Send(conn, r)
		return err
	})
	return answer, err
}
