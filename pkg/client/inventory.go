package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
)

// ErrInventoryDisabled is returned when a machine accepts no inventories because its configuration
// does not enable them.
var ErrInventoryDisabled = errors.New("it accepts no inventories (Cluster.spec.kubernetes.machineObjects.inventory of that machine)")

// ReportInventory sends the inventory of a machine without a configuration, with its machine key,
// to an address with the port of the management API. It does not authenticate the peer, because a
// machine without a configuration knows no CA of the cluster. The caller must not act on the answer
// before it has verified the certificates in Answer.Peer.
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
	err = exchange(ctx, address, unverifiedConfig(inventory.Protocol), ErrInventoryDisabled, func(conn *tls.Conn) error {
		state := conn.ConnectionState()
		binding, err := inventory.Binding(state)
		if err != nil {
			return err
		}
		request, err := inventory.NewRequest(binding, key, h)
		if err != nil {
			return err
		}
		answer, err = inventory.Send(conn, request)
		answer.Peer = state.PeerCertificates
		return err
	})
	return answer, err
}
