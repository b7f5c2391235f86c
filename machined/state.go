package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/topic"
)

// stage is the current step of the boot: topic "stage".
type stage struct {
	// name of the step in boot.go, or "running", "not installed", "going down"
	Name       string    `json:"name"`
	WaitingFor string    `json:"waitingFor,omitempty"` // resource for which the step waits
	Since      time.Time `json:"since"`
}

// moment is the time at which a step or service was reached for the first time since power-on:
// topic "timeline".
type moment struct {
	Name    string  `json:"name"`    // step of the boot, or "service/component"
	Seconds float64 `json:"seconds"` // since the start of init, the first process
}

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
func (m *machine) observable() []topic.Topic {
	return []topic.Topic{
		// []credentials.State, with expiry
		topic.Polled("certificates", ignoreContext(certificates)),
		// []host.GroupUsage: control groups and their usage
		topic.Polled("cgroups", ignoreContext(m.kernel.ReadGroups)),
		topic.Polled("configuration", ignoreContext(m.configurationState)), // configurationState
		// disk.State: disks, partitions, file systems
		topic.Watched("disks", m.disks.State()),
		// []drift.State: differences from the configured state
		drift.New(drift.Deps{Domains: m.reconciler.DriftSources(), Epoch: m.reconciler.DriftEpoch}).Topic(),
		// []host.FilesystemState: usage of file systems
		topic.Polled("filesystems", ignoreContext(m.kernel.ReadUsage)),
		// install.State: progress of an installation
		topic.Watched("install", m.install.State()),
		// membership.State: membership of a worker in its cluster
		topic.Watched("membership", m.members.Worker.State),
		topic.Polled("memory", ignoreContext(m.kernel.ReadMemory)),   // host.Memory, bytes
		topic.Polled("modules", ignoreContext(m.kernel.ReadModules)), // []host.LoadedModule
		topic.Polled("mounts", ignoreContext(m.kernel.ReadMounts)),   // []host.MountState
		// network.State: links, addresses, routes, leases, resolver
		topic.Watched("network", m.networkState),
		// []debug.RuleTable: the nftables rules, as nft prints them
		topic.Polled("nftables", m.debug.RuleTables),
		topic.Polled("pci", ignoreContext(m.kernel.ReadPCI)), // []host.PCIDevice
		// []host.ProcessState, with memory
		topic.Polled("processes", ignoreContext(m.kernel.ReadProcesses)),
		// panicState: panics of the system's programs
		topic.Watched("panics", m.panicState),
		// []network.KernelRoute: all routes of the kernel, of any origin
		topic.Polled("routes", ignoreContext(network.KernelRoutes)),
		// []host.Sensor: temperatures, fans, voltages, power
		topic.Polled("sensors", ignoreContext(m.kernel.ReadSensors)),
		// []supervise.Status, with components
		topic.Watched("services", m.services.Status()),
		// []logship.State: receivers of logs
		topic.Polled("log-shipping", ignoreContext(m.logShipping.States)),
		// stage: step of the boot and the resource for which it waits
		topic.Watched("stage", m.stage),
		// []host.SysctlState: configured kernel parameters
		topic.Polled("sysctls", ignoreContext(m.sysctls)),
		// host.System: kernel, processors, uptime
		topic.Polled("system", ignoreContext(m.kernel.ReadSystem)),
		topic.Watched("time", m.timeState), // timesync.Status
		// []moment: time of each step and first readiness
		topic.Watched("timeline", m.timeline),
		// upgrade.State: the last upgrade and its progress
		topic.Watched("upgrade", m.upgrade.Controller.State()),
	}
}

func ignoreContext[T any](read func() (T, error)) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return read() }
}

func (m *machine) sysctls() ([]host.SysctlState, error) {
	now, _ := m.config.Get()
	return m.kernel.ReadSysctls(m.hostConfig(now.config))
}

func certificates() ([]credentials.State, error) { return credentials.List(credentials.Dirs()...) }

func (m *machine) configurationState() (configurationState, error) {
	now, _ := m.config.Get()
	if now.config == nil {
		return configurationState{Problem: now.problem, Staged: configs.Staged()}, nil
	}
	s := configurationState{Present: true, Source: now.source, Machine: now.config.Machine.Metadata.Name, Role: string(now.config.Machine.Spec.Role),
		Applied: now.applied, TrialDeadline: now.trial, Staged: configs.Staged()}
	if now.config.Cluster != nil {
		s.Cluster = now.config.Cluster.Metadata.Name
		if m.bootMedium == "" {
			var err error
			if s.WaitingFor, err = m.reconciler.WaitingServices(now.config); err != nil {
				s.WaitingFor = []string{err.Error()}
			}
		}
		for _, k := range now.config.Cluster.Spec.EncryptionKeys() {
			s.EncryptionKeys = append(s.EncryptionKeys, k.Name())
		}
	}
	return s, nil
}

// name returns the machine name; empty if it has no configuration.
func (m *machine) name() string {
	now, _ := m.config.Get()
	if now.config == nil {
		return ""
	}
	return now.config.Machine.Metadata.Name
}

// enter sets the current step of the boot.
func (m *machine) enter(name, waits string) {
	m.stage.Set(stage{Name: name, WaitingFor: waits, Since: time.Now()})
}

// mark records the first time at which a step or service is reached.
func (m *machine) mark(what string) {
	seconds := time.Since(m.started).Seconds()
	added := false
	m.timeline.Update(func(have []moment) []moment {
		for _, h := range have {
			if h.Name == what {
				return have
			}
		}
		added = true
		return append(have[:len(have):len(have)], moment{Name: what, Seconds: seconds})
	})
	if added {
		m.events.add("boot", "stage", fmt.Sprintf("%s after %.2f s", what, seconds))
	}
}

// watchServices marks the first readiness of each service and component in the timeline.
func (m *machine) watchServices(ctx context.Context) {
	for w := m.services.Status().Watch(); ; {
		list, _, err := w.Next(ctx)
		if err != nil {
			return
		}
		for _, s := range list {
			if s.State == supervise.Running {
				m.mark(s.Name)
			}
			for _, c := range s.Components {
				if c.Ready {
					m.mark(s.Name + "/" + c.Name)
				}
			}
		}
	}
}
