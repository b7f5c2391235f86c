package verity

import (
	"fmt"

	"github.com/containerd/go-dmverity/pkg/dm"
	"golang.org/x/sys/unix"
)

// options are the optional arguments of the kernel's verity target
// (Documentation/admin-guide/device-mapper/verity.rst).
//
// The kernel panics on a block that does not match its hash or cannot be read. The alternative, a
// restart, would run the orderly shutdown of the drivers from within the failed read. A panic
// depends on no other code, is stored in the firmware's log (pstore) for the next boot, and becomes
// a reset by the panic= argument. The kernel's lines are "verity: …: data block N is corrupted" and
// "Kernel panic - not syncing: dm-verity device corrupted".
var options = [...]string{"panic_on_corruption", "panic_on_error", "ignore_zero_blocks"}

// Open maps the sealed image on the block device read-only as the device-mapper device name, and
// returns the path of the mapped device. It does not verify the image as a whole: the kernel
// verifies each block when it reads it. The kernel must have dm_verity loaded. If the name is
// taken, Open fails and does not change the other device.
func Open(device string, p Params, name string) (string, error) {
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
		Flags:          options[:],
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
		// A new device is suspended; resuming activates its table.
		err = control.SuspendDevice(name, false)
	}
	if err != nil {
		_ = control.RemoveDevice(name)
		return "", fmt.Errorf("%s: cannot open with dm-verity: %w", device, err)
	}
	// devtmpfs creates this node before the ioctl returns. udev would create /dev/mapper/<name>.
	return fmt.Sprintf("/dev/dm-%d", unix.Minor(number)), nil
}
