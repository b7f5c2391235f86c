package main

import (
	"context"
	"time"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
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
	// the key manager of Secrets; absent without one
	KMS *kmsState `json:"kms,omitempty"`
	// why it is unknown whether a configuration is staged: STATE does not answer
	StagedUnknown string `json:"stagedUnknown,omitempty"`
	// services that do not run with this configuration yet, or why they are unknown
	WaitingFor []string `json:"waitingFor,omitempty"`
	// when the previous configuration becomes active again unless a client confirms the present
	// one; zero if it is not on trial
	TrialDeadline time.Time `json:"trialDeadline,omitzero"`
}

// kmsState describes the key manager of Secrets. If it does not encrypt, the first encryption key
// does.
type kmsState struct {
	Name     string `json:"name"` // of the key
	Encrypts bool   `json:"encrypts"`
}

// observable lists all topics of the machine's state, one line per topic. The API sends the JSON
// form of the named type.
func observable(m *machine) []machinedapi.Topic {
	return []machinedapi.Topic{
		// []credentials.State, with expiry
		machinedapi.PolledTopic("certificates", ignoreContext(certificates)),
		// []host.GroupUsage: control groups and their usage
		machinedapi.PolledTopic("cgroups", ignoreContext(m.system.kernel.ReadGroups)),
		// configurationState
		machinedapi.PolledTopic("configuration", func(ctx context.Context) (configurationState, error) { return readConfiguration(ctx, m) }),
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
		machinedapi.PolledTopic("secure-boot", ignoreContext(readSecureBoot)),
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

// readConfiguration returns the state of the configuration. The parts on STATE have a deadline.
func readConfiguration(ctx context.Context, m *machine) (configurationState, error) {
	now := m.config.active.Current()
	s := configurationState{Problem: now.Problem}
	var err error
	if s.Staged, err = m.config.active.Staged(ctx); err != nil {
		s.StagedUnknown = err.Error()
	}
	if now.Config == nil {
		return s, nil
	}
	s.Present, s.Source, s.Machine, s.Role = true, now.Source, now.Config.Machine.Metadata.Name, string(now.Config.Machine.Spec.Role)
	s.Applied, s.TrialDeadline, s.Problem = now.At, now.TrialEnd, ""
	if now.Config.Cluster == nil {
		return s, nil
	}
	s.Cluster = now.Config.Cluster.Metadata.Name
	if !m.system.inMemory() {
		// a client that waits for an empty list waits as long as the list is unknown
		if s.WaitingFor, err = m.config.reconciler.WaitingServices(ctx, now.Config); err != nil {
			s.WaitingFor = []string{err.Error()}
		}
	}
	for _, k := range now.Config.Cluster.Spec.EncryptionKeys() {
		s.EncryptionKeys = append(s.EncryptionKeys, k.Name())
	}
	if kms := now.Config.Cluster.Spec.Kubernetes.APIServer.KMS; kms != nil {
		s.KMS = &kmsState{Name: kms.Name(), Encrypts: kms.Encrypt}
	}
	return s, nil
}
