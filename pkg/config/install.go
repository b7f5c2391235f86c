package config

import (
	"fmt"
	"strings"
)

// Install selects the disk for the installation of a machine that runs from memory (from a boot
// medium, or from the network). It has no effect on an installed machine.
type Install struct {
	Disk DiskSelector `yaml:"disk" jsonschema:"required"`
	Wipe string       `yaml:"wipe,omitempty"`
}

// DiskSelector selects a disk by its properties. Model, Serial, WWID, Bus and Path are patterns:
// "*" matches any text, "?" any character, [a-z] a character of a set.
type DiskSelector struct {
	Size   SizeRange `yaml:"size,omitempty"`
	Model  string    `yaml:"model,omitempty"`
	Serial string    `yaml:"serial,omitempty"`
	WWID   string    `yaml:"wwid,omitempty"`
	Bus    string    `yaml:"bus,omitempty"`
	Path   string    `yaml:"path,omitempty"`
	Match  string    `yaml:"match,omitempty"`
}

// SizeRange is a minimum size, a maximum size, or both. The zero value permits any size.
type SizeRange struct {
	Min, Max Bytes // 0: no limit
}

const wantRange = `">= SIZE", "<= SIZE" or both separated by a comma, such as ">= 100GiB, <= 2TiB"`

// UnmarshalText parses one or two limits.
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
			return &wrong{reason: fmt.Sprintf("%s contains the same limit twice", quote(string(text))), expected: wantRange}
		}
		if err := bound.UnmarshalText([]byte(strings.TrimSpace(number))); err != nil {
			return err
		}
		if *bound == 0 {
			return &wrong{reason: fmt.Sprintf("%s is not a limit", quote(part)), expected: "a size above 0"}
		}
	}
	if out.Max != 0 && out.Min > out.Max {
		return &wrong{reason: fmt.Sprintf("no disk can have the size %s", quote(string(text))), expected: wantRange}
	}
	*r = out
	return nil
}

// nearestRange guesses the intended range of a text with a missing or wrong operator. It returns ""
// if it finds none.
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

// String prints the limits.
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

// MarshalText returns String.
func (r SizeRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MatchField is the path of the CEL expression in the disk selector of an installation. Parse does
// not validate the CEL expressions of disk selectors, neither for an installation nor for volumes,
// because PID 1 and orlopctl do not link a CEL compiler.
const MatchField = "Machine.spec.install.disk.match"

// install validates the disk selector, and that Wipe is not a pattern.
func (v machineValidator) install(path string, i *Install) {
	v.diskSelector(path+".disk", i.Disk)
	if strings.ContainsAny(i.Wipe, "*?[") {
		v.on(path+".wipe", wrong{reason: quote(i.Wipe) + " is a pattern", expected: "the path, the serial number or the WWID of one disk"})
	}
}
