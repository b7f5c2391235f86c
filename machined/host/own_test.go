package host

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/sysctl"
)

// TestOwnAreRefused: what the system sets itself cannot be set by a configuration too, because it
// would never be in force.
func TestOwnAreRefused(t *testing.T) {
	for _, s := range planSysctls(Config{Pods: true}, small) {
		if (sysctl.ReservedReason(s.Name) == "") != (s.Name == minFreeName) {
			t.Errorf("%s: a configuration can set it: %v", s.Name, sysctl.ReservedReason(s.Name) == "")
		}
	}
}
