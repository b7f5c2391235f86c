package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// resyncInterval is the interval at which credentials are reconciled without a change: after a
// change of the clock a certificate may be due at once. Reading them takes less than a millisecond.
const resyncInterval = time.Minute

// runReconcile reconciles the machine each time the configuration, the addresses or the ledger
// change.
func (m *machine) runReconcile(ctx context.Context) {
	configs, states, members, artifacts := m.config.Watch(), m.networkState.Watch(), m.membership.Watch(), m.images.Artifacts().Watch()
	books := m.ledger.changes.Watch()
	tick := time.NewTicker(resyncInterval)
	defer tick.Stop()
	var problem string
	for {
		// Read before the reconciliation, which can take seconds: the select below sees a change
		// during it.
		now, state := configs.Current(), states.Current()
		members.Current()
		artifacts.Current()
		books.Current()
		if early := time.Until(now.due); early > 0 {
			select {
			case <-time.After(early):
			case <-configs.Changed():
				continue
			case <-ctx.Done():
				return
			}
		}
		err := m.reconcile(ctx, now.config, state)
		m.convergence.Update(func(s convergence) convergence { return s.next(now.config, failuresOf(err), time.Now()) })
		switch {
		case err != nil && err.Error() != problem:
			problem = err.Error()
			m.events.add("config", "failure", problem)
			m.logConsole(problem)
		case err == nil:
			problem = ""
		}
		select {
		case <-configs.Changed():
		case <-states.Changed():
		case <-members.Changed():
		case <-artifacts.Changed():
		case <-books.Changed():
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile converges the machine to a configuration once (nil for none). It is idempotent.
func (m *machine) reconcile(ctx context.Context, c *config.Config, state network.State) error {
	m.reconcileMu.Lock()
	defer m.reconcileMu.Unlock()
	if m.shutdown.Load() != nil {
		return nil
	}
	var problems []error
	if err := m.convergeFirewall(ctx, c); err != nil {
		problems = append(problems, err)
	}
	want := networkConfig(c)
	if have, _ := m.networkConfig.Get(); !reflect.DeepEqual(have, want) {
		m.networkConfig.Set(want)
	}
	if have, _ := m.timeServers.Get(); !slices.Equal(have, state.TimeServers) {
		m.timeServers.Set(state.TimeServers)
	}
	if err := m.convergeHost(ctx, c); err != nil {
		problems = append(problems, err)
	}
	if err := m.configureAPI(ctx, c, state); err != nil {
		problems = append(problems, err)
	}
	if err := m.reconcileServices(ctx, c, state); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// reportUnusedResolvers reports the resolvers of the machine that pods do not use, once per change.
func (m *machine) reportUnusedResolvers(n config.ClusterNetworks, servers []netip.Addr) {
	_, left := resolvers(n, servers)
	if slices.Equal(left, m.unusedResolvers) {
		return
	}
	m.unusedResolvers = left
	for _, line := range left {
		m.events.add("network", "failure", line)
	}
}

// reconcileServices writes the files of the services and then sets the services that should run.
func (m *machine) reconcileServices(ctx context.Context, c *config.Config, state network.State) error {
	// a system that is not installed runs no node
	if c == nil || c.Cluster == nil || m.bootMedium != "" {
		return m.services.Set([]supervise.Service{apidService()})
	}
	if err := m.checkMachine(c); err != nil {
		return errors.Join(err, m.services.Set([]supervise.Service{apidService()}))
	}
	if m.packets.exposed(firewallConfig(c)) { // convergeFirewall has reported the error
		return m.services.Set([]supervise.Service{apidService()})
	}
	spec, err := nodeSpec(c, state, m.release)
	if err != nil {
		m.enter("services", "an address: "+strings.Join(append(state.Problems, "none on any link yet"), "; "))
		return m.stopWithoutAddress()
	}
	m.noAddressSince = time.Time{}
	m.reportUnusedResolvers(c.Cluster.Spec.Networks, state.Servers)
	member, _ := m.membership.Get()
	if isWorker(c) && !member.Joined {
		m.enter("joining", strings.TrimSuffix("the cluster: "+member.Problem, ": "))
		return m.services.Set([]supervise.Service{apidService()})
	}
	if isWorker(c) && member.Removed { // removed.go stops the running services in order
		m.enter("removed", member.Problem+"; reset it, or give it another ticket (`orlopctl nodes add`)")
		if !member.PodsStopped {
			return nil
		}
		return m.services.Set(withoutNode(append([]supervise.Service{apidService()}, kubernetes(false)...)))
	}
	if err := m.reconcileCredentials(ctx, c, spec); err != nil {
		return err
	}
	if err := m.prepareKubernetes(spec); err != nil {
		return err
	}
	if err := m.images.ConfigureRegistries(c); err != nil {
		return err
	}
	services, err := m.wantedServices(c)
	if err != nil {
		return err
	}
	m.enter("running", "")
	m.packets.started = true
	if m.shutdown.Load() != nil { // the shutdown meanwhile decides which services run
		return nil
	}
	return m.services.Set(services)
}

// noAddressTime is the time for which services continue with their known addresses after the
// machine has lost its address. A longer loss is no renewal of a lease: the services would fail and
// restart, at full load, until it ends.
const noAddressTime = time.Minute

// stopWithoutAddress stops the services that need an address once the machine has had none for
// noAddressTime. containerd continues, and so do the pods. The caller holds m.reconcileMu.
func (m *machine) stopWithoutAddress() error {
	if m.noAddressSince.IsZero() {
		m.noAddressSince = time.Now()
	}
	if time.Since(m.noAddressSince) < noAddressTime {
		return nil
	}
	return m.services.Set(withoutAddress(m.services.Services()))
}

// withoutAddress returns the services that run on a machine without an address.
func withoutAddress(running []supervise.Service) []supervise.Service {
	return slices.DeleteFunc(slices.Clone(running), func(s supervise.Service) bool { return s.Name != serviceApid && s.Name != serviceContainerd })
}

// reconcileCredentials converges the certificates and keys of the node's processes.
func (m *machine) reconcileCredentials(ctx context.Context, c *config.Config, spec nodespec.Spec) error {
	a, err := m.authorities(c)
	if err != nil {
		return err
	}
	want, err := credentials.Plan(spec, a)
	if err != nil {
		return err
	}
	return m.converge(ctx, "credentials", want)
}

// converge converges credentials.
func (m *machine) converge(ctx context.Context, name string, want credentials.Want) error {
	return reconcile.Converge(ctx, reconcile.Config{
		Name: name,
		Diff: func(context.Context) ([]reconcile.Op, error) {
			have, err := credentials.Read(want)
			if err != nil {
				return nil, err
			}
			return credentials.Diff(have, want), nil
		},
		Report: m.report,
	})
}

// report adds an event about an operation.
func (m *machine) report(r reconcile.Report) {
	kind := "operation"
	if r.Err != nil {
		kind = "failure"
	}
	m.events.add(r.Domain, kind, r.String())
}

// configureAPI writes the certificate of apid and the CAs of its callers.
func (m *machine) configureAPI(ctx context.Context, c *config.Config, state network.State) error {
	want, callers, err := m.apiCredentials(c, state)
	if err != nil {
		return err
	}
	m.pairing.Update(c, callers.Operators)
	return m.converge(ctx, "api", want)
}

// apiCredentials returns the credentials of apid and the CAs of its callers.
func (m *machine) apiCredentials(c *config.Config, state network.State) (credentials.Want, credentials.CallerCAs, error) {
	callers, err := m.callers(c)
	if err != nil {
		return credentials.Want{}, callers, err
	}
	name, ca, issued := network.DefaultHostname, (*pki.CA)(nil), (*pki.Leaf)(nil)
	if c != nil {
		name = c.Machine.Metadata.Name
		if c.Cluster != nil && !c.Cluster.Spec.PKI.Machine.Key.IsZero() {
			if ca, err = authority(c.Cluster.Spec.PKI.Machine); err != nil {
				return credentials.Want{}, callers, fmt.Errorf("Cluster.spec.pki.machine: %w", err)
			}
		}
	}
	if member, _ := m.membership.Get(); isWorker(c) && member.Joined {
		issued = member.certs.machine
	}
	return credentials.APIServer(m.identity.Load().Key, name, nodeAddresses(c, state), ca, issued, callers), callers, nil
}

// networkConfig returns the network of a configuration; the zero Config if there is none.
func networkConfig(c *config.Config) network.Config {
	if c == nil {
		return network.Config{}
	}
	s := c.Network.Spec
	out := network.Config{Hostname: c.Machine.Metadata.Name, DNS: s.DNS.Servers, Search: s.DNS.Search, NTP: s.NTP.Servers}
	for _, l := range s.Links {
		// checked by the parser; empty if the configuration selects the link by name
		mac, _ := net.ParseMAC(string(l.MAC))
		one := network.LinkConfig{Name: l.Name, MAC: mac, MTU: l.MTU, DHCP4: l.DHCP4, Addresses: l.Addresses}
		for _, r := range l.Routes {
			one.Routes = append(one.Routes, network.RouteConfig{To: r.To, Via: r.Via, Metric: r.Metric})
		}
		out.Links = append(out.Links, one)
	}
	return out
}

// hostConfig returns the host settings of a configuration.
func (m *machine) hostConfig(c *config.Config) host.Config {
	out := host.Config{PreviousSysctls: m.kernel.PreviousSysctls()}
	if m.identity.Load() != nil {
		out.MachineID = host.MachineID(pki.EncodePublicKey(m.identity.Load().Key))
	}
	if c != nil {
		out.Sysctls, out.Modules = c.Machine.Spec.Sysctls, c.Machine.Spec.KernelModules
		out.Pods = c.Cluster != nil
		if out.Pods && c.Cluster.Spec.HasExternal(config.PartNetwork) {
			// for the link with the DNS address (orchestrator/podnetwork)
			out.Modules = append(slices.Clone(out.Modules), "dummy")
		}
		out.ReservedMemory = int64(c.Machine.Spec.Reserved.Memory)
	}
	return out
}

// convergeHost converges the host to a configuration (nil for none).
func (m *machine) convergeHost(ctx context.Context, c *config.Config) error {
	want := host.Plan(m.hostConfig(c), m.facts)
	return reconcile.Converge(ctx, reconcile.Config{
		Name: "host", KeepGoing: true, Report: m.report,
		Diff: m.kernel.Diff(func() host.Want { return want }),
	})
}

// hostDryRun returns the operations on the host for a configuration.
func (m *machine) hostDryRun(ctx context.Context, c *config.Config) ([]string, error) {
	want := host.Plan(m.hostConfig(c), m.facts)
	ops, err := m.kernel.Diff(func() host.Want { return want })(ctx)
	if err != nil {
		return nil, err
	}
	return reconcile.Print(ops), nil
}
