package etcd

import (
	"testing"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/emulation"
)

// TestOwnLevel checks that the table of levels has a row for the level of this executable, with its
// version of etcd. Without this row, the next version could not hold etcd at this level.
func TestOwnLevel(t *testing.T) {
	if got, want := emulation.EtcdOf(level.Own()), minor(version.Version).String(); got != want {
		t.Errorf("the table has etcd %[2]q for level %[1]s, but this executable has %[3]s", level.Own(), got, want)
	}
}
