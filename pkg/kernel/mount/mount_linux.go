package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/backoff"
)

var flagBits = [...]struct {
	flag Flags
	bit  uintptr
}{{ReadOnly, unix.MS_RDONLY}, {NoSuid, unix.MS_NOSUID}, {NoDev, unix.MS_NODEV}, {NoExec, unix.MS_NOEXEC}, {NoAtime, unix.MS_NOATIME}}

// Do mounts the file system. It creates a missing mount point (0755). If another file system is
// mounted at the mount point, the kernel puts the new mount on top. So a caller that may repeat a
// mount must first check with At or List whether it exists.
func (m Mount) Do() error { return m.mount(0) }

func (m Mount) mount(bits uintptr) error {
	if err := os.MkdirAll(m.Target, 0o755); err != nil {
		return fmt.Errorf("%s: cannot create mount point: %w", m.Target, err)
	}
	for _, f := range flagBits {
		if m.Flags&f.flag != 0 {
			bits |= f.bit
		}
	}
	if err := unix.Mount(m.Source, m.Target, m.Type, bits, m.Data); err != nil {
		return fmt.Errorf("%s: cannot mount %s (%s): %w", m.Target, m.Source, m.Type, err)
	}
	return nil
}

// Bind makes the directory `from` also available at the mount point `to`, with its own restrictions
// (mount(2), MS_BIND). It creates a missing mount point (0755).
func Bind(from, to string, flags Flags) error {
	m := Mount{Source: from, Target: to, Type: "bind", Flags: flags}
	if err := m.mount(unix.MS_BIND); err != nil {
		return err
	}
	return Restrict(to, flags) // mount(2) with MS_BIND ignores the flags
}

// Restrict replaces the flags of the topmost mount at target. Other mounts of the same file system
// keep their flags.
func Restrict(target string, flags Flags) error {
	return Mount{Target: target, Type: "bind", Flags: flags}.mount(unix.MS_BIND | unix.MS_REMOUNT)
}

// Move moves a mount, with all mounts below it, to another mount point. The target must exist.
func Move(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("%s: cannot move mount to %s: %w", from, to, err)
	}
	return nil
}

// busyTimeout is how long WhileBusy repeats a call.
const busyTimeout = 10 * time.Second

// WhileBusy calls the function do, and repeats the call while its error is EBUSY, at most for 10 s.
// It is for file systems and devices with files that this process has just closed. They can still
// be busy for milliseconds, or for a second on an emulated machine. The reason is that another
// goroutine may start a program: between fork and execve, the child process has copies of all open
// files, even of files with O_CLOEXEC.
func WhileBusy(do func() error) error {
	delays := backoff.Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	ctx, cancel := context.WithTimeout(context.Background(), busyTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := do()
		if !errors.Is(err, unix.EBUSY) || backoff.Sleep(ctx, delays.Delay(failures)) != nil {
			return err
		}
	}
}

// OpenExclusive opens a device with flags (os.O_…), and waits while the device is in use
// (WhileBusy). With O_EXCL, the kernel does not open a device that is in use, for example because
// it is mounted (open(2)).
func OpenExclusive(device string, flags int) (f *os.File, err error) {
	err = WhileBusy(func() (err error) {
		f, err = os.OpenFile(device, flags|unix.O_EXCL, 0)
		return err
	})
	return f, err
}

// Unmount removes the topmost mount at target, and waits while the mount is in use (WhileBusy). It
// returns nil if target is not a mount point, so a caller can repeat the call.
func Unmount(target string) error { return WhileBusy(func() error { return UnmountOnce(target) }) }

// UnmountOnce is Unmount without a wait.
func UnmountOnce(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: cannot unmount: %w", target, err)
	}
	return nil
}

// List returns the mounts in the mount namespace of the caller (/proc/self/mountinfo), in the order
// of mounting.
func List() ([]Mount, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("mounts: cannot list: %w", err)
	}
	mounts := make([]Mount, 0, len(infos))
	for _, info := range infos {
		mounts = append(mounts, fromInfo(info))
	}
	return mounts, nil
}

// At returns the topmost mount at target, and reports whether a file system is mounted there.
func At(target string) (Mount, bool, error) {
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(target))
	if err != nil {
		return Mount{}, false, fmt.Errorf("mounts: cannot list: %w", err)
	}
	if len(infos) == 0 {
		return Mount{}, false, nil
	}
	return fromInfo(infos[len(infos)-1]), true, nil
}

func fromInfo(info *mountinfo.Info) Mount {
	m := Mount{Source: info.Source, Target: info.Mountpoint, Type: info.FSType, Data: info.VFSOptions}
	for option := range strings.SplitSeq(info.Options, ",") {
		for _, n := range flagNames {
			if option == n.name {
				m.Flags |= n.flag
			}
		}
	}
	return m
}
