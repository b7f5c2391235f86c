package install

import (
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
)

// choose returns the single disk that matches and the reasons against each other disk, or an error
// with the reasons of all disks.
func choose(c Config, f Facts) (Disk, []string, error) {
	var found []Disk
	var lines, others []string
	for _, d := range f.Disks {
		reasons := append(unsuitable(d, f.System), diskmatch.Mismatches(c.Disk, d.hardware(), f.Matches)...)
		if len(reasons) == 0 {
			found, reasons = append(found, d), []string{"matches"}
		} else {
			others = append(others, fmt.Sprintf("%s: %s", d, strings.Join(reasons, "; ")))
		}
		lines = append(lines, fmt.Sprintf("%s: %s", d, strings.Join(reasons, "; ")))
	}
	if len(found) == 1 {
		return found[0], others, nil
	}
	selector := "Machine.spec.install.disk"
	switch {
	case len(lines) == 0:
		return Disk{}, nil, fmt.Errorf("%s: this machine has no supported disk: connect one of at least %s, or use an image that holds its driver",
			selector, layout.FormatSize(layout.Minimum(f.System.Sizes)))
	case len(found) > 1:
		return Disk{}, nil, fmt.Errorf("%s: %d disks match instead of exactly one; add more criteria:\n%s", selector, len(found), strings.Join(lines, "\n"))
	}
	return Disk{}, nil, fmt.Errorf("%s: no disk matches:\n%s", selector, strings.Join(lines, "\n"))
}

// sector is the sector size in bytes for which the ESP is created and written (pkg/slot/esp,
// pkg/disk/mkfs).
const sector = 512

// unsuitable returns the reasons why a disk is never a target.
func unsuitable(d Disk, s System) []string {
	var reasons []string
	if d.Medium != "" {
		reasons = append(reasons, d.Medium)
	}
	if d.ReadOnly {
		reasons = append(reasons, "it is read-only")
	}
	if d.SectorSize != sector {
		reasons = append(reasons, fmt.Sprintf("its sectors have %d bytes, and the ESP needs sectors of %d; many disks can be switched to them (512e)", d.SectorSize, sector))
	}
	if need := layout.Minimum(s.Sizes); d.Size < need {
		reasons = append(reasons, "it is too small, at least "+layout.FormatSize(need+1<<30/10-1)+" are needed")
	}
	return reasons
}
