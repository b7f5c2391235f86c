package config

import "slices"

// Volume is the document of a volume: a partition on a disk other than the system disk, with its
// own file system or swap. A configuration can contain several volumes, each with its own name.
type Volume struct {
	Metadata Metadata   `yaml:"metadata" jsonschema:"required"`
	Spec     VolumeSpec `yaml:"spec" jsonschema:"required"`
}

// VolumeSpec describes a volume.
type VolumeSpec struct {
	Disk         DiskSelector  `yaml:"disk" jsonschema:"required"`
	Size         Bytes         `yaml:"size,omitempty"`
	Use          VolumeUse     `yaml:"use" jsonschema:"required"`
	MountOptions []MountOption `yaml:"mountOptions,omitempty"`
	// ZswapPercent is the maximum percentage of the machine's memory that holds compressed pages
	// (zswap). It is only for a volume with UseSwap.
	ZswapPercent int `yaml:"zswapPercent,omitempty" limits:"0 to 50"`
}

// VolumeUse is the purpose of a volume.
type VolumeUse string

// The uses. UseEtcd, UseImages, UseVolumes and UseLogs move a part of DATA to the volume.
const (
	UseMount        VolumeUse = "mount"
	UseStorageClass VolumeUse = "storageClass"
	UseSwap         VolumeUse = "swap"
	UseEtcd         VolumeUse = "etcd"
	UseImages       VolumeUse = "images"
	UseVolumes      VolumeUse = "volumes"
	UseLogs         VolumeUse = "logs"
)

// Names returns the uses.
func (VolumeUse) Names() []string {
	return []string{string(UseMount), string(UseStorageClass), string(UseSwap), string(UseEtcd), string(UseImages), string(UseVolumes), string(UseLogs)}
}

// IsPart reports whether the volume holds a part of DATA.
func (u VolumeUse) IsPart() bool {
	return u != UseMount && u != UseStorageClass && u != UseSwap
}

// MountOption is an option of mount(8). Each volume is also mounted with nosuid, nodev and noatime.
type MountOption string

// The options.
const (
	OptionReadOnly MountOption = "ro"
	OptionNoExec   MountOption = "noexec"
	OptionDiscard  MountOption = "discard"
)

// Names returns the options.
func (MountOption) Names() []string {
	return []string{string(OptionReadOnly), string(OptionNoExec), string(OptionDiscard)}
}

// Has reports whether the volume has a mount option.
func (s VolumeSpec) Has(option MountOption) bool { return slices.Contains(s.MountOptions, option) }

// VolumePath returns the path of a volume's document, as in Problem.Field.
func VolumePath(name string) string { return documentPath(kindVolume, name) }
