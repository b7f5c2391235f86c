package disk

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// sysExt4 contains a directory for each mounted ext4 (Documentation/ABI/testing/sysfs-fs-ext4).
const sysExt4 = "/sys/fs/ext4"

// readFilesystemErrors reads the error state of STATE, DATA and the mounted volumes from the
// kernel. It reads no disk.
func readFilesystemErrors() ([]FilesystemErrors, error) {
	mounts, err := mount.List()
	if err != nil {
		return nil, err
	}
	var all []FilesystemErrors
	for _, l := range labeled(mounts) {
		s := FilesystemErrors{Label: l.label, Device: l.Source, Faults: mountedFaults(sysExt4, kernelName(l.Source))}
		var fs unix.Statfs_t
		if err := unix.Statfs(l.Target, &fs); err == nil {
			s.ReadOnly = fs.Flags&unix.ST_RDONLY != 0
		}
		s.ReadOnly = s.ReadOnly || s.Faults.Any() && refusesWrites(l.Target)
		if l.Flags&mount.ReadOnly != 0 { // configured as read-only, so no error
			s.ReadOnly = false
		}
		all = append(all, s)
	}
	return all, nil
}

// kernelName returns the path of a device with the name that the kernel uses in sysfs. The name of
// a mapped device there is dm-N.
func kernelName(device string) string {
	var s unix.Stat_t
	if !strings.HasPrefix(device, "/dev/mapper/") || unix.Stat(device, &s) != nil {
		return device
	}
	return "/dev/dm-" + strconv.Itoa(int(unix.Minor(s.Rdev)))
}

// readMountErrors reads from the kernel which of the other mounts of the system are read-only. It
// skips a mount point without a mount: the domain that mounts there reports the problem.
func readMountErrors(mounts []mount.Mount) ([]FilesystemErrors, error) {
	present, err := mount.List()
	if err != nil {
		return nil, err
	}
	var all []FilesystemErrors
	for _, m := range mounts {
		if !slices.ContainsFunc(present, func(p mount.Mount) bool { return p.Target == m.Target }) {
			continue
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(m.Target, &fs); err == nil {
			all = append(all, mountErrors(m, fs.Flags&unix.ST_RDONLY != 0))
		}
	}
	return all, nil
}

// refusesWrites tries to create a file without a name. After an error, Linux 6.12 stops all writes
// to a file system with errors=remount-ro, but does not report it as read-only (fs/ext4/super.c,
// ext4_handle_error).
func refusesWrites(target string) bool {
	fd, err := unix.Open(target, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EROFS)
}

// mountedFaults reads the errors of a mounted ext4 from the kernel.
func mountedFaults(sys, device string) superblock.Errors {
	dir := filepath.Join(sys, filepath.Base(device))
	word := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(word(name), 10, 64) // a missing file means 0
		return n
	}
	fault := func(which string) superblock.Error {
		f := superblock.Error{Function: word(which + "_error_func"), Line: uint32(number(which + "_error_line")), Inode: uint32(number(which + "_error_ino")),
			Block: number(which + "_error_block")}
		if seconds := number(which + "_error_time"); seconds > 0 {
			f.Time = time.Unix(int64(seconds), 0).UTC()
		}
		return f
	}
	out := superblock.Errors{Count: uint32(number("errors_count"))}
	if out.Count > 0 {
		out.Marked, out.First, out.Last = true, fault("first"), fault("last")
	}
	return out
}
