// Package layout defines the partitions of the system disk: their labels, types, order and sizes.
// The imager creates these partitions in disk images, and machined/install on blank disks.
// machined/disk adds the partitions for data of the machine. The package does not access disks.
package layout

import (
	"fmt"

	"github.com/google/uuid"
)

// Labels of the partitions, exactly as in the partition table, in their order on the disk.
const (
	ESP   = "ESP"    // boot loader, and one UKI per slot
	RootA = "ROOT-A" // root of slot A, followed by its hash tree
	RootB = "ROOT-B" // root of slot B
	State = "STATE"  // configuration, keys, records
	// all other data; created at the first boot, so a system disk without DATA has never been
	// booted
	Data = "DATA"
)

// Types of the partitions in the Discoverable Partitions Specification of the UAPI group. STATE has
// the type "server data", and DATA has the type "variable data". For the type of DATA, the
// specification requires a unique GUID that is derived from the machine; the system does not follow
// this rule.
var (
	TypeESP   = uuid.MustParse("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
	TypeRoot  = uuid.MustParse("4f68bce3-e8cd-4db1-96e7-fbcaf984b709") // x86-64
	TypeState = uuid.MustParse("3b8f8425-20e0-4f3b-907f-1a25a76f98e8")
	TypeData  = uuid.MustParse("4d21b016-b534-45c2-a9fb-5c16e091fd2d")
)

const (
	// StateSize is the size of the partition STATE, in bytes.
	StateSize = 256 << 20
	// MinimumData is the minimum size of DATA, in bytes. It is sufficient for etcd, logs and a few
	// images.
	MinimumData = 1 << 30
	// Reserve is the space for the partition table, its copy and the alignment of partitions, in
	// bytes: 1 MiB at each end.
	Reserve = 2 << 20
)

// Sizes are the partition sizes that a profile defines.
type Sizes struct {
	ESP  uint64 `json:"esp"`  // bytes
	Root uint64 `json:"root"` // of each slot, bytes
}

// Partition is a partition of the layout.
type Partition struct {
	Label string
	Type  uuid.UUID
	Size  uint64 // bytes
}

// System returns the partitions of the system itself, in order.
func System(s Sizes) []Partition {
	return []Partition{
		{Label: ESP, Type: TypeESP, Size: s.ESP},
		{Label: RootA, Type: TypeRoot, Size: s.Root},
		{Label: RootB, Type: TypeRoot, Size: s.Root},
	}
}

// Installed returns the partitions of a disk after an installation: those of System, and STATE.
// DATA follows at the first boot.
func Installed(s Sizes) []Partition {
	return append(System(s), Partition{Label: State, Type: TypeState, Size: StateSize})
}

// Minimum returns the size of the smallest disk for all partitions, in bytes.
func Minimum(s Sizes) uint64 {
	need := uint64(Reserve + MinimumData)
	for _, p := range Installed(s) {
		need += p.Size
	}
	return need
}

// IsSystemPartition reports whether a partition with this label and type belongs to the system. It
// ignores the types of the ESP and root partitions, because a disk image of another profile can
// have other types.
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

// IsImageGUID reports whether a GUID is from a disk image of the imager. Every disk with the same
// image has the same GUID. The imager derives GUIDs from names (RFC 9562, version 5); the GUIDs
// that an installation or a machine creates are random (version 4).
func IsImageGUID(id uuid.UUID) bool { return id.Variant() == uuid.RFC4122 && id.Version() == 5 }

// FormatSize formats bytes for users: "256 MiB", "5.7 GiB". It rounds down, so the text never
// states more than the real size.
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
