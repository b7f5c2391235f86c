package main

import (
	"crypto/x509"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// ownAddresses returns all addresses of the machine.
func ownAddresses(state network.State) []netip.Addr {
	var own []netip.Addr
	for _, l := range state.Links {
		for _, a := range l.Addresses {
			own = append(own, a.Prefix.Addr())
		}
	}
	return own
}

// trusted returns a CA and the CAs that are accepted beside it, in PEM; empty without the CA.
func trusted(own config.Certificate, accepted []config.Certificate) []byte {
	if own.IsZero() {
		return nil
	}
	var certs []*x509.Certificate
	for _, c := range append(slices.Clone(accepted), own) {
		certs = append(certs, c.X509())
	}
	return pki.EncodeCerts(certs...)
}

// containerdReady rejects calls that need containerd while it does not run.
func containerdReady(services *supervise.Manager) error {
	list, _ := services.Status().Get()
	i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceContainerd })
	if i < 0 {
		return status.Error(codes.FailedPrecondition, "images: containerd does not run before the machine has a configuration with a Cluster document; apply one")
	}
	if list[i].State != supervise.Running {
		return status.Errorf(codes.Unavailable, "images: containerd is %s; wait for `orlopctl services` to show it running", list[i].State)
	}
	return nil
}
