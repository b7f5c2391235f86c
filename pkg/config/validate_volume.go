package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The limits of Volume documents.
const (
	maxVolumes = 16
	// maxVolumeName is the maximum length of a volume's name. The name is the label of a partition,
	// and a part of the names of a StorageClass and of annotations (orchestrator/localvolumes).
	maxVolumeName = 32
	// maxVolumeClasses is the maximum number of volumes with a StorageClass. The Node has an
	// annotation with a report for each of them, and the total size of annotations is limited.
	maxVolumeClasses = 4
	minVolumeSize    = 256 << 20
)

// volumeValidator checks the Volume documents.
type volumeValidator struct {
	checks
	cfg *Config
}

// volumes validates each volume. It also checks that no two volumes hold the same part of DATA, and
// that at most one volume is for swap.
func (v volumeValidator) volumes() {
	parts, classes := map[VolumeUse]string{}, 0
	for i, volume := range v.cfg.Volumes {
		path, name, spec := VolumePath(volume.Metadata.Name), volume.Metadata.Name, volume.Spec
		if i == maxVolumes {
			v.on(path, wrong{reason: fmt.Sprintf("one of %d volumes", len(v.cfg.Volumes)), expected: fmt.Sprintf("at most %d", maxVolumes)})
		}
		if err := dnsLabel(name); name != "" && (err != nil || len(name) > maxVolumeName) {
			if err == nil {
				err = fmt.Errorf("has %d characters", len(name))
			}
			v.on(path+".metadata.name", wrong{reason: fmt.Sprintf("%s %v", quote(name), err), expected: fmt.Sprintf("a DNS label of at most %d characters", maxVolumeName)})
		}
		v.limits(path, reflect.ValueOf(volume))
		v.diskSelector(path+".spec.disk", spec.Disk)
		if spec.Size != 0 && (spec.Size < minVolumeSize || spec.Size%(1<<20) != 0) {
			v.on(path+".spec.size", wrong{reason: spec.Size.String() + " is not a size of a volume", expected: "a multiple of 1MiB, at least 256MiB"})
		}
		if other, twice := parts[spec.Use]; twice && (spec.Use.IsPart() || spec.Use == UseSwap) {
			v.on(path+".spec.use", wrong{reason: fmt.Sprintf("%s is on volume %s already", spec.Use, quote(other)), expected: "swap and each part of DATA on one volume"})
		}
		parts[spec.Use] = name
		if spec.Use == UseStorageClass {
			if classes++; classes == maxVolumeClasses+1 {
				v.on(path+".spec.use", wrong{reason: fmt.Sprintf("more than %d volumes have a StorageClass", maxVolumeClasses), expected: fmt.Sprintf("at most %d", maxVolumeClasses)})
			}
		}
		if spec.Use == UseEtcd && v.cfg.Machine.Spec.Role == RoleWorker {
			v.on(path+".spec.use", wrong{reason: "a worker has no etcd", expected: "another use", hint: "remove the volume here"})
		}
		if spec.ZswapPercent != 0 && spec.Use != UseSwap {
			v.on(path+".spec.zswapPercent", wrong{reason: fmt.Sprintf("a volume for %s has no zswap", spec.Use), expected: "use: swap"})
		}
		v.mountOptions(path+".spec.mountOptions", spec)
	}
}

// mountOptions rejects duplicates, and options that prevent the use of the volume.
func (v volumeValidator) mountOptions(path string, spec VolumeSpec) {
	for i, option := range spec.MountOptions {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case slices.Contains(spec.MountOptions[:i], option):
			v.on(at, wrong{reason: quote(string(option)) + " is given twice", expected: "each once"})
		case option == OptionReadOnly && spec.Use != UseMount:
			v.on(at, wrong{reason: fmt.Sprintf("the system writes to a volume for %s", spec.Use), expected: "ro for use: mount only"})
		case option == OptionNoExec && spec.Use == UseSwap:
			v.on(at, wrong{reason: "swap has no files", expected: "noexec for another use"})
		case option == OptionNoExec && spec.Use == UseImages:
			v.on(at, wrong{reason: "no container could run", expected: "noexec for another use"})
		}
	}
}

// diskSelector validates the patterns and the path of a disk selector.
func (v checks) diskSelector(path string, d DiskSelector) {
	for _, f := range []struct{ name, pattern string }{
		{".model", d.Model}, {".serial", d.Serial}, {".wwid", d.WWID}, {".bus", d.Bus}, {".path", d.Path},
	} {
		if strings.Count(f.pattern, "[") != strings.Count(f.pattern, "]") {
			v.on(path+f.name, wrong{reason: quote(f.pattern) + " is not a pattern", expected: "as many ] as ["})
		}
	}
	if d.Path != "" && !strings.HasPrefix(d.Path, "/dev/") && !strings.ContainsAny(d.Path[:1], "*?[") {
		v.on(path+".path", wrong{reason: quote(d.Path) + " is not the name of a disk", expected: "a path below /dev, such as /dev/nvme0n1", nearest: "/dev/" + d.Path})
	}
}
