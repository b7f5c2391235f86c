package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/orlop-os/orlop/pkg/inventory"
)

// ErrInventoryDisabled is returned when a machine accepts no inventories because its configuration
// does not enable them.
var ErrInventoryDisabled = errors.New("it accepts no inventories (Cluster.spec.kubernetes.machineObjects.inventory of that machine)")

// ReportInventory sends the inventory of a machine without a configuration, with its machine key,
// to an address with the port of the management API. It does not authenticate the peer, which the
// caller cannot know: the caller must not act on the answer.
func ReportInventory(ctx context.Context, address string, key *ecdsa.PrivateKey, h inventory.Host) (inventory.Answer, error) {
	address, err := withPort(address)
	if err != nil {
		return inventory.Answer{}, err
	}
	answer, err := reportInventory(ctx, address, key, h)
	if err != nil {
		return answer, fmt.Errorf("machine %s: cannot send the inventory: %w", address, err)
	}
	return answer, nil
}

func reportInventory(ctx context.Context, address string, key *ecdsa.PrivateKey, h inventory.Host) (answer inventory.Answer, err error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return answer, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{inventory.Protocol}})
	if err := conn.HandshakeContext(ctx); err != nil {
		if strings.Contains(err.Error(), noProtocol) {
			return answer, ErrInventoryDisabled
		}
		return answer, reasonOf(err)
	}
	binding, err := inventory.Binding(conn.ConnectionState())
	if err != nil {
		return answer, err
	}
	request, err := inventory.NewRequest(binding, key, h)
	if err != nil {
		return answer, err
	}
	answer, err = inventory.Send(conn, request)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return answer, err
}
