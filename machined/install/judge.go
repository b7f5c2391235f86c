package install

import (
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// state is the content of a disk from the point of view of an installation.
type state int

const (
	blank      state = iota
	unfinished       // an interrupted installation, which never stored data
	installed        // a system that ran or can run
	foreign          // any other content
)

// classify determines the content of a disk. A disk with Orlop partitions holds an installed system
// if it has DATA, which the installed system creates with its first operation on the disk, or a
// boot loader, which an installation writes last. With neither, its system never ran.
func classify(d Disk) state {
	if d.Table == "" {
		return blank
	}
	if d.Table != "gpt" {
		return foreign
	}
	seen := map[string]bool{}
	for _, p := range d.Partitions {
		if !layout.IsSystemPartition(p.Label, p.Type) || seen[p.Label] {
			return foreign
		}
		seen[p.Label] = true
	}
	switch {
	case !seen[layout.ESP] || !seen[layout.RootA] || !seen[layout.RootB]:
		return foreign
	case seen[layout.Data], d.Bootable:
		return installed
	}
	return unfinished
}

// Installed returns the disks that contain a system that ran or can run.
func Installed(disks []Disk) []Disk {
	var all []Disk
	for _, d := range disks {
		if classify(d) == installed {
			all = append(all, d)
		}
	}
	return all
}

// checkContent rejects a disk with content unless the configuration permits its loss.
func checkContent(d Disk, c Config) error {
	s := classify(d)
	if s == blank || s == unfinished {
		return nil
	}
	if s == installed && c.Unattended {
		return fmt.Errorf("%s: refusing to install: it holds %s, and the configuration that requests it came from a medium: only an operator can replace a system, by applying a configuration over the API",
			d, content(d))
	}
	if c.Wipe != "" && (c.Wipe == d.Path || c.Wipe == d.Serial || c.Wipe == d.WWID) {
		return nil
	}
	return fmt.Errorf("%s: refusing to install: it holds %s, which would be lost; to permit it, add to Machine.spec.install:\n  wipe: %s",
		d, content(d), stableName(d))
}

// stableName returns the name that the operator should write for a disk: a permanent identifier, if
// the disk has one.
func stableName(d Disk) string {
	for _, n := range []string{d.Serial, d.WWID} {
		if n != "" && !strings.ContainsAny(n, ":#\"' ") {
			return n
		}
	}
	return d.Path
}

// content describes the content of a disk.
func content(d Disk) string {
	if d.Table != "gpt" {
		return d.Table
	}
	if classify(d) == installed {
		return "an installed Orlop OS"
	}
	if len(d.Partitions) == 0 {
		return "an empty GPT partition table"
	}
	var parts []string
	for _, p := range d.Partitions {
		parts = append(parts, fmt.Sprintf("partition %d %q (%s, %s)", p.Number, p.Label, layout.FormatSize(p.Size), p.Content))
	}
	return strings.Join(parts, ", ")
}
