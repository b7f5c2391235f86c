package host

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

// TestOwnSysctlsAreRejected checks that a configuration cannot set a parameter of the system,
// because it would never take effect.
func TestOwnSysctlsAreRejected(t *testing.T) {
	for _, s := range planSysctls(Config{Pods: true}, small) {
		if (sysctl.ReservedReason(s.Name) == "") != (s.Name == minFreeName) {
			t.Errorf("%s: a configuration can set it: %v", s.Name, sysctl.ReservedReason(s.Name) == "")
		}
	}
}
