package converge

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestStateHangs checks that the domains disk, firewall, network and host, and their drift, do not
// wait for facts that are read from STATE. In this test, a request for these facts blocks, as if
// STATE did not answer.
func TestStateHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testReconciler(t)
		state := make(chan struct{})
		hang := func(*config.Config, network.State) nodeplan.Facts { <-state; return nodeplan.Facts{} }
		r.deps.APIFacts, r.deps.NodeFacts = hang, hang
		// The domain api writes no file after STATE answers again.
		r.deps.Domains.HasIdentity = func() bool { return false }
		r.deps.HostConfig = func(*config.Config) host.Config { return host.Config{Modules: []string{"dummy"}} }
		r.deps.Domains.Firewall = firewall.NewFilter(func(context.Context, string, ...string) error { return nil })
		r.deps.Domains.Network.Controller = network.New(network.Deps{State: r.deps.Domains.Network.State})
		r.deps.Domains.Kernel = host.NewKernel(host.ModuleIndex())
		var reports []string
		r.deps.Event = func(domain, _, _ string) { reports = append(reports, domain) }

		// the host domain of this test changes no settings of the kernel
		all := r.domains()
		i := slices.IndexFunc(all, func(d domain) bool { return d.name == "host" })
		all[i].diff = func(ctx context.Context, g goal) ([]reconcile.Op, error) {
			return (&pending{left: g.host.Modules}).diff(ctx, g)
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
		if got := fmt.Sprint(read); got != "map[disk:true extensions:true firewall:true host:true network:true volumes:true]" {
			t.Errorf("drift answers for the domains %s", got)
		}
		for _, want := range []string{"unknown: no result within 5s", "unknown: an earlier read has not returned"} {
			if _, err := r.WaitingServices(t.Context(), c); !errors.Is(err, limits.ErrUnknown) || err.Error() != want {
				t.Errorf("waiting services: %v, want %s", err, want)
			}
			synctest.Wait()
		}
		close(state)
		synctest.Wait()
		if _, err := r.WaitingServices(t.Context(), c); err != nil {
			t.Errorf("waiting services after STATE has answered: %v", err)
		}
	})
}

// TestAddressReturns checks that the time without an address begins at zero with each loss of the
// address, even if the credentials could not be written while the machine had an address.
func TestAddressReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c, problems := config.Parse("reference.yaml", []byte(config.Reference))
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		c.Network.Spec.Firewall = nil
		r := testReconciler(t)
		facts := func(_ *config.Config, state network.State) nodeplan.Facts {
			return nodeplan.Facts{Identity: key, Network: state}
		}
		r.deps.APIFacts, r.deps.NodeFacts = facts, facts
		r.deps.Domains.Firewall = firewall.NewFilter(func(context.Context, string, ...string) error { return nil })
		if err := r.ConfigureFirewall(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		all := r.domains()
		for i, d := range all {
			switch d.name {
			case "credentials":
				all[i].diff = (&pending{left: []string{"impossible"}}).diff
			case "services":
			default:
				all[i].diff = (&pending{}).diff
			}
		}
		address := network.AddressState{Prefix: netip.MustParsePrefix("10.0.0.11/24")}
		lost := network.State{}
		returned := network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{address}}}}
		const running = "apid containerd orchestrator-api orchestrator-controllers orchestrator-node"
		if err := r.deps.Domains.Services.Set(append([]supervise.Service{nodeplan.Apid()}, nodeplan.Kubernetes(true)...)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for _, step := range []struct {
			at       time.Duration
			state    network.State
			problem  string
			services string
		}{
			{0, lost, "", running},
			{30 * time.Second, returned, "credentials: cannot impossible: no", running},
			{90 * time.Second, lost, "", running},
			{149 * time.Second, lost, "", running},
			{150 * time.Second, lost, "", "apid containerd"},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			problem := ""
			if err := r.lead(t.Context(), all, c, step.state); err != nil {
				problem = err.Error()
			}
			var names []string
			for _, s := range r.deps.Domains.Services.Services() {
				names = append(names, s.Name)
			}
			if got := strings.Join(names, " "); got != step.services || problem != step.problem {
				t.Errorf("after %v: %s, %q; want %s, %q", step.at, got, problem, step.services, step.problem)
			}
		}
	})
}

// TestGuardRejected checks machines without a firewall. Until the kernel has accepted the port
// guard, no service of the cluster starts, the boot step names the reason, and the API continues.
func TestGuardRejected(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	c.Network.Spec.Firewall = nil
	state := network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.11/24")}}}}}
	for _, role := range []config.Role{config.RoleControlPlane, config.RoleWorker} {
		c.Machine.Spec.Role = role
		r := testReconciler(t)
		facts := func(_ *config.Config, state network.State) nodeplan.Facts {
			return nodeplan.Facts{Identity: key, Network: state, Member: nodeplan.Member{Joined: true}}
		}
		r.deps.APIFacts, r.deps.NodeFacts = facts, facts
		rejects := true
		r.deps.Domains.Firewall = firewall.NewFilter(func(context.Context, string, ...string) error {
			if rejects {
				return errors.New("the kernel says no")
			}
			return nil
		})
		var entered []string
		r.deps.Enter = func(step, waitsFor string) { entered = append(entered, step+": "+waitsFor) }
		if err := r.ConfigureFirewall(t.Context(), c); err == nil {
			t.Errorf("%s: the boot reports no error", role)
		}
		all := r.domains()
		for i, d := range all {
			if d.name != "firewall" && d.name != "services" {
				all[i].diff, all[i].want = (&pending{}).diff, nil
			}
		}
		const why = "port guard: cannot keep Services and pods from the machine's own ports: the kernel says no; " +
			"the cluster's services wait, and only port 50000 listens, until a retry succeeds"
		if err := r.lead(t.Context(), all, c, state); err == nil || !strings.HasSuffix(err.Error(), why) {
			t.Errorf("%s: %v, want %s", role, err, why)
		}
		var names []string
		for _, s := range r.deps.Domains.Services.Services() {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != "apid" {
			t.Errorf("%s: started %s", role, got)
		}
		if problem, _ := r.deps.Domains.Firewall.Problem().Get(); !strings.HasSuffix(problem, why) {
			t.Errorf("%s: the health reports %q", role, problem)
		}
		if len(entered) != 1 || !strings.HasPrefix(entered[0], "services: the nftables rules: ") || !strings.HasSuffix(entered[0], why) {
			t.Errorf("%s: the boot enters %q", role, entered)
		}
		rejects = false
		if err := r.ConfigureFirewall(t.Context(), c); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		if hold := r.goal(c, state).node().Services.Hold; hold != nodeplan.HoldNothing {
			t.Errorf("%s: the services are held back: %s", role, hold)
		}
	}
}

// TestRulesRetry checks the delay after each attempt to install rules. After the last delay, no
// further retry is planned (0).
func TestRulesRetry(t *testing.T) {
	var retry rulesRetry
	for i, step := range []struct {
		problem string
		want    time.Duration
	}{
		{"no", time.Second}, {"no", 2 * time.Second}, {"no", 4 * time.Second}, {"", 0}, {"", 0}, {"no", time.Second},
		{"no", 2 * time.Second}, {"no", 4 * time.Second}, {"no", 8 * time.Second}, {"no", 16 * time.Second}, {"no", 32 * time.Second}, {"no", 0}, {"no", 0},
	} {
		if got := retry.next(step.problem); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}
