package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
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

// prepareKubernetes writes the files that the services of a node read at their start. It is
// idempotent.
func prepareKubernetes(n nodeplan.Node) error {
	text, err := json.MarshalIndent(n.Spec, "", "  ")
	if err != nil {
		return fmt.Errorf("node: cannot describe: %w", err)
	}
	for _, dir := range []string{filepath.Dir(paths.NodeSpec), filepath.Dir(paths.ContainerdConfig), paths.CNIConfig} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("node: cannot create directory: %w", err)
		}
	}
	if err := renameio.WriteFile(paths.NodeSpec, text, 0o644); err != nil {
		return fmt.Errorf("node: cannot write its description: %w", err)
	}
	if n.Spec.External.Network {
		if err := emptyPluginsOnce(paths.ContainerdConfig, paths.ExternalCNIPlugins); err != nil {
			return fmt.Errorf("pod network: cannot create the directory for its plugins: %w", err)
		}
	}
	if err := renameio.WriteFile(paths.ContainerdConfig, n.Containerd, 0o644); err != nil {
		return fmt.Errorf("containerd: cannot write its configuration: %w", err)
	}
	return nil
}

// emptyPluginsOnce creates the directory into which an external pod network writes its plugins.
// containerd runs them as root, and the directory is on a disk: only plugins that a pod wrote in
// this boot may run. The configuration of containerd is in memory, so its absence shows that the
// machine has just booted.
func emptyPluginsOnce(configuration, plugins string) error {
	if _, err := os.Stat(configuration); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(plugins); err != nil {
		return err
	}
	return os.MkdirAll(plugins, 0o755)
}

// containerdReady rejects calls that need containerd while it does not run.
func (m *machine) containerdReady() error {
	list, _ := m.services.Status().Get()
	i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceContainerd })
	if i < 0 {
		return status.Error(codes.FailedPrecondition, "images: containerd does not run before the machine has a configuration with a Cluster document; apply one")
	}
	if list[i].State != supervise.Running {
		return status.Errorf(codes.Unavailable, "images: containerd is %s; wait for `orlopctl services` to show it running", list[i].State)
	}
	return nil
}
