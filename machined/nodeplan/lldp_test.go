package nodeplan

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestLLDP checks that a machine announces itself by LLDP only if its configuration enables it.
func TestLLDP(t *testing.T) {
	c := config.New("m1", config.RoleWorker)
	if got := LLDP(nil); got.Announce != "" {
		t.Errorf("without a configuration: %+v", got)
	}
	if got := LLDP(c); got.Announce != "" {
		t.Errorf("by default: %+v", got)
	}
	c.Network.Spec.LLDP.Announce = true
	if got := LLDP(c); got.Announce != "m1" {
		t.Errorf("with announce: %+v", got)
	}
}
