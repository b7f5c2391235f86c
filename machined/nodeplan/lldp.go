package nodeplan

import (
	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/pkg/config"
)

// LLDP returns the settings of LLDP in a configuration. They are empty if c is nil.
func LLDP(c *config.Config) lldp.Config {
	if c == nil {
		return lldp.Config{}
	}
	out := lldp.Config{Labels: c.Machine.Spec.Node.LLDPLabels}
	if c.Network.Spec.LLDP.Announce {
		out.Announce = c.Machine.Metadata.Name
	}
	return out
}
