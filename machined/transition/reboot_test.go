package transition

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// TestRefuseReboot checks that a configuration that needs a reboot is rejected while the cluster
// needs the machine. The error names remedies that the command supports.
func TestRefuseReboot(t *testing.T) {
	control := disruption.ControlPlane{Members: []disruption.Member{{Name: "a", Own: true}, {Name: "b"}, {Name: "c", Problem: "no route to host"}}}
	g := guard.New(guard.Deps{
		Machine: func() guard.Machine {
			return guard.Machine{Machine: disruption.Machine{Name: "a", ControlPlane: true, Others: true}, InCluster: true}
		},
		Command: func(context.Context, uint32, string, any, ...*os.File) ([]byte, error) { return json.Marshal(control) },
		File:    filepath.Join(t.TempDir(), "turn.json"), Stopping: t.Context(), Event: func(string, string) {},
	})
	permit := func() (giveBack func(), err error) {
		giveBack, err = g.Permit(t.Context(), disruption.Request{Operation: disruption.Reboot, By: "dora"})
		return giveBack, RefuseReboot(err)
	}
	_, err := permit()
	if err == nil || !strings.HasPrefix(err.Error(), config.Refused) || !strings.HasSuffix(err.Error(), "start c, or if lost, replace it, or stage it (--mode staged, with --no-trial if it can cut you off) and reboot with --force") {
		t.Error(err)
	}
	control.Members[2].Problem = ""
	giveBack, err := permit()
	if err != nil {
		t.Fatal(err)
	}
	giveBack()
}
