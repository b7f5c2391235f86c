package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/emulation"
)

// TestOwnLevel checks that the table of levels has the version of etcd of this executable: without
// its row, the next version could not hold etcd at this level.
func TestOwnLevel(t *testing.T) {
	if got, want := emulation.EtcdOf(level.Own()), minor(version.Version).String(); got != want {
		t.Errorf("etcd at level %s: %q, and this executable has %s", level.Own(), got, want)
	}
}
