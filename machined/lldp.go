package main

import (
	"net"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
)

// newLLDP makes the controller of the neighbors on the links.
func newLLDP(m *machine) *lldp.Controller {
	return lldp.New(lldp.Deps{
		Links:  cell.Map(m.domains.network.State, lldpLinks),
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) lldp.Config { return lldpConfig(now.Config) }),
		File:   func() string { return storedIn(m, paths.LLDPLabels) },
		Listen: lldp.Listen,
		Event:  m.reports.events.From("lldp"),
	})
}

// lldpConfig returns the settings of a configuration (nil for none).
func lldpConfig(c *config.Config) lldp.Config {
	if c == nil {
		return lldp.Config{}
	}
	out := lldp.Config{Labels: c.Machine.Spec.Node.LLDPLabels}
	if c.Network.Spec.LLDP.Announce {
		out.Announce = c.Machine.Metadata.Name
	}
	return out
}

// lldpLinks returns the physical Ethernet links that are up. Hardware with a longer address, for
// example InfiniBand, has no LLDP.
func lldpLinks(s network.State) []lldp.Link {
	var out []lldp.Link
	for _, l := range s.Links {
		if mac, err := net.ParseMAC(l.MAC); err == nil && len(mac) == 6 && l.Kind == "" && l.Name != "lo" && l.Up {
			out = append(out, lldp.Link{Name: l.Name, Index: l.Index, MAC: mac})
		}
	}
	return out
}
