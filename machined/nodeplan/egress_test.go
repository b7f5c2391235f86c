package nodeplan

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestEgress checks that the hosts of the cluster bypass the proxy, and that the URL of the proxy
// escapes special characters of the user name and the password.
func TestEgress(t *testing.T) {
	c := reference(t)
	c.Machine.Spec.Egress.Proxy.Password = config.NewSecret("p@ss:w/rd ü")
	got := Egress(c)
	if want := "http://machines:p%40ss%3Aw%2Frd%20%C3%BC@proxy.example.com:3128"; got.Proxy != want || !strings.HasPrefix(got.CAs, "-----BEGIN CERTIFICATE-----") {
		t.Errorf("the proxy is %q, and the CAs are %q; want the proxy %q", got.Proxy, got.CAs, want)
	}
	spec := c.Cluster.Spec
	direct := strings.Split(got.NoProxy, ",")
	for _, want := range []string{
		spec.Networks.Pods[0].String(), spec.Networks.Services[0].String(), ".svc", spec.Networks.Domain, spec.Endpoint.Host,
		spec.ControlPlanes[0].String(), spec.VirtualAddresses[0].String(), c.Network.Spec.Links[0].Addresses[0].Addr().String(), ".internal.example.com", "10.0.0.0/8",
	} {
		if !slices.Contains(direct, want) {
			t.Errorf("NoProxy %q does not contain %q", direct, want)
		}
	}
	if sorted := slices.Sorted(slices.Values(direct)); len(slices.Compact(sorted)) != len(direct) {
		t.Errorf("NoProxy %q contains an entry twice", direct)
	}
	c.Cluster, c.Machine.Spec.Egress.Proxy = nil, nil
	if got := Egress(c); got.Proxy != "" || got.NoProxy != "" || got.CAs == "" {
		t.Errorf("without a proxy: %+v, %q", got, got.NoProxy)
	}
	if got := Egress(nil); got != (egress.Config{}) {
		t.Errorf("without a configuration: %v", got)
	}
}

// TestProxyRestarts checks that containerd and the API server restart when a configuration first
// sets a proxy. It also checks that a new password or CA restarts no service, and that the
// environment of no service contains the password.
func TestProxyRestarts(t *testing.T) {
	none, first, other := reference(t), reference(t), reference(t)
	none.Machine.Spec.Egress = config.Egress{}
	other.Machine.Spec.Egress.Proxy.Password, other.Machine.Spec.Egress.CA = config.NewSecret("hunter2"), config.Bundle{}
	f := facts(t)
	plan := func(c *config.Config, e EgressFacts) []supervise.Service {
		f.Egress = e
		w := Plan(c, f)
		if w.Services.Hold != HoldNothing || w.Services.Problem != nil {
			t.Fatalf("services are held back: %v, %v", w.Services.Hold, w.Services.Problem)
		}
		return w.Services.All
	}
	forwarder := EgressFacts{Proxy: "http://containerd:TOKEN@127.0.0.1:4444"}
	before, after := plan(none, EgressFacts{}), plan(first, forwarder)
	var restarts []string
	for _, change := range supervise.Diff(before, after) {
		restarts = append(restarts, change.String())
	}
	slices.Sort(restarts)
	if want := []string{"restart service " + nodespec.ServiceContainerd, "restart service " + nodespec.ServiceAPI}; !slices.Contains(restarts, want[0]) || !slices.Contains(restarts, want[1]) || slices.Contains(restarts, "restart service "+nodespec.ServiceControllers) {
		t.Errorf("the first proxy causes %q; want restarts of containerd and the API server, but not of the controllers", restarts)
	}
	if changes := supervise.Diff(after, plan(other, forwarder)); len(changes) > 0 {
		t.Errorf("another password and CA change the services: %v", changes)
	}
	for _, s := range after {
		if env := strings.Join(s.Process.Env, "\n"); strings.Contains(env, "never-use") || strings.Contains(env, "PROXY") != (s.Name == nodespec.ServiceContainerd) {
			t.Errorf("service %s has the environment %q", s.Name, env)
		}
	}
	f.Egress = EgressFacts{Problem: errors.New("no socket")}
	if w := Plan(first, f); w.Services.Problem == nil || w.Services.Problem.Error() != "no socket" {
		t.Errorf("the services have the problem %v, want \"no socket\"", w.Services.Problem)
	}
}
