package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/x509"

	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/extensions"
	"github.com/orlop-os/orlop/machined/forwarder"
	"github.com/orlop-os/orlop/machined/hardware"
	"github.com/orlop-os/orlop/machined/hosts"
	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/resolver"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/trust"
)

// The wiring of the packages for the hardware, the extensions, the connections to servers outside
// the cluster, and waiting machines.

// newLLDP makes the LLDP controller, which finds the neighbors on the links.
func newLLDP(m *machine) *lldp.Controller {
	return lldp.New(lldp.Deps{
		Links:  cell.Map(m.domains.network.State, hardware.LLDPLinks),
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) lldp.Config { return nodeplan.LLDP(now.Config) }),
		File:   func() string { return storedIn(m, paths.LLDPLabels) },
		Listen: lldp.Listen,
		Event:  m.reports.events.From("lldp"),
	})
}

// newResolver makes the DNS forwarder, which sends the queries of the machine over TLS.
func newResolver(m *machine) *resolver.Forwarder {
	return resolver.New(resolver.Deps{
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) resolver.Config { return nodeplan.Resolver(now.Config) }),
		Clock: func() pki.ClockView {
			s, _ := m.domains.clock.status.Get()
			return timesync.ClockView(s, m.domains.clock.floor, time.Now())
		},
		Listen: nodeplan.StubResolver,
		Event:  m.reports.events.From("resolver"),
	})
}

// newForwarder makes the proxy by which containerd and the API server reach servers outside the
// cluster.
func newForwarder(m *machine) *forwarder.Server {
	return forwarder.New(forwarder.Deps{
		Config: func() egress.Config { return egressOf(m) },
		Listen: func() (net.Listener, error) { return machinedapi.Listen(paths.ForwarderSocket, paths.UserAPI) },
		Event:  m.reports.events.From("egress"),
	})
}

// egressOf returns the proxy and the CAs for servers outside the cluster, as configured now.
func egressOf(m *machine) egress.Config { return nodeplan.Egress(m.config.active.Current().Config) }

// newVolumes makes the controller of the volumes on other disks. Sandboxed processes examine these
// disks (machined/disk).
func newVolumes(m *machine) *volumes.Controller {
	return volumes.New(volumes.Deps{
		Disks: func(ctx context.Context, fresh bool) ([]volumes.Disk, error) {
			have, err := disk.Read(ctx, m.domains.disks.Examine(diskprobe.Freshness(fresh)))
			return hardware.VolumeDisks(have.Disks), err
		},
		Changes:        m.domains.disks.State().View().Changes(),
		Command:        m.processes.commands.run,
		Run:            m.processes.commands.reaper.Run,
		Busy:           func() bool { return slices.ContainsFunc(m.processes.services.Services(), nodeplan.OfNode) },
		Records:        paths.Volumes,
		InMemory:       m.system.inMemory(),
		StorageProblem: m.domains.disks.StorageProblem,
		Event:          m.reports.events.From("volumes"),
	})
}

// newWear makes the controller of the wear of the disks.
func newWear(m *machine) *wear.Controller {
	return wear.New(wear.Deps{
		Disks: cell.Map(m.domains.disks.State(), hardware.WearTargets),
		Read:  wear.Read,
		File:  func() string { return storedIn(m, paths.Wear) },
		Now:   time.Now,
		Event: m.reports.events.From("wear"),
	})
}

// storedIn returns a file on STATE; empty if STATE is not mounted.
func storedIn(m *machine, file string) string {
	if m.system.inMemory() || m.domains.disks.StorageProblem() != "" {
		return ""
	}
	return file
}

// newFirmware makes the check of the signatures of boot images against the Secure Boot keys of the
// firmware.
func newFirmware(m *machine) secureboot.Checker {
	start := m.processes.commands.reaper.Parser(supervise.Command{Args: []string{paths.Bootcheck}, Env: secureboot.Environment, UID: paths.UserProbe})
	return secureboot.Checker{Dir: bootenv.VariablesDir, Start: start}
}

// newExtensions makes the manager of the extensions. Its functions read fields of m that are set
// later.
func newExtensions(m *machine) *extensions.Manager {
	own := extensions.NewOwnFiles("/usr")
	return extensions.New(extensions.Deps{
		Store:  extensions.Store{Dir: paths.Extensions, Free: upgrade.FreeSpace},
		Mounts: paths.ExtensionMounts,
		Kernel: extensions.Linux(),
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) *config.Config { return now.Config }),
		System: func() (extensions.System, error) {
			kernel, err := kmod.Release()
			return extensions.System{Version: m.system.release.Version, Profile: m.system.release.Profile, Kernel: kernel, Has: own.Has}, err
		},
		Release:        func() (bundle.Trust, error) { return m.upgrade.Receiver.ReleaseKeys() },
		Keys:           func() ([]byte, error) { return os.ReadFile(paths.ExtensionKeys) },
		StorageProblem: m.domains.disks.StorageProblem,
		Sources: func(c *config.Config, image config.Artifact) []extensions.Source {
			p := extensions.Places{Containerd: containerdReady(m.processes.services) == nil, Registry: func(image string) (artifact.Source, error) {
				return upgrade.RegistrySource(c, nodeplan.Egress(c), image).Artifact()
			}}
			p.Imported, p.ControlPlane = m.images.Sources()
			return p.Of(c, image)
		},
		Others: func() ([]config.Artifact, error) {
			if err := cmp.Or(m.config.active.CheckSettled(), m.upgrade.Controller.Record().Undecided()); err != nil {
				return nil, err
			}
			saved, err := upgrade.Store{Dir: paths.Upgrade}.SavedConfigurations()
			if err != nil {
				return nil, err
			}
			return extensions.SavedImages(saved)
		},
		AddModules:  m.system.kernel.AddModules,
		LoadModules: m.system.kernel.LoadModules,
		Event:       m.reports.events.From("extensions"),
		Console:     m.reports.events.LogConsole,
	})
}

// newHosts makes the list of waiting machines.
func newHosts(m *machine) *hosts.Register {
	return hosts.NewRegister(hosts.RegisterDeps{
		Enabled:     func() bool { return hosts.AcceptsInventories(m.config.active.Current().Config) },
		CheckSource: m.members.Requests.CheckSource,
		Members:     func() []string { return hosts.MemberKeys(m.members.Ledger.Current().Membership) },
		Names:       func() []string { return hosts.Names(m.members.Ledger.Current().Membership, time.Now()) },
		Approvals:   func() []trust.Approval { return m.members.Ledger.Current().Approvals },
		Operators: func() []byte {
			// The error is ignored here, because newClaims reports it.
			list, _ := ownership.Operators(m.config.active.Current().Config)
			return list
		},
		Offer: m.domains.claims.Offer,
		Write: func(content []byte) error {
			return safefile.Publish(paths.KubeControllers, nodespec.HostsFile, content)
		},
		Event: m.reports.events.From("inventory"),
		Now:   time.Now,
	})
}

// newClaims makes the receiver of the claims of the controllers, on a control-plane machine.
func newClaims(m *machine) *hosts.Claims {
	membersNow := func() trust.Ledger { return m.members.Ledger.Current() }
	return hosts.NewClaims(hosts.ClaimsDeps{
		Enabled: func() bool { return hosts.AcceptsClaims(m.config.active.Current().Config) },
		Read:    func() ([]byte, error) { return hosts.ReadClaims(paths.KubeControllers) },
		Operators: func() ([]*x509.Certificate, error) {
			list, err := ownership.Operators(m.config.active.Current().Config)
			if err != nil {
				return nil, err
			}
			return pki.ParseCerts(list)
		},
		CheckRevoked: func(c *x509.Certificate) error { return trust.CheckRevoked(membersNow().Revoked.Active(), c) },
		Pending: func() []claim.Member {
			pending, err := m.members.Requests.ListPending()
			if err != nil {
				return nil // this machine accepts no join requests
			}
			return hosts.Pending(pending)
		},
		Approve: func(ctx context.Context, to claim.Member, by string) error {
			_, err := m.members.Requests.Approve(ctx, api.Caller{Subject: by}, &api.ApproveRequest{Name: to.Name, Fingerprint: to.Key, Ttl: durationpb.New(hosts.TicketTTL)})
			return err
		},
		Known: func(of claim.Member) bool { return hosts.Known(membersNow().Membership, of, time.Now()) },
		Remove: hosts.Remover{
			HasMember: func(name string) bool { return membersNow().HasMember(name) },
			Drain: func(ctx context.Context, node, by string) (undo func(), err error) {
				return m.domains.drain.DrainMember(ctx, node, by, config.Drain{Policy: config.DrainTimeout})
			},
			RemoveMember: func(ctx context.Context, name, by string) error {
				_, err := m.members.Server.RemoveMember(ctx, api.Caller{Subject: by}, &api.RemoveMemberRequest{Name: name})
				return err
			},
		}.Remove,
		Event: m.reports.events.From("inventory"),
		Now:   time.Now,
		Rules: hosts.RuleDeps{
			Host: func(key string) (inventory.Host, bool) { return m.domains.hosts.Host(key) },
			Matches: func(ctx context.Context, expression string, h inventory.Host) (bool, error) {
				return hosts.Matches(ctx, m.processes.commands.run, expression, h)
			},
			Approvals: func() trust.Membership { return membersNow().Membership },
			Record:    func(ctx context.Context, a trust.Approval) error { return m.members.Server.RecordApproval(ctx, a) },
		},
	})
}

// newReporter makes the sender of the inventory of a machine without a configuration.
func newReporter(m *machine) *hosts.Reporter {
	key := func() *ecdsa.PrivateKey {
		if own := m.identity.Load(); own != nil {
			return own.Key
		}
		return nil
	}
	return hosts.NewReporter(hosts.ReporterDeps{
		Waits:   cell.Map(m.config.active.Cell(), func(now activeconfig.Active) bool { return now.Config == nil }),
		Domains: cell.Map(m.domains.network.State, func(s network.State) []string { return s.Search }),
		Lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
		Host: func() inventory.Host { return readHost(m) },
		Key:  key,
		Send: func(ctx context.Context, address netip.Addr, key *ecdsa.PrivateKey, h inventory.Host) (inventory.Answer, error) {
			return client.ReportInventory(ctx, address.String(), key, h)
		},
		Adopt: hosts.Adopter{
			Installing: m.install.Began,
			Owner:      ownership.Owner,
			Key:        key,
			Machines:   membership.MachinePool,
			Apply: func(ctx context.Context, by api.Caller, documents []byte) error {
				_, err := m.config.applier.applyFirst(metadata.NewIncomingContext(ctx, by.Metadata()), "template", &api.ApplyRequest{Documents: documents, NoTrial: true})
				return err
			},
		}.Adopt,
		Event: m.reports.events.From("inventory"),
	})
}

// readHost reads the inventory of the machine. A part that cannot be read is missing.
func readHost(m *machine) inventory.Host {
	const sys, mib = "/sys", 1 << 20
	h := hosts.ReadFirmware(sys, inventory.Host{CPUs: m.system.hardware.CPUs, MemoryMiB: m.system.hardware.Memory / mib, Release: m.system.release.Version, Medium: m.system.bootMedium})
	if s, err := m.system.kernel.ReadSystem(); err == nil {
		h.CPUModel = s.CPUModel
	}
	disks, _ := m.domains.disks.State().Get()
	links, _ := m.domains.network.State.Get()
	neighbors, _ := m.domains.lldp.Neighbors().Get()
	h.Disks = hardware.InventoryDisks(disks)
	h.NICs = hardware.NICs(links, neighbors, func(link string) int { return hosts.ReadSpeed(sys, link) })
	return h.Bounded()
}
