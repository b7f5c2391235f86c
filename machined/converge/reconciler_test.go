package converge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// TestStateHangs checks that disk, firewall, network and host, and their drift, do not wait for
// facts that are read from STATE: a call for them blocks while STATE hangs.
func TestStateHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testReconciler(t)
		state := make(chan struct{})
		hang := func(*config.Config, network.State) nodeplan.Facts { <-state; return nodeplan.Facts{} }
		r.deps.APIFacts, r.deps.NodeFacts = hang, hang
		// the API writes no file once STATE answers
		r.deps.Domains.HasIdentity = func() bool { return false }
		r.deps.HostConfig = func(*config.Config) host.Config { return host.Config{Modules: []string{"dummy"}} }
		r.deps.Domains.Firewall = firewall.NewFilter(func(context.Context, string, ...string) error { return nil })
		r.deps.Domains.Network.Controller = network.New(network.Deps{State: r.deps.Domains.Network.State})
		r.deps.Domains.Kernel = host.NewKernel(host.ModuleIndex())
		var reports []string
		r.deps.Event = func(domain, _, _ string) { reports = append(reports, domain) }

		// the kernel of the test keeps its settings
		all := r.domains()
		i := slices.IndexFunc(all, func(d domain) bool { return d.name == "host" })
		all[i].diff = func(_ context.Context, g goal) ([]reconcile.Op, error) {
			return (&pending{left: g.host.Modules}).diff(nil, g)
		}
		all[i].apply = func(ctx context.Context, g goal, _ func() error) error {
			ops, err := all[i].diff(ctx, g)
			reports = append(reports, reconcile.Print(ops)...)
			return err
		}
		c := config.New("n1", config.RoleWorker)
		go func() { _ = r.lead(t.Context(), all, c, network.State{}) }()
		synctest.Wait()
		if got := strings.Join(reports, " "); got != "firewall dummy" {
			t.Errorf("performed %s", got)
		}
		if got, _ := r.deps.Domains.Network.Config.Get(); got.Hostname != "n1" {
			t.Errorf("the controller of the network gets %+v", got)
		}

		read := map[string]bool{}
		for _, d := range r.domains() {
			done := make(chan struct{})
			go func() {
				_, _ = r.driftOf(t.Context(), d)
				close(done)
			}()
			synctest.Wait()
			select {
			case <-done:
				read[d.name] = true
			default:
			}
		}
		if got := fmt.Sprint(read); got != "map[disk:true firewall:true host:true network:true]" {
			t.Errorf("drift of %s", got)
		}
		close(state)
	})
}
