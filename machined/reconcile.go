package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// lookAgain is how often credentials are looked at even if nothing changes: the clock may have been
// set, and then a certificate may be due at once. Reading them costs less than a millisecond.
const lookAgain = time.Minute

// follow brings about what follows from the configuration, from the machine's addresses and from
// its book, each time one of them changes.
func (m *machine) follow(ctx context.Context) {
	configs, states, members, artifacts := m.config.Watch(), m.networkState.Watch(), m.membership.Watch(), m.artifacts.Watch()
	books := m.book.changes.Watch()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	var problem string
	for {
		// Taken before it is acted on, which may take seconds: what changes meanwhile is seen
		// below.
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
		err := m.settle(ctx, now.config, state)
		m.settled.Update(func(s settlement) settlement { return s.after(now.config, failuresOf(err), time.Now()) })
		switch {
		case err != nil && err.Error() != problem:
			problem = err.Error()
			m.events.add("config", "failure", problem)
			m.say(problem)
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

// settle does all that follows from a configuration (nil for none) once. It is safe to repeat, and
// does nothing when nothing changed.
func (m *machine) settle(ctx context.Context, c *config.Config, state network.State) error {
	m.settling.Lock()
	defer m.settling.Unlock()
	if m.going.Load() != nil {
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
	if err := m.openDoor(ctx, c, state); err != nil {
		problems = append(problems, err)
	}
	if err := m.settleServices(ctx, c, state); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// tellLeftOut says which of the machine's resolvers are not asked for pods, once each time that
// changes.
func (m *machine) tellLeftOut(n config.ClusterNetworks, servers []netip.Addr) {
	_, left := resolvers(n, servers)
	if slices.Equal(left, m.leftOut) {
		return
	}
	m.leftOut = left
	for _, line := range left {
		m.events.add("network", "failure", line)
	}
}

// settleServices writes what the services read and then says which of them should run.
func (m *machine) settleServices(ctx context.Context, c *config.Config, state network.State) error {
	// a system that is not installed runs nothing
	if c == nil || c.Cluster == nil || m.medium != "" {
		return m.services.Set([]supervise.Service{door()})
	}
	if err := m.able(c); err != nil {
		return errors.Join(err, m.services.Set([]supervise.Service{door()}))
	}
	if m.packets.exposed(firewallConfig(c)) { // convergeFirewall has said why
		return m.services.Set([]supervise.Service{door()})
	}
	spec, err := nodeSpec(c, state, m.release)
	if err != nil {
		m.enter("services", "an address: "+strings.Join(append(state.Problems, "none on any link yet"), "; "))
		return m.rest()
	}
	m.lonely = time.Time{}
	m.tellLeftOut(c.Cluster.Spec.Networks, state.Servers)
	member, _ := m.membership.Get()
	if worker(c) && !member.Joined {
		m.enter("joining", strings.TrimSuffix("the cluster: "+member.Problem, ": "))
		return m.services.Set([]supervise.Service{door()})
	}
	if worker(c) && member.Removed { // removal.go stops what runs, in order
		m.enter("removed", member.Problem+"; reset it, or give it another ticket (`orlopctl nodes add`)")
		if !member.Ended {
			return nil
		}
		return m.services.Set(withoutNode(append([]supervise.Service{door()}, kubernetes(false)...)))
	}
	if err := m.settleCredentials(ctx, c, spec); err != nil {
		return err
	}
	if err := m.prepareKubernetes(spec); err != nil {
		return err
	}
	if err := m.settleRegistries(c); err != nil {
		return err
	}
	services, err := m.wantedServices(c)
	if err != nil {
		return err
	}
	m.enter("running", "")
	m.packets.begun = true
	if m.going.Load() != nil { // meanwhile: who stops them has said which go on
		return nil
	}
	return m.services.Set(services)
}

// settleRegistries tells containerd how to ask registries.
func (m *machine) settleRegistries(c *config.Config) error {
	all := c.Machine.Spec.Registries
	var near, gate ownMirror
	if hasNeighbours(c) || hasMirrors(all) {
		own, through, err := m.openMirror()
		if err != nil {
			return err
		}
		if hasNeighbours(c) {
			near = own
		}
		gate = through
	}
	m.mirrors.set(all)
	return writeRegistries(paths.ContainerdHosts, registryFiles(all, near, gate))
}

// lonelyTime is how long services go on with the addresses that they know when the machine has none
// any more. What lasts longer is no renewal of a lease: the services would only fail and start
// anew, at full load, for as long as it lasts.
const lonelyTime = time.Minute

// rest stops what cannot work without an address once the machine has had none for lonelyTime.
// containerd goes on, and with it the pods. m.settling is held.
func (m *machine) rest() error {
	if m.lonely.IsZero() {
		m.lonely = time.Now()
	}
	if time.Since(m.lonely) < lonelyTime {
		return nil
	}
	return m.services.Set(resting(m.services.Services()))
}

// resting are those of the services that run on a machine without an address.
func resting(running []supervise.Service) []supervise.Service {
	return slices.DeleteFunc(slices.Clone(running), func(s supervise.Service) bool { return s.Name != serviceApid && s.Name != serviceContainerd })
}

// settleCredentials gives the processes of a node their certificates and keys.
func (m *machine) settleCredentials(ctx context.Context, c *config.Config, spec nodespec.Spec) error {
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

// converge brings credentials about.
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

// report makes an event of an operation.
func (m *machine) report(r reconcile.Report) {
	kind := "op"
	if r.Err != nil {
		kind = "failure"
	}
	m.events.add(r.Domain, kind, r.String())
}

// openDoor gives apid the machine's certificate, and says whose calls to take.
func (m *machine) openDoor(ctx context.Context, c *config.Config, state network.State) error {
	want, callers, err := m.wantedDoor(c, state)
	if err != nil {
		return err
	}
	m.desk.open(m.unowned(c, callers.Operators))
	return m.converge(ctx, "door", want)
}

// wantedDoor is what apid needs, and whose calls it takes.
func (m *machine) wantedDoor(c *config.Config, state network.State) (credentials.Want, credentials.CallerCAs, error) {
	callers, err := m.callers(c)
	if err != nil {
		return credentials.Want{}, callers, err
	}
	name, ca, given := network.DefaultHostname, (*pki.CA)(nil), (*pki.Leaf)(nil)
	if c != nil {
		name = c.Machine.Metadata.Name
		if c.Cluster != nil && !c.Cluster.Spec.PKI.Machine.Key.IsZero() {
			if ca, err = authority(c.Cluster.Spec.PKI.Machine); err != nil {
				return credentials.Want{}, callers, fmt.Errorf("Cluster.spec.pki.machine: %w", err)
			}
		}
	}
	if member, _ := m.membership.Get(); worker(c) && member.Joined {
		given = member.held.machine
	}
	return credentials.APIServer(m.identity.Load().Key, name, nodeAddresses(c, state), ca, given, callers), callers, nil
}

// networkConfig is the network that a configuration asks for; the zero Config when there is none.
func networkConfig(c *config.Config) network.Config {
	if c == nil {
		return network.Config{}
	}
	s := c.Network.Spec
	out := network.Config{Hostname: c.Machine.Metadata.Name, DNS: s.DNS.Servers, Search: s.DNS.Search, NTP: s.NTP.Servers}
	for _, l := range s.Links {
		// checked when the document was parsed; empty when the link goes by its name
		mac, _ := net.ParseMAC(string(l.MAC))
		one := network.LinkConfig{Name: l.Name, MAC: mac, MTU: l.MTU, DHCP4: l.DHCP4, Addresses: l.Addresses}
		for _, r := range l.Routes {
			one.Routes = append(one.Routes, network.RouteConfig{To: r.To, Via: r.Via, Metric: r.Metric})
		}
		out.Links = append(out.Links, one)
	}
	return out
}

// hostConfig is what a configuration asks of the host.
func (m *machine) hostConfig(c *config.Config) host.Config {
	out := host.Config{Former: m.kernel.PreviousSysctls()}
	if m.identity.Load() != nil {
		out.MachineID = host.MachineID(pki.EncodePublicKey(m.identity.Load().Key))
	}
	if c != nil {
		out.Sysctls, out.Modules = c.Machine.Spec.Sysctls, c.Machine.Spec.KernelModules
		out.Pods = c.Cluster != nil
		if out.Pods && c.Cluster.Spec.HasExternal(config.PartNetwork) {
			// the link with the DNS's address (orchestrator/podnetwork)
			out.Modules = append(slices.Clone(out.Modules), "dummy")
		}
		out.ReservedMemory = int64(c.Machine.Spec.Reserved.Memory)
	}
	return out
}

// convergeHost brings the host to what a configuration (nil for none) asks for.
func (m *machine) convergeHost(ctx context.Context, c *config.Config) error {
	want := host.Plan(m.hostConfig(c), m.facts)
	return reconcile.Converge(ctx, reconcile.Config{
		Name: "host", KeepGoing: true, Report: m.report,
		Diff: m.kernel.Diff(func() host.Want { return want }),
	})
}

// hostDryRun says what a configuration would change on the host.
func (m *machine) hostDryRun(ctx context.Context, c *config.Config) ([]string, error) {
	want := host.Plan(m.hostConfig(c), m.facts)
	ops, err := m.kernel.Diff(func() host.Want { return want })(ctx)
	if err != nil {
		return nil, err
	}
	return reconcile.Print(ops), nil
}

// importTimeout bounds the import of one of the image's own archives.
const importTimeout = 2 * time.Minute

// importAgain is how long an import that failed rests: the disk may have been full.
const importAgain = 30 * time.Second

// keepImages imports the container images that are part of the system, the pause image above all,
// whenever containerd has come up without them.
func (m *machine) keepImages(ctx context.Context) {
	up := false
	for w := m.services.Status().Watch(); ; {
		list := w.Current()
		i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == serviceContainerd })
		now := i >= 0 && list[i].State == supervise.Running
		var again <-chan time.Time
		if now && !up {
			if err := m.importOwn(ctx); err != nil {
				m.events.add("image", "failure", err.Error())
				now, again = false, time.After(importAgain)
			} else {
				m.mark("images")
				kick(m.imported)
			}
		}
		up = now
		select {
		case <-w.Changed():
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

func (m *machine) importOwn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	store := imagestore.New(m.containerd)
	if have, err := store.Has(ctx, m.release.PauseImage); err != nil || have {
		return err
	}
	archives, err := filepath.Glob(paths.Images + "/*.tar")
	if err != nil {
		return fmt.Errorf("images: cannot list the image's own: %w", err)
	}
	for _, name := range archives {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("images: cannot open: %w", err)
		}
		images, err := store.Import(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, i := range images {
			m.events.add("image", "op", "imported "+i.Name+" from the system's image")
		}
	}
	return nil
}
