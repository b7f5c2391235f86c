package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sensor is a measurement of the hardware (Documentation/hwmon/sysfs-interface).
type Sensor struct {
	// name of the driver ("coretemp", "nvme"), or type of the thermal zone
	Chip   string `json:"chip"`
	Device string `json:"device,omitempty"` // measured device: "coretemp.0", "nvme0"
	// label of the measurement ("Package id 0"), or else the kernel's name ("temp1")
	Name string `json:"name"`
	Kind string `json:"kind"` // temperature, fan, voltage, current, power, humidity
	// Value is in Unit: °C, rpm, V, A, W, %.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// upper limit of the normal range, in the same unit; 0: the chip does not report it
	Max      float64 `json:"max,omitempty"`
	Critical float64 `json:"critical,omitempty"` // critical limit, in the same unit; 0: none
	Problem  string  `json:"problem,omitempty"`  // the reason why there is no value
}

// quantities are the measurements of hwmon, by the prefix of the file names. The value in the file
// divided by scale is the value in unit. For example, a temperature file has thousandths of a
// degree.
var quantities = []struct {
	prefix, kind, unit string
	scale              float64
}{
	{"temp", "temperature", "°C", 1e3}, {"fan", "fan", "rpm", 1}, {"in", "voltage", "V", 1e3}, {"curr", "current", "A", 1e3},
	{"power", "power", "W", 1e6}, {"humidity", "humidity", "%", 1e3},
}

// ReadSensors reads all chips of /sys/class/hwmon, and, if no chip measures a temperature, the
// thermal zones of the firmware. A machine without sensors has an empty list.
func (k *Kernel) ReadSensors() ([]Sensor, error) {
	list := []Sensor{}
	chips, err := names(filepath.Join(k.sys, "class/hwmon"))
	if err != nil {
		return nil, fmt.Errorf("sensors: cannot list: %w", err)
	}
	for _, chip := range chips {
		list = append(list, readChip(filepath.Join(k.sys, "class/hwmon", chip))...)
	}
	if slices.ContainsFunc(list, func(s Sensor) bool { return s.Kind == "temperature" }) {
		return list, nil
	}
	zones, err := names(filepath.Join(k.sys, "class/thermal"))
	if err != nil {
		return nil, fmt.Errorf("sensors: cannot list: %w", err)
	}
	for _, zone := range zones {
		dir := filepath.Join(k.sys, "class/thermal", zone)
		if !strings.HasPrefix(zone, "thermal_zone") { // a fan or another cooling device
			continue
		}
		s := Sensor{Chip: word(dir, "type"), Name: zone, Kind: "temperature", Unit: "°C"}
		s.measure(filepath.Join(dir, "temp"), 1e3)
		list = append(list, s)
	}
	return list, nil
}

// readChip reads all inputs of a chip, in the order of their kinds and numbers.
func readChip(dir string) []Sensor {
	type input struct {
		kind, number int
		prefix, file string // "temp1", "temp1_input"
	}
	files, err := names(dir)
	if err != nil {
		return nil // the chip has been removed in the meantime
	}
	var inputs []input
	for _, file := range files {
		prefix, what, _ := strings.Cut(file, "_")
		for kind, q := range quantities {
			number, ours := strings.CutPrefix(prefix, q.prefix)
			n, err := strconv.Atoi(number)
			// A power meter without an instantaneous value (power1_input) can have a mean
			// (power1_average).
			if ours && err == nil && (what == "input" || what == "average" && q.kind == "power" && !slices.Contains(files, prefix+"_input")) {
				inputs = append(inputs, input{kind, n, prefix, file})
			}
		}
	}
	slices.SortFunc(inputs, func(a, b input) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.number, b.number)) })
	device := linked(dir, "device")
	var list []Sensor
	for _, i := range inputs {
		q := quantities[i.kind]
		s := Sensor{Chip: word(dir, "name"), Device: device, Name: cmp.Or(word(dir, i.prefix+"_label"), i.prefix), Kind: q.kind, Unit: q.unit}
		if word(dir, i.prefix+"_fault") == "1" {
			s.Problem = "the chip reports a fault"
		} else {
			s.measure(filepath.Join(dir, i.file), q.scale)
		}
		s.Max, s.Critical = number(dir, i.prefix+"_max")/q.scale, number(dir, i.prefix+"_crit")/q.scale
		list = append(list, s)
	}
	return list
}

// measure reads the value of the sensor from a file with a number.
func (s *Sensor) measure(file string, scale float64) {
	text, err := attribute(file)
	if err == nil {
		s.Value, err = strconv.ParseFloat(text, 64)
		s.Value /= scale
	}
	if err != nil {
		// for example "resource temporarily unavailable", without the path of the file
		s.Problem = err.Error()
	}
}

// PCIDevice is a device on the PCI bus, as the kernel reports it
// (Documentation/ABI/testing/sysfs-bus-pci).
type PCIDevice struct {
	Address string `json:"address"` // "0000:00:03.0"
	// base class: "network", "storage"; empty if pciKinds has no name for it
	Kind   string `json:"kind"`
	Class  string `json:"class"`  // hexadecimal, as are the following: "020000"
	Vendor string `json:"vendor"` // "8086"
	Device string `json:"device"`
	// Subsystem is the vendor and model of the card: "1af4:0001".
	Subsystem string `json:"subsystem,omitempty"`
	Driver    string `json:"driver,omitempty"` // empty: no driver is bound
	// NUMANode is -1 if the firmware does not report it.
	NUMANode   int    `json:"numaNode"`
	IOMMUGroup string `json:"iommuGroup,omitempty"`
}

// pciKinds are the base classes of the PCI Code and ID Assignment Specification, by the first byte
// of the class.
var pciKinds = map[string]string{
	"01": "storage", "02": "network", "03": "display", "04": "multimedia", "05": "memory", "06": "bridge", "07": "communication", "08": "system",
	"09": "input", "0a": "docking", "0b": "processor", "0c": "serial bus", "0d": "wireless", "0e": "intelligent controller", "0f": "satellite",
	"10": "encryption", "11": "signal processing", "12": "accelerator", "13": "instrumentation", "40": "coprocessor",
}

// ReadPCI lists the devices on the PCI bus by their address. A machine without a PCI bus has an
// empty list.
func (k *Kernel) ReadPCI() ([]PCIDevice, error) {
	list := []PCIDevice{}
	addresses, err := names(filepath.Join(k.sys, "bus/pci/devices"))
	if err != nil {
		return nil, fmt.Errorf("pci: cannot list: %w", err)
	}
	for _, address := range addresses {
		dir := filepath.Join(k.sys, "bus/pci/devices", address)
		hex := func(file string) string { return strings.TrimPrefix(word(dir, file), "0x") }
		d := PCIDevice{Address: address, Class: hex("class"), Vendor: hex("vendor"), Device: hex("device"), Driver: linked(dir, "driver"),
			NUMANode: -1, IOMMUGroup: linked(dir, "iommu_group")}
		d.Kind = pciKinds[d.Class[:min(2, len(d.Class))]]
		if maker := hex("subsystem_vendor"); maker != "" && maker != "0000" {
			d.Subsystem = maker + ":" + hex("subsystem_device")
		}
		if node, err := strconv.Atoi(word(dir, "numa_node")); err == nil {
			d.NUMANode = node
		}
		list = append(list, d)
	}
	return list, nil
}

// names lists the entries of a directory; a missing directory is empty.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list := make([]string, len(entries))
	for i, e := range entries {
		list[i] = e.Name()
	}
	return list, nil
}

// word returns the content of a file with a single line; empty if the file is unreadable.
func word(dir, file string) string {
	text, err := attribute(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return text
}

// attribute reads a file of sysfs, which a single call reads as a whole. The error contains no
// path. EAGAIN, which some drivers return if they have no value, is returned as an error: package
// os would wait for a value, and some of these drivers never report that they have a value.
func attribute(file string) (string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	text := make([]byte, os.Getpagesize()) // the maximum size of an attribute
	n, err := unix.Read(fd, text)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text[:n])), nil
}

// number returns the number in a file; 0 without a number.
func number(dir, file string) float64 {
	n, err := strconv.ParseFloat(word(dir, file), 64)
	if err != nil {
		return 0
	}
	return n
}

// linked returns the base name of a link's target; empty without a link.
func linked(dir, file string) string {
	target, err := os.Readlink(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}
