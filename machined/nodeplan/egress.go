package nodeplan

import (
	"net/url"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Egress returns how servers outside the cluster are reached, by a configuration (nil for none).
func Egress(c *config.Config) egress.Config {
	if c == nil {
		return egress.Config{}
	}
	e := c.Machine.Spec.Egress
	out := egress.Config{CAs: e.CA.PEM()}
	if p := e.Proxy; p != nil {
		u := url.URL{Scheme: "http", Host: p.URL.HostPort.String()}
		if p.URL.TLS {
			u.Scheme = "https"
		}
		if p.Username != "" {
			u.User = url.UserPassword(p.Username, p.Password.Reveal())
		}
		out.Proxy, out.NoProxy = u.String(), strings.Join(directHosts(c), ",")
	}
	return out
}

// serverCAs returns the CAs for a server outside the cluster, of which own are in its entry.
func serverCAs(c *config.Config, own config.Bundle) pki.ServerCAs {
	return pki.ServerCAs{Own: own.PEM(), Site: c.Machine.Spec.Egress.CA.PEM()}
}

// directHosts returns the hosts that are reached without the proxy: the cluster's own, and the
// configured hosts.
func directHosts(c *config.Config) (all []string) {
	if c.Cluster != nil {
		spec := c.Cluster.Spec
		for _, r := range slices.Concat(spec.Networks.Pods, spec.Networks.Services) {
			all = append(all, r.String())
		}
		// names of Services, short and complete
		all = append(all, ".svc", spec.Networks.Domain, spec.Endpoint.Host)
		for _, a := range slices.Concat(spec.ControlPlanes, spec.VirtualAddresses) {
			all = append(all, a.String())
		}
	}
	for _, l := range c.Network.Spec.Links {
		for _, a := range l.Addresses {
			all = append(all, a.Addr().String())
		}
	}
	for _, host := range c.Machine.Spec.Egress.Proxy.NoProxy {
		all = append(all, string(host))
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(host string) bool {
		twice := seen[host]
		seen[host] = true
		return twice
	})
}
