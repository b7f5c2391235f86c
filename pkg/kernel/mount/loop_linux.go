package mount

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// AttachLoop attaches a file to a free loop device, with flags (unix.LO_FLAGS_…, loop(4)), and
// returns the open device. The caller may close the file, and must close the device. The module
// loop must be loaded.
func AttachLoop(file *os.File, flags uint32) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: cannot open: %w", err)
	}
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("loop devices: cannot find a free one: %w", err)
	}
	device, err := os.Open(fmt.Sprintf("/dev/loop%d", number))
	if err != nil {
		return nil, fmt.Errorf("loop devices: cannot open: %w", err)
	}
	c := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &c); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: cannot attach %s: %w", device.Name(), file.Name(), err), device.Close())
	}
	return device, nil
}
