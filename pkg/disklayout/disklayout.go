// Package disklayout is how the disk of a machine is divided: the labels, types, order and sizes of its
// partitions stand here and nowhere else. The imager divides disk images so, machined/install blank
// disks, and machined/disk adds what a machine keeps. The package touches no disk.
package disklayout

import (
	"fmt"

	"github.com/google/uuid"
)

// Labels of the partitions, exactly as in the table, in their order on the disk.
const (
	ESP   = "ESP"    // the boot loader, and one boot image per slot
	RootA = "ROOT-A" // one slot's root, then its hash tree
	RootB = "ROOT-B" // the other's
	State = "STATE"  // configuration, keys, records
	Data  = "DATA"   // everything else; made on first boot, so a disk without it never ran
)

// Types of the partitions, as the Discoverable Partitions Specification of the UAPI group gives
// them: STATE has that of "server data" and DATA that of "variable data" (the latter wants a
// machine-bound unique GUID that we do not use).
var (
	TypeESP   = uuid.MustParse("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
	TypeRoot  = uuid.MustParse("4f68bce3-e8cd-4db1-96e7-fbcaf984b709") // x86-64
	TypeState = uuid.MustParse("3b8f8425-20e0-4f3b-907f-1a25a76f98e8")
	TypeData  = uuid.MustParse("4d21b016-b534-45c2-a9fb-5c16e091fd2d")
)

const (
	// StateSize is the size of STATE, in bytes.
	StateSize = 256 << 20
	// MinimumData is the smallest DATA that is made, in bytes: etcd, logs and a few images.
	MinimumData = 1 << 30
	// Reserve is what the table and its copy take, with the space that keeps partitions aligned, in
	// bytes: 1 MiB at each end.
	Reserve = 2 << 20
)

// Sizes are what a product variant chooses.
type Sizes struct {
	ESP  uint64 `json:"esp"`  // bytes
	Root uint64 `json:"root"` // of each slot, bytes
}

// Partition is one partition of the layout.
type Partition struct {
	Label string
	Type  uuid.UUID
	Size  uint64 // bytes
}

// System is what comes with the system itself, in order.
func System(s Sizes) []Partition {
	return []Partition{
		{Label: ESP, Type: TypeESP, Size: s.ESP},
		{Label: RootA, Type: TypeRoot, Size: s.Root},
		{Label: RootB, Type: TypeRoot, Size: s.Root},
	}
}

// Installed is System with STATE behind it, as it stands on a disk that the system was installed
// to.
func Installed(s Sizes) []Partition {
	return append(System(s), Partition{Label: State, Type: TypeState, Size: StateSize})
}

// Minimum is the size of the smallest disk that holds everything, in bytes.
func Minimum(s Sizes) uint64 {
	need := uint64(Reserve + MinimumData)
	for _, p := range Installed(s) {
		need += p.Size
	}
	return need
}

// IsSystemPartition reports whether a partition with this label and type is one of ours. The types of the
// system's own are not asked for: a disk image of another variant may have others.
func IsSystemPartition(label string, kind uuid.UUID) bool {
	switch label {
	case ESP, RootA, RootB:
		return true
	case State:
		return kind == TypeState
	case Data:
		return kind == TypeData
	}
	return false
}

// IsImageGUID reports whether a GUID was made from a name, as the imager makes those of a disk image
// (RFC 9562, version 5): every disk that the image was written to has it. GUIDs that an
// installation or a machine makes are random (version 4).
func IsImageGUID(id uuid.UUID) bool { return id.Variant() == uuid.RFC4122 && id.Version() == 5 }

// FormatSize prints bytes for people: "256 MiB", "5.7 GiB". Values are cut, not rounded up, so that
// what is said fits.
func FormatSize(bytes uint64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	tenths := bytes / (1 << 30 / 10)
	if tenths%10 == 0 || tenths >= 1000 {
		return fmt.Sprintf("%d GiB", tenths/10)
	}
	return fmt.Sprintf("%d.%d GiB", tenths/10, tenths%10)
}
