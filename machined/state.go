package main

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/topic"
)

// configurationState describes the configuration: topic "configuration". Config.Get returns its
// text.
type configurationState struct {
	Present bool      `json:"present"`
	Machine string    `json:"machine,omitempty"` // machine name
	Role    string    `json:"role,omitempty"`
	Cluster string    `json:"cluster,omitempty"`
	Applied time.Time `json:"applied,omitzero"`
	// STATE, image, API or medium, with the caller or device
	Source string `json:"source,omitempty"`
	// why the stored configuration is unusable
	Problem string `json:"problem,omitempty"`
	// time of the staged configuration; zero if none
	Staged time.Time `json:"staged,omitzero"`
	// names of the encryption keys on a control-plane machine; the first key encrypts
	EncryptionKeys []string `json:"encryptionKeys,omitempty"`
	// services that do not run with this configuration yet
	WaitingFor []string `json:"waitingFor,omitempty"`
	// when the previous configuration becomes active again unless a client confirms the present
	// one; zero if it is not on trial
	TrialDeadline time.Time `json:"trialDeadline,omitzero"`
}

// observable lists all topics of the machine's state, one line per topic. The API sends the JSON
// form of the named type.
func observable(m *machine) []topic.Topic {
	return []topic.Topic{
		// []credentials.State, with expiry
		topic.Polled("certificates", ignoreContext(certificates)),
		// []host.GroupUsage: control groups and their usage
		topic.Polled("cgroups", ignoreContext(m.system.kernel.ReadGroups)),
		// configurationState
		topic.Polled("configuration", ignoreContext(func() (configurationState, error) { return readConfiguration(m) })),
		// disk.State: disks, partitions, file systems
		topic.Watched("disks", m.domains.disks.State()),
		// []drift.State: differences from the configured state
		drift.New(drift.Deps{Domains: m.config.reconciler.DriftSources(), Epoch: m.config.reconciler.DriftEpoch}).Topic(),
		// []host.FilesystemState: usage of file systems
		topic.Polled("filesystems", ignoreContext(m.system.kernel.ReadUsage)),
		// install.State: progress of an installation
		topic.Watched("install", m.install.State()),
		// membership.State: membership of a worker in its cluster
		topic.Watched("membership", m.members.Worker.State),
		topic.Polled("memory", ignoreContext(m.system.kernel.ReadMemory)),   // host.Memory, bytes
		topic.Polled("modules", ignoreContext(m.system.kernel.ReadModules)), // []host.LoadedModule
		topic.Polled("mounts", ignoreContext(m.system.kernel.ReadMounts)),   // []host.MountState
		// network.State: links, addresses, routes, leases, resolver
		topic.Watched("network", m.domains.network.State),
		// []debug.RuleTable: the nftables rules, as nft prints them
		topic.Polled("nftables", m.debug.RuleTables),
		topic.Polled("pci", ignoreContext(m.system.kernel.ReadPCI)), // []host.PCIDevice
		// []host.ProcessState, with memory
		topic.Polled("processes", ignoreContext(m.system.kernel.ReadProcesses)),
		// events.PanicState: panics of the system's programs
		topic.Watched("panics", m.reports.panics.State()),
		// []network.KernelRoute: all routes of the kernel, of any origin
		topic.Polled("routes", ignoreContext(network.KernelRoutes)),
		// []host.Sensor: temperatures, fans, voltages, power
		topic.Polled("sensors", ignoreContext(m.system.kernel.ReadSensors)),
		// []supervise.Status, with components
		topic.Watched("services", m.processes.services.Status()),
		// []logship.State: receivers of logs
		topic.Polled("log-shipping", ignoreContext(m.logShipping.States)),
		// events.Stage: step of the boot and the resource for which it waits
		topic.Watched("stage", m.reports.progress.Stage()),
		// []host.SysctlState: configured kernel parameters
		topic.Polled("sysctls", ignoreContext(func() ([]host.SysctlState, error) {
			return m.system.kernel.ReadSysctls(m.config.facts.hostConfig(m.config.active.Current().Config))
		})),
		// host.System: kernel, processors, uptime
		topic.Polled("system", ignoreContext(m.system.kernel.ReadSystem)),
		topic.Watched("time", m.domains.clock.status), // timesync.Status
		// []events.Moment: time of each step and first readiness
		topic.Watched("timeline", m.reports.progress.Timeline()),
		// upgrade.State: the last upgrade and its progress
		topic.Watched("upgrade", m.upgrade.Controller.State()),
	}
}

func ignoreContext[T any](read func() (T, error)) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return read() }
}

func certificates() ([]credentials.State, error) { return credentials.List(credentials.Dirs()...) }

func readConfiguration(m *machine) (configurationState, error) {
	now := m.config.active.Current()
	if now.Config == nil {
		return configurationState{Problem: now.Problem, Staged: m.config.active.Store().Staged()}, nil
	}
	s := configurationState{Present: true, Source: now.Source, Machine: now.Config.Machine.Metadata.Name, Role: string(now.Config.Machine.Spec.Role),
		Applied: now.At, TrialDeadline: now.TrialEnd, Staged: m.config.active.Store().Staged()}
	if now.Config.Cluster != nil {
		s.Cluster = now.Config.Cluster.Metadata.Name
		if !m.system.inMemory() {
			var err error
			if s.WaitingFor, err = m.config.reconciler.WaitingServices(now.Config); err != nil {
				s.WaitingFor = []string{err.Error()}
			}
		}
		for _, k := range now.Config.Cluster.Spec.EncryptionKeys() {
			s.EncryptionKeys = append(s.EncryptionKeys, k.Name())
		}
	}
	return s, nil
}
