package config

import (
	"fmt"
	"strings"
)

// Install says which disk a machine that runs from memory (from a medium, or from the network)
// installs itself to. On a machine that runs from a disk it says nothing.
type Install struct {
	// Disk selects the disk: exactly one has to match everything that is given.
	Disk DiskSelector `yaml:"disk" jsonschema:"required"`
	// Wipe names the disk, by path, serial number or WWID, whose present content may be lost.
	// Without it a disk that holds anything is refused.
	Wipe string `yaml:"wipe,omitempty"`
}

// DiskSelector selects a disk by what is known of it. Texts are patterns: "*" is any text, "?" one
// character, [a-z] one of a set.
type DiskSelector struct {
	// Size is a smallest size, a largest, or both: ">= 100GiB", "<= 2TiB", ">= 100GiB, <= 2TiB".
	Size SizeRange `yaml:"size,omitempty"`
	// Model is what the disk calls itself.
	Model string `yaml:"model,omitempty"`
	// Serial is the disk's serial number.
	Serial string `yaml:"serial,omitempty"`
	// WWID is the disk's world wide identifier.
	WWID string `yaml:"wwid,omitempty"`
	// Bus is how the disk is connected: its transport (nvme, sata, sas, scsi, usb, virtio, mmc), or
	// the path of its controller in sysfs.
	Bus string `yaml:"bus,omitempty"`
	// Path is the kernel's name of the disk. It may change from one start to the next.
	Path string `yaml:"path,omitempty"`
	// Match is an expression (CEL) over the disk: disk.size, disk.sectorSize (bytes), disk.model,
	// disk.serial, disk.wwid, disk.bus, disk.transport, disk.path (texts), disk.rotational,
	// disk.readOnly; KiB, MiB, GiB and TiB are numbers.
	Match string `yaml:"match,omitempty"`
}

// SizeRange is a smallest size, a largest, or both. The zero value is any size.
type SizeRange struct {
	Min, Max Bytes // 0: no bound
}

const wantRange = `">= SIZE", "<= SIZE" or both with a comma between, such as ">= 100GiB, <= 2TiB"`

// UnmarshalText reads one or two bounds.
func (r *SizeRange) UnmarshalText(text []byte) error {
	var out SizeRange
	for part := range strings.SplitSeq(string(text), ",") {
		part = strings.TrimSpace(part)
		bound, number := &out.Min, strings.TrimPrefix(part, ">=")
		if number == part {
			bound, number = &out.Max, strings.TrimPrefix(part, "<=")
		}
		switch {
		case number == part:
			return &wrong{reason: fmt.Sprintf("%s is not a range of sizes", quote(string(text))), expected: wantRange, nearest: nearestRange(string(text))}
		case *bound != 0:
			return &wrong{reason: fmt.Sprintf("%s gives the same bound twice", quote(string(text))), expected: wantRange}
		}
		if err := bound.UnmarshalText([]byte(strings.TrimSpace(number))); err != nil {
			return err
		}
		if *bound == 0 {
			return &wrong{reason: fmt.Sprintf("%s is not a bound", quote(part)), expected: "a size above 0"}
		}
	}
	if out.Max != 0 && out.Min > out.Max {
		return &wrong{reason: fmt.Sprintf("no disk is %s", quote(string(text))), expected: wantRange}
	}
	*r = out
	return nil
}

// nearestRange guesses what somebody meant who left out the sign or wrote another one.
func nearestRange(text string) string {
	number := strings.TrimSpace(strings.TrimLeft(text, "><= "))
	var b Bytes
	if b.UnmarshalText([]byte(number)) != nil {
		return ""
	}
	if strings.HasPrefix(text, "<") {
		return "<= " + b.String()
	}
	return ">= " + b.String()
}

// String prints the bounds.
func (r SizeRange) String() string {
	var parts []string
	if r.Min != 0 {
		parts = append(parts, ">= "+r.Min.String())
	}
	if r.Max != 0 {
		parts = append(parts, "<= "+r.Max.String())
	}
	return strings.Join(parts, ", ")
}

// MarshalText is String.
func (r SizeRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MatchField is the path of the one field that Parse does not check as a whole: judging an
// expression takes a compiler that is not linked here.
const MatchField = "Machine.spec.install.disk.match"

// install checks what has a form.
func (p *parser) install(path string, i *Install) {
	for _, f := range []struct{ name, pattern string }{
		{".disk.model", i.Disk.Model}, {".disk.serial", i.Disk.Serial}, {".disk.wwid", i.Disk.WWID}, {".disk.bus", i.Disk.Bus}, {".disk.path", i.Disk.Path},
	} {
		if strings.Count(f.pattern, "[") != strings.Count(f.pattern, "]") {
			p.on(path+f.name, wrong{reason: quote(f.pattern) + " is not a pattern", expected: "as many ] as ["})
		}
	}
	if d := i.Disk.Path; d != "" && !strings.HasPrefix(d, "/dev/") && !strings.ContainsAny(d[:1], "*?[") {
		p.on(path+".disk.path", wrong{reason: quote(d) + " is not the name of a disk", expected: "a path below /dev, such as /dev/nvme0n1", nearest: "/dev/" + d})
	}
	if strings.ContainsAny(i.Wipe, "*?[") {
		p.on(path+".wipe", wrong{reason: quote(i.Wipe) + " is a pattern", expected: "the path, the serial number or the WWID of one disk"})
	}
}
