package vm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/vm/redfish"
)

// setup is the setting of the management controller for the next power-on of a machine.
type setup struct {
	override redfish.Override
	// medium is the file in the first CD drive; "": the drive is empty; nil: the drive holds the
	// image of the specification.
	medium *string
}

// The method with returns a copy of the specification, changed by the setup of a power-on.
func (s MachineSpec) with(set setup) MachineSpec {
	if i := slices.IndexFunc(s.Disks, isCD); set.medium != nil && i >= 0 {
		s.Disks = slices.Clone(s.Disks)
		s.Disks[i].Image = *set.medium
	}
	if !set.override.Enabled() {
		return s
	}
	device := s.bootDevice(set.override.Target)
	rest := slices.DeleteFunc(slices.Clone(s.Firmware.Boot), func(name string) bool { return name == device })
	s.Firmware.Boot = append([]string{device}, rest...)
	if set.override.Once {
		// QEMU passes the boot order to the firmware only when QEMU starts. So the first reset of
		// the machine has to end QEMU, and Machine.continueAfter starts QEMU again with the usual
		// order.
		s.QEMU.NoReboot = true
	}
	return s
}

// first returns the first disk for which kind returns true; the zero value if there is none.
func (s MachineSpec) first(kind func(Disk) bool) Disk {
	if i := slices.IndexFunc(s.Disks, kind); i >= 0 {
		return s.Disks[i]
	}
	return Disk{}
}

// bootDevice returns the name of a target in Firmware.Boot; empty if the machine does not have the
// device.
func (s MachineSpec) bootDevice(target redfish.Target) string {
	switch {
	case target == redfish.Pxe && s.hasNIC():
		return BootPXE
	case target == redfish.UefiHTTP && s.hasNIC():
		return BootHTTP
	case target == redfish.Cd:
		return s.first(isCD).Name
	case target == redfish.Hdd:
		return s.first(isHardDisk).Name
	}
	return ""
}

// continueAfter waits for the end of p, a power-on with an override for a single boot. If a reset
// of the machine has ended QEMU, it switches the machine on again.
func (m *Machine) continueAfter(p *power) {
	<-p.ended
	if p.exit.Request != "" || !strings.HasSuffix(p.exit.Reason, "-reset") {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), controlLimit)
	defer cancel()
	if m.current() != p {
		return // another call has already switched the machine on
	}
	if err := m.PowerOn(ctx); err != nil {
		fmt.Fprintf(m.console, "\nvm: after a boot from another device: %v\n", err)
	}
}

// Hardware returns the properties that a management controller shows.
func (m *Machine) Hardware() redfish.Hardware {
	h := redfish.Hardware{Serial: m.spec.Identity.Serial, UUID: strings.ToLower(m.spec.Identity.UUID),
		MemoryMiB: m.spec.MemoryMiB, CPUs: m.spec.CPUs, Drive: m.spec.first(isCD).Name != ""}
	for _, target := range []redfish.Target{redfish.Pxe, redfish.UefiHTTP, redfish.Cd, redfish.Hdd} {
		if m.spec.bootDevice(target) != "" {
			h.Targets = append(h.Targets, target)
		}
	}
	return h
}

// Override returns the override of the next boots.
func (m *Machine) Override() redfish.Override {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.setup.override
}

// SetOverride sets the override of the next boots, from the next power-on. A target that the
// machine does not have disables the override.
func (m *Machine) SetOverride(o redfish.Override) {
	if m.spec.bootDevice(o.Target) == "" {
		o = redfish.Override{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setup.override = o
}

// Restart resets a running machine. If an override is set, Restart cuts the power and switches the
// machine on again, because the override takes effect only at a power-on.
func (m *Machine) Restart(ctx context.Context) error {
	if !m.Override().Enabled() {
		return m.Reset(ctx)
	}
	m.PowerCut()
	return m.PowerOn(ctx)
}

// Medium returns the file in the first CD drive; empty without a medium or a drive.
func (m *Machine) Medium() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spec.with(m.setup).first(isCD).Image
}

// InsertMedium puts a file into the first CD drive. It fails if the machine has no CD drive.
func (m *Machine) InsertMedium(ctx context.Context, file string) error {
	return m.changeMedium(ctx, file, "insert "+file, "blockdev-change-medium",
		map[string]any{"filename": file, "format": "raw", "read-only-mode": "read-only", "force": true})
}

// EjectMedium empties the first CD drive. It fails if the machine has no CD drive.
func (m *Machine) EjectMedium(ctx context.Context) error {
	return m.changeMedium(ctx, "", "eject the medium", "eject", map[string]any{"force": true})
}

// changeMedium changes the medium for the next power-ons. If the machine is running, it also
// changes the present medium, by a command of QEMU's monitor. what describes the change in errors.
func (m *Machine) changeMedium(ctx context.Context, file, what, command string, arguments map[string]any) error {
	drive := m.spec.first(isCD).Name
	if drive == "" {
		return fmt.Errorf("machine %s: cannot %s: it has no CD drive", m.spec.Name, what)
	}
	if m.Running() {
		arguments["id"] = driveID(drive)
		if err := m.monitor(ctx, what, command, arguments); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setup.medium = &file
	return nil
}
