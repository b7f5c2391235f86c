package nodeplan

import (
	"slices"
	"testing"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestSelectors checks that the rejection of missing hardware and the plan of the network name each
// piece of hardware in the same way: a name that differs would never be rejected.
func TestSelectors(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	known := transition.LinkSelectors(c)
	missing := network.Missing(Network(c), network.Facts{})
	slices.Sort(known)
	slices.Sort(missing)
	if got := slices.Compact(known); !slices.Equal(got, missing) || len(missing) < 10 {
		t.Errorf("the configuration names %q, and %q are missing", got, missing)
	}
}
