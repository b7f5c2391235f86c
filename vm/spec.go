package vm

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"time"
)

// The firmware without Secure Boot and its initial variables, in Debian's package ovmf.
const (
	defaultCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	defaultVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
	// secureCode is the firmware with Secure Boot. With defaultVars it is in setup mode: it starts
	// every image, and a boot loader can enroll keys.
	secureCode = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
)

// MachineSpec describes a machine. Name and Dir are required, all other fields have defaults.
type MachineSpec struct {
	// Name is the machine's name on the switch and in DNS, and its host name in DHCP. It is a DNS
	// label.
	Name string `json:"name"`
	// Dir is the machine's directory. Start creates a missing directory, and uses existing disks
	// and firmware variables unchanged. So a machine that is started again from its directory is
	// the same machine.
	Dir string `json:"dir,omitempty"`

	// MemoryMiB defaults to 2048, CPUs to 2.
	MemoryMiB int `json:"memoryMiB,omitempty"`
	CPUs      int `json:"cpus,omitempty"`
	// Disks are the disks in the order in which the machine sees them. Without Firmware.Boot, the
	// firmware tries to boot from them in this order.
	Disks []Disk `json:"disks,omitempty"`
	NIC   NIC    `json:"nic,omitzero"`

	Firmware Firmware `json:"firmware,omitzero"`
	// If Kernel is set, QEMU boots it directly, without the firmware and the boot loader.
	Kernel Kernel `json:"kernel,omitzero"`

	// Watchdog adds an i6300esb watchdog that resets the machine.
	Watchdog bool `json:"watchdog,omitempty"`
	// TPM adds a TPM 2.0. Its state is in the machine's directory.
	TPM bool `json:"tpm,omitempty"`
	// Graphics adds a VGA adapter (for QEMU's screendump).
	Graphics bool `json:"graphics,omitempty"`
	// RTC is the time of the hardware clock at power-on. The zero value is the time of the host.
	RTC time.Time `json:"rtc,omitzero"`
	// Identity is the machine's identity in SMBIOS type 1.
	Identity Identity `json:"identity,omitzero"`
	// Channels are the names of virtio-serial ports. The guest opens the port NAME at
	// /dev/virtio-ports/NAME, and Machine.Channel returns the host's end.
	Channels []string `json:"channels,omitempty"`

	QEMU QEMU `json:"qemu,omitzero"`
}

// NIC describes the network interfaces of a machine. The zero value is a machine without a NIC.
type NIC struct {
	// Network is the network of the NICs; nil: no NIC.
	Network *Network `json:"-"`
	// Omit leaves the machine without a NIC even if Network is set. The machine then uses only the
	// clock of the network.
	Omit bool `json:"omit,omitempty"`
	// Addr is the machine's IPv4 address; default: the next free address.
	Addr netip.Addr `json:"addr,omitzero"`
	// More is the number of additional NICs on the same network, at most 7. Each additional NIC
	// gets its address by DHCP, and NICName returns its name.
	More int `json:"more,omitempty"`
}

// Firmware describes the UEFI firmware of a machine.
type Firmware struct {
	// Code is the file with the firmware, Vars the file with its initial variables. The defaults
	// are Debian's OVMF.
	Code string `json:"code,omitempty"`
	Vars string `json:"vars,omitempty"`
	// SecureBoot makes OVMF with Secure Boot the default of Code, and gives the machine System
	// Management Mode, because this firmware writes its variables only in that mode. With the
	// default of Vars, a new machine is in setup mode. For a start with enrolled keys, Vars is the
	// variables file (VarsPath) of a machine that has these keys.
	SecureBoot bool `json:"secureBoot,omitempty"`
	// Boot is the boot order: names of disks, BootPXE and BootHTTP. The default is all disks in
	// their order.
	Boot []string `json:"boot,omitempty"`
}

// Kernel describes a kernel that QEMU boots directly.
type Kernel struct {
	Image  string `json:"image,omitempty"` // empty: the firmware boots
	Initrd string `json:"initrd,omitempty"`
	// Append is the command line.
	Append string `json:"append,omitempty"`
}

// Identity is a machine's identity in SMBIOS.
type Identity struct {
	UUID   string `json:"uuid,omitempty"`
	Serial string `json:"serial,omitempty"`
}

// QEMU describes the emulator of a machine.
type QEMU struct {
	// Command is the program, default qemu-system-x86_64. Args are appended to its arguments.
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	// NoReboot makes QEMU end instead of resetting the machine.
	NoReboot bool `json:"noReboot,omitempty"`
	// TranslationMiB is the size in MiB of TCG's cache of translated code, default 512.
	TranslationMiB int `json:"translationMiB,omitempty"`
}

// The names in Firmware.Boot for a boot from the network: the firmware loads the boot image of
// Network.ServeBoot.
const (
	BootPXE  = "pxe"  // by PXE: DHCP, then TFTP
	BootHTTP = "http" // by UEFI HTTP boot
)

// Bus is the bus of a disk. Its value is the name of QEMU's device for a disk on this bus.
type Bus string

// The kinds of disks.
const (
	BusVirtio Bus = "virtio-blk-pci" // the default
	BusNVMe   Bus = "nvme"
	BusSATA   Bus = "ide-hd"
	BusUSB    Bus = "usb-storage"
	// BusCD is a CD drive. The machine reads the file Disk.Image directly, without a copy, and
	// cannot write to it. Without an Image, the drive is empty.
	BusCD Bus = "ide-cd"
)

// Disk is a disk of a machine. Its file is NAME.raw in the machine's directory; the file of a CD is
// Image.
type Disk struct {
	// Name is NAME in the file name, and the disk's serial number in the guest; default "disk0",
	// "disk1", …
	Name string `json:"name,omitempty"`
	// Image is the raw image from which a new disk is copied; empty: a new disk is blank.
	Image string `json:"image,omitempty"`
	// SizeMiB is the size of a new disk, default 8192. A disk is never smaller than its image.
	SizeMiB int64 `json:"sizeMiB,omitempty"`
	// ReadOnly protects the disk from writes of the machine. For example, it is set for a medium
	// with a configuration.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Record makes QEMU record all writes and flushes of the machine, in order. The record is the
	// file NAME.log in the machine's directory, for package writelog. Each power-on starts a new
	// record. The disk must be on BusVirtio.
	Record bool `json:"record,omitempty"`
	// Forget discards the writes of the machine when QEMU ends, so the disk has the same content at
	// each power-on.
	Forget bool `json:"forget,omitempty"`
	// Bus is the bus of the disk, default BusVirtio.
	Bus Bus `json:"bus,omitempty"`
}

// BootDisk returns a list of a single disk, "disk0", with a size of sizeMiB (0: 8 GiB). The disk is
// a copy of image, or blank if image is empty.
func BootDisk(image string, sizeMiB int64) []Disk {
	return []Disk{{Name: "disk0", Image: image, SizeMiB: sizeMiB}}
}

// dnsLabel matches a label of RFC 1123, section 2.1.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// withDefaults returns s with its defaults. It fails if s is invalid, or if a file of its kernel or
// firmware does not exist.
func (s MachineSpec) withDefaults() (MachineSpec, error) {
	if !dnsLabel.MatchString(s.Name) || s.Name == GatewayName {
		return s, fmt.Errorf("machine %q: the name is not a free DNS label (a-z, 0-9, -, at most 63)", s.Name)
	}
	if s.Dir == "" {
		return s, fmt.Errorf("machine %s: Dir is empty: it needs a directory", s.Name)
	}
	set := func(at *string, value string) {
		if *at == "" {
			*at = value
		}
	}
	set(&s.QEMU.Command, "qemu-system-x86_64")
	s.Firmware = s.Firmware.withDefaults()
	number := func(at *int, value int) {
		if *at == 0 {
			*at = value
		}
	}
	number(&s.MemoryMiB, 2048)
	number(&s.CPUs, 2)
	number(&s.QEMU.TranslationMiB, 512)
	if s.MemoryMiB < 32 || s.CPUs < 1 || s.QEMU.TranslationMiB < 1 || s.NIC.More < 0 || s.NIC.More > 7 {
		return s, fmt.Errorf("machine %s: memory of %d MiB with %d CPUs is not enough for any kernel, or %d additional NICs are not 0 to 7", s.Name, s.MemoryMiB, s.CPUs, s.NIC.More)
	}
	disks := make([]Disk, len(s.Disks))
	seen := map[string]bool{}
	for i, d := range s.Disks {
		set(&d.Name, fmt.Sprintf("disk%d", i))
		if d.SizeMiB == 0 {
			d.SizeMiB = 8192
		}
		switch d.Bus {
		case "":
			d.Bus = BusVirtio
		case BusCD:
			d.ReadOnly = true
		case BusVirtio, BusNVMe, BusSATA, BusUSB:
		default:
			return s, fmt.Errorf("machine %s: disk %s: there is no bus %q", s.Name, d.Name, d.Bus)
		}
		if !dnsLabel.MatchString(d.Name) || len(d.Name) > 20 || seen[d.Name] {
			return s, fmt.Errorf("machine %s: disk name %q is taken or not of a-z, 0-9, - (at most 20)", s.Name, d.Name)
		}
		if d.ReadOnly && (d.Record || d.Forget) || d.Record && d.Forget {
			return s, fmt.Errorf("machine %s: disk %s can be one of read only, recorded and forgetful", s.Name, d.Name)
		}
		if d.Record && d.Bus != BusVirtio {
			return s, fmt.Errorf("machine %s: disk %s is on bus %s, and can be recorded on %s only", s.Name, d.Name, d.Bus, BusVirtio)
		}
		seen[d.Name], disks[i] = true, d
	}
	s.Disks = disks
	if s.Firmware.Boot == nil {
		for _, d := range disks {
			s.Firmware.Boot = append(s.Firmware.Boot, d.Name)
		}
	}
	seen[BootPXE], seen[BootHTTP] = s.hasNIC(), s.hasNIC()
	for _, b := range s.Firmware.Boot {
		if !seen[b] {
			return s, fmt.Errorf("machine %s: cannot boot from %q: it has no such device", s.Name, b)
		}
	}
	if s.Kernel.Image == "" && (s.Kernel.Initrd != "" || s.Kernel.Append != "") {
		return s, fmt.Errorf("machine %s: Initrd and Append need Kernel", s.Name)
	}
	return s, s.checkFiles()
}

// withDefaults returns f with the default files.
func (f Firmware) withDefaults() Firmware {
	code := defaultCode
	if f.SecureBoot {
		code = secureCode
	}
	f.Code, f.Vars = cmp.Or(f.Code, code), cmp.Or(f.Vars, defaultVars)
	return f
}

// checkFiles returns an error if a file of the kernel or of the firmware does not exist.
func (s MachineSpec) checkFiles() error {
	files := []string{s.Kernel.Image, s.Kernel.Initrd}
	if s.Kernel.Image == "" {
		files = append(files, s.Firmware.Code, s.Firmware.Vars)
	}
	for _, path := range files {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("machine %s: %w (the firmware is in Debian's package ovmf)", s.Name, err)
		} else if err != nil {
			return fmt.Errorf("machine %s: %w", s.Name, err)
		}
	}
	return nil
}
