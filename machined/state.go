package main

import (
	"context"

	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/secureboot"
)

// observable lists all topics of the machine's state, one line per topic. The API sends the JSON
// form of the named type.
func observable(m *machine) []machinedapi.Topic {
	return []machinedapi.Topic{
		// []credentials.State, with expiry
		machinedapi.PolledTopic("certificates", ignoreContext(certificates)),
		// []host.GroupUsage: control groups and their usage
		machinedapi.PolledTopic("cgroups", ignoreContext(m.system.kernel.ReadGroups)),
		// activeconfig.State
		machinedapi.PolledTopic("configuration", func(ctx context.Context) (activeconfig.State, error) { return m.config.active.State(ctx), nil }),
		// disk.State: disks, partitions, file systems
		machinedapi.WatchedTopic("disks", m.domains.disks.State()),
		// []drain.State: drains since boot, with the pods that block them
		machinedapi.WatchedTopic("drain", m.domains.drain.States()),
		// []drift.State: differences from the configured state
		driftTopic(drift.New(drift.Deps{Domains: m.config.reconciler.DriftSources(), Epoch: m.config.reconciler.DriftEpoch})),
		// []extensions.State: configured extensions
		machinedapi.WatchedTopic("extensions", m.domains.extensions.States()),
		// []host.FilesystemState: usage of file systems
		machinedapi.PolledTopic("filesystems", ignoreContext(m.system.kernel.ReadUsage)),
		// install.State: progress of an installation
		machinedapi.WatchedTopic("install", m.install.State()),
		// []inventory.Entry: machines that wait for a configuration, on a control-plane machine
		machinedapi.WatchedTopic("inventory", m.domains.hosts.Published()),
		machinedapi.WatchedTopic("lldp", m.domains.lldp.Neighbors()), // []lldp.Neighbor
		// membership.State: membership of a worker in its cluster
		machinedapi.WatchedTopic("membership", m.members.Worker.State),
		// host.Memory, bytes
		machinedapi.PolledTopic("memory", ignoreContext(m.system.kernel.ReadMemory)),
		// []host.LoadedModule
		machinedapi.PolledTopic("modules", ignoreContext(m.system.kernel.ReadModules)),
		// []host.MountState
		machinedapi.PolledTopic("mounts", ignoreContext(m.system.kernel.ReadMounts)),
		// network.State: links, addresses, routes, leases, resolver
		machinedapi.WatchedTopic("network", m.domains.network.State),
		// []debug.RuleTable: the nftables rules, as nft prints them
		machinedapi.PolledTopic("nftables", m.debug.RuleTables),
		machinedapi.PolledTopic("pci", ignoreContext(m.system.kernel.ReadPCI)), // []host.PCIDevice
		// []host.ProcessState, with memory
		machinedapi.PolledTopic("processes", ignoreContext(m.system.kernel.ReadProcesses)),
		// events.PanicState: panics of the system's programs
		machinedapi.WatchedTopic("panics", m.reports.panics.State()),
		machinedapi.WatchedTopic("resolver", m.domains.dns.State()), // resolver.State
		// []network.KernelRoute: all routes of the kernel, of any origin
		machinedapi.PolledTopic("routes", ignoreContext(network.KernelRoutes)),
		// secureboot.State: the mode of Secure Boot, and the certificates that the firmware accepts
		machinedapi.PolledTopic("secure-boot", ignoreContext(func() (secureboot.State, error) { return secureboot.Read(bootenv.VariablesDir) })),
		// []host.Sensor: temperatures, fans, voltages, power
		machinedapi.PolledTopic("sensors", ignoreContext(m.system.kernel.ReadSensors)),
		// []supervise.Status, with components
		machinedapi.WatchedTopic("services", m.processes.services.Status()),
		// []logship.State: receivers of logs
		machinedapi.PolledTopic("log-shipping", ignoreContext(m.reports.shipping.States)),
		// events.Stage: step of the boot and the resource for which it waits
		machinedapi.WatchedTopic("stage", m.reports.progress.Stage()),
		// []host.SysctlState: configured kernel parameters
		machinedapi.PolledTopic("sysctls", ignoreContext(func() ([]host.SysctlState, error) {
			return m.system.kernel.ReadSysctls(m.config.facts.HostConfig(m.config.active.Current().Config))
		})),
		// host.System: kernel, processors, uptime
		machinedapi.PolledTopic("system", ignoreContext(m.system.kernel.ReadSystem)),
		machinedapi.WatchedTopic("time", m.domains.clock.status), // timesync.Status
		// []events.Moment: time of each step and first readiness
		machinedapi.WatchedTopic("timeline", m.reports.progress.Timeline()),
		// []volumes.VolumeState: partitions on other disks, and their problems
		machinedapi.WatchedTopic("volumes", m.domains.volumes.List()),
		// []wear.Disk: wear and errors of the disks
		machinedapi.WatchedTopic("wear", m.domains.wear.Disks()),
		// upgrade.State: the last upgrade and its progress
		machinedapi.WatchedTopic("upgrade", m.upgrade.Controller.State()),
	}
}

func driftTopic(d *drift.Reader) machinedapi.Topic {
	return machinedapi.Topic{
		Name: "drift",
		Get:  func(ctx context.Context) (any, uint64, error) { return d.Get(ctx) },
		Next: d.Next,
	}
}

func ignoreContext[T any](read func() (T, error)) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return read() }
}

func certificates() ([]credentials.State, error) { return credentials.List(credentials.Dirs()...) }
