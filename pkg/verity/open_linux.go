package verity

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/containerd/go-dmverity/pkg/dm"
	"golang.org/x/sys/unix"
)

// options are the optional arguments of the kernel's verity target
// (Documentation/admin-guide/device-mapper/verity.rst).
//
// With these arguments, the kernel panics if a block does not match its hash or cannot be read. The
// alternative, restart_on_corruption, would run the orderly shutdown of the drivers from within the
// failed read. A panic does not depend on the drivers. The kernel stores its log in the firmware
// (pstore) for the next boot, and the argument panic= turns the panic into a reset. The kernel logs
// "verity: …: data block N is corrupted" and "Kernel panic - not syncing: dm-verity device
// corrupted".
var options = []string{"panic_on_corruption", "panic_on_error", "ignore_zero_blocks"}

// optionsEIO are the optional arguments for an image that the system does not need to run. A read
// of a damaged block fails with EIO.
var optionsEIO = []string{"ignore_zero_blocks"}

// Open maps the sealed image on a block device to the read-only device-mapper device name, and
// returns the path of the mapped device. It does not verify the whole image: the kernel verifies
// each block when it reads the block. The kernel must have dm_verity loaded. If the name is in use,
// Open fails and does not change the device with this name.
func Open(device string, p Params, name string) (string, error) {
	return open(device, p, name, options)
}

// OpenEIO is like Open, for an image that the system does not need to run. A read of a block that
// does not match its hash fails with EIO, and the kernel does not panic.
func OpenEIO(device string, p Params, name string) (string, error) {
	return open(device, p, name, optionsEIO)
}

func open(device string, p Params, name string, options []string) (string, error) {
	if err := p.Check(); err != nil {
		return "", err
	}
	arguments, err := dm.BuildTargetParams(dm.OpenArgs{
		Version:        1,
		DataDevice:     device,
		HashDevice:     device,
		DataBlockSize:  BlockSize,
		HashBlockSize:  BlockSize,
		DataBlocks:     p.DataBlocks,
		HashName:       "sha256",
		RootDigest:     p.RootHash,
		Salt:           p.Salt,
		HashStartBytes: p.HashStart * BlockSize,
		Flags:          options,
	})
	if err != nil {
		return "", fmt.Errorf("%s: cannot describe to dm-verity: %w", device, err)
	}
	control, err := dm.Open()
	if err != nil {
		return "", fmt.Errorf("device mapper: cannot open: %w", err)
	}
	defer control.Close()
	number, err := control.CreateDevice(name)
	if err != nil {
		return "", fmt.Errorf("device mapper: cannot make %s: %w", name, err)
	}
	table := []dm.Target{{Length: p.DataBlocks * BlockSize / 512, Type: "verity", Params: arguments}}
	err = control.LoadTable(name, table)
	if err == nil {
		// A new device is suspended. Resuming it activates its table.
		err = control.SuspendDevice(name, false)
	}
	if err != nil {
		_ = control.RemoveDevice(name)
		return "", fmt.Errorf("%s: cannot open with dm-verity: %w", device, err)
	}
	// devtmpfs creates this device node before the ioctl returns. Only udev, which is absent, would
	// create /dev/mapper/<name>.
	return fmt.Sprintf("/dev/dm-%d", unix.Minor(number)), nil
}

// Remove removes the device-mapper device that Open or OpenEIO has created. It fails if the device
// is in use.
func Remove(name string) error {
	control, err := dm.Open()
	if err != nil {
		return fmt.Errorf("device mapper: cannot open: %w", err)
	}
	defer control.Close()
	return control.RemoveDevice(name)
}

// dmRequest is struct dm_ioctl of linux/dm-ioctl.h. It is here because the library cannot request a
// deferred removal.
type dmRequest struct {
	version     [3]uint32
	size, start uint32
	_           [2]uint32 // targets, openers
	flags       uint32
	_           [2]uint32 // event, padding
	_           uint64    // device
	name        [128]byte
	_           [136]byte // UUID, data
}

const (
	dmRemove         = 0xc138fd04 // DM_DEV_REMOVE of linux/dm-ioctl.h
	dmDeferredRemove = 1 << 17    // DM_DEFERRED_REMOVE, since version 4.27 of the interface
)

// RemoveWhenUnused makes the kernel remove the device with this name when its last user closes it.
// An unmount of the file system on the device then also releases the image.
func RemoveWhenUnused(name string) error {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("device mapper: cannot open: %w", err)
	}
	defer control.Close()
	r := dmRequest{version: [3]uint32{4, 27, 0}, flags: dmDeferredRemove}
	r.size = uint32(unsafe.Sizeof(r))
	r.start = r.size
	copy(r.name[:len(r.name)-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), dmRemove, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("device mapper: cannot remove %s after its use: %w", name, errno)
	}
	return nil
}
