package install

import (
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/pkg/disklayout"
)

// state is what a disk holds, as far as installing is concerned.
type state int

const (
	blank      state = iota
	unfinished       // an installation that was cut short: nothing was ever kept on it
	installed        // a system that ran, or would
	foreign          // anything else
)

// judge tells what a disk holds. A table of ours without DATA never ran, because the installed
// system makes DATA with the first thing it does to the disk; and without a boot loader, which an
// installation writes last, it could not have.
func judge(d Disk) state {
	if d.Table == "" {
		return blank
	}
	if d.Table != "gpt" {
		return foreign
	}
	seen := map[string]bool{}
	for _, p := range d.Partitions {
		if !disklayout.IsSystemPartition(p.Label, p.Type) || seen[p.Label] {
			return foreign
		}
		seen[p.Label] = true
	}
	switch {
	case !seen[disklayout.ESP] || !seen[disklayout.RootA] || !seen[disklayout.RootB]:
		return foreign
	case seen[disklayout.Data], d.Bootable:
		return installed
	}
	return unfinished
}

// Installed lists the disks that hold a system that ran, or would.
func Installed(disks []Disk) []Disk {
	var all []Disk
	for _, d := range disks {
		if judge(d) == installed {
			all = append(all, d)
		}
	}
	return all
}

// admit refuses a disk whose content nobody allowed to be lost.
func admit(d Disk, c Config) error {
	s := judge(d)
	if s == blank || s == unfinished {
		return nil
	}
	if s == installed && c.Unattended {
		return fmt.Errorf("%s: refusing to install: it holds %s, and the configuration that asks for it lay on a medium: only an operator can replace a system, by applying a configuration over the API",
			d, content(d))
	}
	if c.Wipe != "" && (c.Wipe == d.Path || c.Wipe == d.Serial || c.Wipe == d.WWID) {
		return nil
	}
	return fmt.Errorf("%s: refusing to install: it holds %s, which would be lost; to allow it, write into Machine.spec.install:\n  wipe: %s",
		d, content(d), name(d))
}

// name is what the operator should write for a disk: what stays the same from one start to the
// next, if the disk has it.
func name(d Disk) string {
	for _, n := range []string{d.Serial, d.WWID} {
		if n != "" && !strings.ContainsAny(n, ":#\"' ") {
			return n
		}
	}
	return d.Path
}

// content says what a disk holds.
func content(d Disk) string {
	if d.Table != "gpt" {
		return d.Table
	}
	if judge(d) == installed {
		return "an installed Orlop OS"
	}
	if len(d.Partitions) == 0 {
		return "an empty GPT partition table"
	}
	var parts []string
	for _, p := range d.Partitions {
		parts = append(parts, fmt.Sprintf("partition %d %q (%s, %s)", p.Number, p.Label, disklayout.FormatSize(p.Size), p.Content))
	}
	return strings.Join(parts, ", ")
}
