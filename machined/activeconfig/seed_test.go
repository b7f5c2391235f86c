package activeconfig

import (
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestAwaitLinks checks that a configuration on a medium waits for its links, and is rejected
// without them.
func TestAwaitLinks(t *testing.T) {
	next := config.New("n1", config.RoleWorker)
	next.Network.Spec.Links = []config.Link{{Name: "eth0"}}
	looks := 0
	second := func(network.Config) (missing, there []string, err error) {
		if looks++; looks < 2 {
			return []string{"eth0"}, nil, nil
		}
		return nil, []string{"eth0"}, nil
	}
	if err := awaitLinks(t.Context(), next, second, time.Minute); err != nil || looks != 2 {
		t.Errorf("it comes late: %v, %d looks", err, looks)
	}
	never := func(network.Config) (missing, there []string, err error) {
		return []string{"eth0"}, []string{"eth1"}, nil
	}
	if err := awaitLinks(t.Context(), next, never, time.Millisecond); err == nil || !strings.Contains(err.Error(), "this machine has no link eth0; it has eth1") {
		t.Errorf("it never comes: %v", err)
	}
	next.Machine.Spec.KernelModules = []string{"mlx5_core"}
	if err := awaitLinks(t.Context(), next, never, time.Minute); err != nil {
		t.Errorf("a module may bring it: %v", err)
	}
}
