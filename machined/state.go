package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// stage is where the boot stands: topic "stage".
type stage struct {
	// of the step in boot.go, or "running", "not installed", "going down"
	Name  string    `json:"name"`
	Waits string    `json:"waits,omitempty"` // what it waits for
	Since time.Time `json:"since"`
}

// moment is when something was reached for the first time since power-on: topic "timeline".
type moment struct {
	What    string  `json:"what"`    // a step of the boot, or "service/component"
	Seconds float64 `json:"seconds"` // since init, the first program in userspace, began
}

// diskState is what the machine knows of its disks: topic "disks".
type diskState struct {
	Disks   []disk.Disk `json:"disks"`
	Problem string      `json:"problem,omitempty"` // why there is nothing to keep anything on
	// Filesystems are those of STATE and DATA that have something to say: errors now, or before the
	// check at this start.
	Filesystems []disk.FilesystemErrors `json:"filesystems,omitempty"`
}

// configurationState is what there is to say about the configuration: topic "configuration". Its
// text is in Config.Get.
type configurationState struct {
	Present bool      `json:"present"`
	Machine string    `json:"machine,omitempty"` // the machine's name
	Role    string    `json:"role,omitempty"`
	Cluster string    `json:"cluster,omitempty"`
	Applied time.Time `json:"applied,omitzero"`
	Source  string    `json:"source,omitempty"` // STATE, image, API or medium, with who or where
	// what is wrong with one that lies there and cannot be used
	Problem string `json:"problem,omitempty"`
	// when another one was put by for the next start; zero: none
	Staged time.Time `json:"staged,omitzero"`
	// the names of the keys of Secrets, on a control plane: the first seals
	Sealing []string `json:"sealing,omitempty"`
	Waits   []string `json:"waits,omitempty"` // services that do not run with it yet
	// when the one before comes back unless this one is confirmed; zero: it is here to stay
	Trial time.Time `json:"trial,omitzero"`
}

// observable is every topic of the machine's state, one line each. The JSON form of the named type
// is what the API sends.
func (m *machine) observable() []topic {
	return []topic{
		// []credentials.State, with when they expire
		looked("certificates", ignoreContext(certificates)),
		// []host.GroupUsage: control groups, and what each uses
		looked("cgroups", ignoreContext(m.kernel.ReadGroups)),
		looked("configuration", ignoreContext(m.configurationState)), // configurationState
		// diskState: disks, partitions, file systems
		watched("disks", m.disks),
		// []driftState: what is not as it was configured
		m.newDrift().topic(),
		// []host.FilesystemState: how full each is
		looked("filesystems", ignoreContext(m.kernel.ReadUsage)),
		// installState: how far an installation is
		watched("install", m.installation),
		// membershipState: whether a worker is one of its cluster
		watched("membership", m.membership),
		looked("memory", ignoreContext(m.kernel.ReadMemory)),   // host.Memory, bytes
		looked("modules", ignoreContext(m.kernel.ReadModules)), // []host.LoadedModule
		looked("mounts", ignoreContext(m.kernel.ReadMounts)),   // []host.MountState
		// network.State: links, addresses, routes, leases, resolver
		watched("network", m.networkState),
		// []ruleTable: the kernel's packet rules, as nft writes them
		looked("nftables", m.ruleTables),
		looked("pci", ignoreContext(m.kernel.ReadPCI)), // []host.PCIDevice
		// []host.ProcessState, with their memory
		looked("processes", ignoreContext(m.kernel.ReadProcesses)),
		// programState: what of the program itself has failed
		watched("program", m.program),
		// []network.KernelRoute: all the kernel has, whoever made them
		looked("routes", ignoreContext(network.KernelRoutes)),
		// []host.Sensor: temperatures, fans, voltages, power
		looked("sensors", ignoreContext(m.kernel.ReadSensors)),
		// []supervise.Status, with their components
		watched("services", m.services.Status()),
		// []ship.State: the receivers of logs
		looked("shipping", ignoreContext(m.shipping.states)),
		// stage: where the boot stands and what it waits for
		watched("stage", m.stage),
		// []host.SysctlState: the kernel parameters that are set
		looked("sysctls", ignoreContext(m.sysctls)),
		// host.System: kernel, processors, uptime
		looked("system", ignoreContext(m.kernel.ReadSystem)),
		watched("time", m.timeState), // timesync.Status
		// []moment: what was reached when
		watched("timeline", m.timeline),
		// upgradeState: the last upgrade, and how far it is
		watched("upgrade", m.upgrade),
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
		Applied: now.applied, Trial: now.trial, Staged: configs.Staged()}
	if now.config.Cluster != nil {
		s.Cluster = now.config.Cluster.Metadata.Name
		if m.medium == "" {
			var err error
			if s.Waits, err = m.notYet(now.config); err != nil {
				s.Waits = []string{err.Error()}
			}
		}
		for _, k := range now.config.Cluster.Spec.EncryptionKeys() {
			s.Sealing = append(s.Sealing, k.Name())
		}
	}
	return s, nil
}

// name is the machine's name; empty before it has one.
func (m *machine) name() string {
	now, _ := m.config.Get()
	if now.config == nil {
		return ""
	}
	return now.config.Machine.Metadata.Name
}

// enter says that the boot has come to a step.
func (m *machine) enter(name, waits string) {
	m.stage.Set(stage{Name: name, Waits: waits, Since: time.Now()})
}

// mark notes that something was reached; only the first time counts.
func (m *machine) mark(what string) {
	seconds := time.Since(m.started).Seconds()
	added := false
	m.timeline.Update(func(have []moment) []moment {
		for _, h := range have {
			if h.What == what {
				return have
			}
		}
		added = true
		return append(have[:len(have):len(have)], moment{What: what, Seconds: seconds})
	})
	if added {
		m.events.add("boot", "stage", fmt.Sprintf("%s after %.2f s", what, seconds))
	}
}

// watchServices marks the first readiness of each service and component, for the timeline.
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
