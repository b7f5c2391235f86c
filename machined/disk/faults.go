package disk

import (
	"fmt"
	"strings"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
)

// FilesystemErrors is the error state of a file system that the system mounts.
type FilesystemErrors struct {
	Label    string            `json:"label"`  // "DATA", "ESP", or the mount point
	Device   string            `json:"device"` // "/dev/vda5"
	Faults   superblock.Errors `json:"faults"` // recorded by the kernel since the last check
	ReadOnly bool              `json:"readOnly,omitempty"`
	// Problem is the problem of a file system other than STATE and DATA, with its remedy.
	Problem string `json:"problem,omitempty"`
	// Checked is true if the errors precede the check at boot, which has repaired them.
	Checked bool `json:"checked,omitempty"`
}

// OK reports whether the operator has nothing to do at present.
func (s FilesystemErrors) OK() bool {
	return s.Checked || !s.ReadOnly && !s.Faults.Any() && s.Problem == ""
}

// String describes the errors and the remedy; it is empty if there are no errors.
func (s FilesystemErrors) String() string {
	what := fmt.Sprintf("%s (%s): ", s.Label, s.Device)
	switch {
	case s.Problem != "":
		return what + s.Problem
	case s.Checked && s.Faults.Any():
		return what + "the file system had " + counted(s.Faults) + "; the check at this boot has repaired them; see the kernel log and the disk's health data"
	case s.ReadOnly && s.Faults.Any():
		return what + "the file system has " + counted(s.Faults) + ", and no longer accepts writes; save important data, and reboot: the check at boot makes the possible repairs"
	case s.ReadOnly:
		return what + "the file system no longer accepts writes; see the kernel log, and reboot: the check at boot makes the possible repairs"
	case s.Faults.Any():
		return what + "the file system has " + counted(s.Faults) + "; save important data, and reboot: the check at boot makes the possible repairs"
	}
	return ""
}

// labeledMount is a mounted file system of the machine, with the name that operators see.
type labeledMount struct {
	label string
	mount.Mount
}

// labeled returns the mounts of STATE and DATA, then those of the volumes on other disks.
func labeled(mounts []mount.Mount) (all []labeledMount) {
	for _, v := range systemVolumes() {
		if m, mounted := mount.Topmost(mounts, v.Mount.Target); mounted {
			all = append(all, labeledMount{v.Format.Label, m})
		}
	}
	for _, m := range mounts {
		if name, ours := strings.CutPrefix(m.Target, paths.VolumeMounts+"/"); ours && m.Type == "ext4" && !strings.Contains(name, "/") {
			all = append(all, labeledMount{"volume " + name, m})
		}
	}
	return all
}

// espErrors returns the error state of the ESP. fault is the error of the last access to the ESP.
func espErrors(device, fault string) FilesystemErrors {
	s := FilesystemErrors{Label: layout.ESP, Device: device}
	if fault != "" {
		s.Problem = fault + "; the machine may not boot, and an upgrade may fail: save important data, see the kernel log and the disk's health data, and replace the disk or install the machine again"
	}
	return s
}

// mountErrors returns the error state of a mount of the system that is not on the system disk.
// readOnly reports whether the mount is read-only now.
func mountErrors(m mount.Mount, readOnly bool) FilesystemErrors {
	s := FilesystemErrors{Label: m.Target, Device: m.Source}
	if readOnly && m.Flags&mount.ReadOnly == 0 {
		s.ReadOnly = true
		s.Problem = "the file system no longer accepts writes; see the kernel log, and reboot"
	}
	return s
}

// counted returns the errors as a part of a sentence.
func counted(f superblock.Errors) string {
	if f.Count == 0 {
		return "an error mark without a recorded error"
	}
	return f.String()
}

// beforeCheck lists the recorded errors that a check would clear: errors of unmounted volumes on
// the boot disk.
func beforeCheck(have Have) []FilesystemErrors {
	var found []FilesystemErrors
	for _, d := range have.Disks {
		for _, p := range d.Partitions {
			device := p.Path
			if p.Encryption != nil {
				device = diskkey.MappedPath(p.Label)
			}
			if _, mounted := mountOf(have, device); d.Boot && isSystemPartition(p.Entry) && p.Faults.Any() && !mounted {
				found = append(found, FilesystemErrors{Label: p.Label, Device: p.Path, Faults: p.Faults, Checked: true})
			}
		}
	}
	return found
}

// mountOf returns the mount point of a device.
func mountOf(have Have, device string) (target string, mounted bool) {
	for _, m := range have.Mounts {
		if m.Source == device {
			return m.Target, true
		}
	}
	return "", false
}

// newErrors returns the file systems with new or additional errors since the previous reading.
func newErrors(before, now []FilesystemErrors) []FilesystemErrors {
	known := map[string]FilesystemErrors{}
	for _, s := range before {
		known[s.Label] = s
	}
	var out []FilesystemErrors
	for _, s := range now {
		was := known[s.Label]
		if !s.OK() && (was.OK() || s.Faults.Count > was.Faults.Count || s.ReadOnly && !was.ReadOnly || s.Problem != was.Problem) {
			out = append(out, s)
		}
	}
	return out
}
