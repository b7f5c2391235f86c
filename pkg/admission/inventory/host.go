package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Bounds of an inventory. Bounded cuts an inventory to these bounds. ParseHost cuts long texts, and
// rejects an inventory that exceeds any other bound.
const (
	maxHost      = 16 << 10 // bytes of JSON
	maxDisks     = 32
	maxNICs      = 16
	maxAddresses = 8 // of a link
	maxNeighbors = 4 // of a link
	maxText      = 64
	maxCPUs      = 1 << 16
	maxMiB       = 1 << 40
	maxSpeed     = 1 << 24 // Mbit/s
)

// Host is the hardware of a machine, as the machine describes it. A text or a number that the
// machine does not know is empty or 0.
type Host struct {
	Serial   string `json:"serial,omitempty"`   // SMBIOS type 1
	UUID     string `json:"uuid,omitempty"`     // SMBIOS type 1
	Vendor   string `json:"vendor,omitempty"`   // SMBIOS type 1
	Product  string `json:"product,omitempty"`  // SMBIOS type 1
	Firmware string `json:"firmware,omitempty"` // version, SMBIOS type 0
	// SecureBoot is the mode of Secure Boot: enabled, disabled, setup or unsupported.
	SecureBoot string `json:"secureBoot,omitempty"`
	// Controller is the address of the Redfish service in SMBIOS type 42, with its port if the port
	// is not 443. Often only the machine itself can reach this address, over an internal link to
	// its controller.
	Controller string `json:"controller,omitempty"`
	CPUModel   string `json:"cpuModel,omitempty"`
	CPUs       int    `json:"cpus,omitempty"` // online
	MemoryMiB  int64  `json:"memoryMiB,omitempty"`
	Disks      []Disk `json:"disks,omitempty"`
	NICs       []NIC  `json:"nics,omitempty"`
	Release    string `json:"release,omitempty"` // version of Orlop OS
	// Medium is the boot medium of a system that is not installed; empty for an installed system.
	Medium string `json:"medium,omitempty"`
}

// Disk is a disk.
type Disk struct {
	Name       string `json:"name"`
	SizeMiB    int64  `json:"sizeMiB,omitempty"`
	Model      string `json:"model,omitempty"`
	Serial     string `json:"serial,omitempty"`
	Rotational bool   `json:"rotational,omitempty"`
}

// NIC is a physical link.
type NIC struct {
	Name      string       `json:"name"`
	MAC       string       `json:"mac,omitempty"`
	Driver    string       `json:"driver,omitempty"`
	SpeedMbps int          `json:"speedMbps,omitempty"`
	Carrier   bool         `json:"carrier,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Neighbors []Neighbor   `json:"neighbors,omitempty"` // by LLDP
}

// Neighbor is a device that announces itself on a link by LLDP.
type Neighbor struct {
	System string `json:"system,omitempty"`
	Port   string `json:"port,omitempty"`
}

// ParseHost parses an inventory. It ignores unknown fields, because the machine can have a newer
// version. Texts of the result are printable ASCII.
func ParseHost(text []byte) (Host, error) {
	if len(text) > maxHost {
		return Host{}, fmt.Errorf("inventory: has %d bytes; at most %d are allowed", len(text), maxHost)
	}
	var h Host
	if err := json.Unmarshal(text, &h); err != nil {
		return Host{}, fmt.Errorf("inventory: cannot parse: %w", err)
	}
	if err := h.check(); err != nil {
		return Host{}, fmt.Errorf("inventory: %w", err)
	}
	return h.Bounded(), nil
}

// check returns an error for a number or a list out of range, and for a bad address.
func (h Host) check() error {
	switch {
	case h.CPUs < 0 || h.CPUs > maxCPUs:
		return errors.New("the number of processors is out of range")
	case h.MemoryMiB < 0 || h.MemoryMiB > maxMiB:
		return errors.New("the size of the memory is out of range")
	case len(h.Disks) > maxDisks:
		return fmt.Errorf("%d disks; at most %d are allowed", len(h.Disks), maxDisks)
	case len(h.NICs) > maxNICs:
		return fmt.Errorf("%d links; at most %d are allowed", len(h.NICs), maxNICs)
	}
	for _, d := range h.Disks {
		if d.SizeMiB < 0 || d.SizeMiB > maxMiB {
			return errors.New("the size of a disk is out of range")
		}
	}
	for _, n := range h.NICs {
		if _, err := net.ParseMAC(n.MAC); n.MAC != "" && err != nil {
			return errors.New("the MAC of a link is invalid")
		}
		if n.SpeedMbps < 0 || n.SpeedMbps > maxSpeed || len(n.Addresses) > maxAddresses || len(n.Neighbors) > maxNeighbors {
			return errors.New("the speed, the addresses or the neighbors of a link are out of range")
		}
		for _, a := range n.Addresses {
			if !a.IsValid() || a.Zone() != "" {
				return errors.New("an address of a link is invalid")
			}
		}
	}
	return nil
}

// Bounded returns the inventory with each list and each text cut to its bound. Numbers out of range
// become zero.
func (h Host) Bounded() Host {
	for _, text := range []*string{&h.Serial, &h.UUID, &h.Vendor, &h.Product, &h.Firmware, &h.SecureBoot, &h.Controller, &h.CPUModel, &h.Release, &h.Medium} {
		*text = sanitize.ASCII(*text, maxText)
	}
	h.CPUs, h.MemoryMiB = within(h.CPUs, maxCPUs), within(h.MemoryMiB, maxMiB)
	h.Disks = append([]Disk(nil), h.Disks[:min(len(h.Disks), maxDisks)]...)
	for i := range h.Disks {
		d := &h.Disks[i]
		d.Name, d.Model, d.Serial = sanitize.ASCII(d.Name, maxText), sanitize.ASCII(d.Model, maxText), sanitize.ASCII(d.Serial, maxText)
		d.SizeMiB = within(d.SizeMiB, maxMiB)
	}
	h.NICs = append([]NIC(nil), h.NICs[:min(len(h.NICs), maxNICs)]...)
	for i := range h.NICs {
		n := &h.NICs[i]
		n.Name, n.MAC, n.Driver = sanitize.ASCII(n.Name, maxText), sanitize.ASCII(n.MAC, maxText), sanitize.ASCII(n.Driver, maxText)
		n.SpeedMbps = within(n.SpeedMbps, maxSpeed)
		n.Addresses = append([]netip.Addr(nil), n.Addresses[:min(len(n.Addresses), maxAddresses)]...)
		n.Neighbors = append([]Neighbor(nil), n.Neighbors[:min(len(n.Neighbors), maxNeighbors)]...)
		for j := range n.Neighbors {
			n.Neighbors[j] = Neighbor{System: sanitize.ASCII(n.Neighbors[j].System, maxText), Port: sanitize.ASCII(n.Neighbors[j].Port, maxText)}
		}
	}
	return h
}

func within[N int | int64](n N, most int64) N {
	if n < 0 || int64(n) > most {
		return 0
	}
	return n
}
