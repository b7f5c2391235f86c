// Package gen makes keys and configurations on this computer: the files of an operator, the
// secrets of a cluster, and the configurations of its machines.
package gen

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/pkg/config"
)

// Config is the input of a generated configuration.
type Config struct {
	Name, Cluster    string
	Endpoint         string // https://host:port of the Kubernetes API
	Secrets          *Secrets
	Operators        []string // PEM
	SANs             []string // further names of the Kubernetes API
	ControlPlanes    []string // addresses; empty with a single machine
	VirtualAddresses []string // virtual IP addresses of the Kubernetes API
	Node             config.Node
}

// Machines returns the names of the machines to configure. alone has the name of a single machine.
// each has NAME=ADDRESS for each of several machines; Machines stores these addresses in g.
func (g *Config) Machines(alone, each []string) (names []string, err error) {
	switch {
	case len(alone) > 0 && len(each) > 0:
		return nil, exit.Usagef("--control-plane: cannot be used with the name of one machine: it names each machine, so omit %s", alone[0])
	case len(alone) > 0:
		return alone, nil
	case len(each) == 0:
		return nil, exit.Usagef("configuration: cannot make: expected the machine's name before the endpoint, or --control-plane NAME=ADDRESS for each machine")
	}
	for _, text := range each {
		name, address, found := strings.Cut(text, "=")
		if !found || name == "" || address == "" {
			return nil, exit.Usagef("--control-plane %s: cannot use: expected NAME=ADDRESS, for example m1=10.0.0.11", text)
		}
		if slices.Contains(names, name) {
			return nil, exit.Usagef("--control-plane %s: cannot use: the name is duplicate", text)
		}
		names, g.ControlPlanes = append(names, name), append(g.ControlPlanes, address)
	}
	return names, nil
}

// addresses parses the IP addresses that a flag has as its values.
func addresses(flag string, texts []string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, exit.Usagef("%s %s: cannot use: expected an IP address", flag, text)
		}
		all = append(all, a)
	}
	return all, nil
}

// Documents returns the generated configuration. It validates the configuration like the machine.
func (g Config) Documents() ([]byte, error) {
	endpoint, err := config.ParseEndpoint(g.Endpoint)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("endpoint: cannot use: %w", err)}
	}
	authorities, key, err := g.Secrets.PKI()
	if err != nil {
		return nil, err
	}
	made := config.New(g.Name, config.RoleControlPlane).WithCluster(g.Cluster, endpoint, authorities, key).WithNode(g.Node)
	made.Cluster.Spec.AcceptedEncryptionKeys = g.Secrets.acceptedKeys()
	made.Cluster.Spec.Kubernetes.APIServer.ExtraSANs = g.SANs
	if made.Cluster.Spec.ControlPlanes, err = addresses("--control-plane", g.ControlPlanes); err != nil {
		return nil, err
	}
	if made.Cluster.Spec.VirtualAddresses, err = addresses("--virtual-address", g.VirtualAddresses); err != nil {
		return nil, err
	}
	machines := slices.Concat(made.Cluster.Spec.ControlPlanes, made.Cluster.Spec.VirtualAddresses)
	made.Cluster.Spec.Networks = networks(made.Cluster.Spec.Networks, endpoint, machines, authorities.Kubernetes.Cert)
	var operators []config.Certificate
	for _, text := range g.Operators {
		ca, err := config.ParseCertificate(text)
		if err != nil {
			return nil, exit.Usagef("--operator-ca: cannot use: %w", err)
		}
		operators = append(operators, ca)
	}
	if len(operators) > 0 {
		made = made.WithOperatorCAs(operators...)
	}
	if err := Validate(made); err != nil {
		return nil, err
	}
	return config.Marshal(made), nil
}

// Validate validates a configuration that was generated from flags.
func Validate(c *config.Config) error {
	if err := config.Check(c).Err(); err != nil {
		return &exit.Error{Code: exit.Usage, Err: errors.Join(errors.New("the flags do not give a valid configuration"), err)}
	}
	return nil
}
