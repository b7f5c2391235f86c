package nodeplan

import (
	"net/url"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Egress returns the proxy and the CAs with which the machine reaches servers outside the cluster.
// The result is empty without a configuration (nil).
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

// serverCAs returns the CAs that may have issued the certificate of a server outside the cluster.
// own are the CAs in the configuration of this server; the result also has the CAs of the site.
func serverCAs(c *config.Config, own config.Bundle) pki.ServerCAs {
	return pki.ServerCAs{Own: own.PEM(), Site: c.Machine.Spec.Egress.CA.PEM()}
}

// directHosts returns the hosts and networks that the machine reaches without the proxy: its own
// addresses, those of the cluster, and the configured hosts. Each entry occurs once.
func directHosts(c *config.Config) (all []string) {
	if c.Cluster != nil {
		spec := c.Cluster.Spec
		for _, r := range slices.Concat(spec.Networks.Pods, spec.Networks.Services) {
			all = append(all, r.String())
		}
		// ".svc" matches short names of Services, and the domain matches complete names.
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
