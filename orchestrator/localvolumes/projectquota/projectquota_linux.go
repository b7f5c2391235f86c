// Package projectquota limits the disk usage below a directory. A project is a number that all
// files of a directory carry and that new files in it inherit. The file system counts the blocks
// and inodes of each project and enforces its limits.
//
// It needs an ext4 file system with the features quota and project (mkfs.Ext4 creates them on
// DATA), and the kernel module quota_v2 at the mount. The kernel counts from the mount on; limits
// apply from Enforce on. Limits do not apply to processes with CAP_SYS_RESOURCE. The owner of a
// file can remove it from its project, unless the owner is in a user namespace (fs/quota/dquot.c,
// ignore_hardlimit; fs/ioctl.c, fileattr_set_prepare). A write beyond the limit fails with EDQUOT,
// and statfs(2) of a directory of the project shows the limit as the size of the file system.
//
// The sources are quotactl(2) and the kernel's include/uapi/linux/quota.h and fs.h. The caller
// assigns the project numbers.
package projectquota

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
)

// ErrUnsupported is returned for a file system without project quotas.
var ErrUnsupported = errors.New("the file system has no project quotas, because an earlier version created it; reset the machine's data to create a new file system")

// Limit is the limit of a project. Zero means no limit.
type Limit struct {
	Bytes  uint64 // rounded up to 1 KiB, the unit of the kernel's limits
	Inodes uint64
}

// Usage is the disk usage of a project.
type Usage struct {
	Bytes, Inodes uint64
}

// From include/uapi/linux/quota.h.
const (
	quotaOn     = 0x800002
	getQuota    = 0x800007
	setQuota    = 0x800008
	project     = 2 // PRJQUOTA; the types are user, group and project
	blockUnit   = 1024
	blockLimits = 1
	inodeLimits = 4
)

// dqblk is struct if_dqblk.
type dqblk struct {
	blocksHard, blocksSoft uint64 // in units of blockUnit
	space                  uint64 // bytes
	inodesHard, inodesSoft uint64
	inodes                 uint64
	blockTime, inodeTime   uint64
	valid                  uint32
	_                      uint32
}

// From include/uapi/linux/fs.h.
const (
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit       = 0x200      // FS_XFLAG_PROJINHERIT
)

// fsxattr is struct fsxattr.
type fsxattr struct {
	flags, extent, extents, project, cowExtent uint32
	_                                          [8]byte
}

// Enforce enables the limits of the file system that contains dir, until it is unmounted. It is
// safe to repeat.
func Enforce(dir string) error {
	err := quota(dir, quotaOn, 0, &dqblk{})
	switch {
	case err == nil, errors.Is(err, unix.EEXIST): // enabled before
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%s: cannot enforce limits: %w", dir, ErrUnsupported)
	}
	return fmt.Errorf("%s: cannot enforce limits: %w", dir, err)
}

// Assign makes an empty directory the root of a project: new files in it belong to the project.
func Assign(dir string, id uint32) error {
	err := attributes(dir, getAttributes, setAttributes, func(a *fsxattr) { a.project, a.flags = id, a.flags|inherit })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		err = ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("%s: cannot assign to project %d: %w", dir, id, err)
	}
	return nil
}

// Of returns the project of a directory; 0 is the project of all unassigned files.
func Of(dir string) (uint32, error) {
	var id uint32
	if err := attributes(dir, getAttributes, 0, func(a *fsxattr) { id = a.project }); err != nil {
		return 0, fmt.Errorf("%s: cannot read project: %w", dir, err)
	}
	return id, nil
}

// SetLimit sets the limit of a project on the file system that contains dir. A usage beyond the
// limit stays, but cannot grow.
func SetLimit(dir string, id uint32, limit Limit) error {
	want := dqblk{blocksHard: (limit.Bytes + blockUnit - 1) / blockUnit, inodesHard: limit.Inodes, valid: blockLimits | inodeLimits}
	if err := quota(dir, setQuota, id, &want); err != nil {
		return fmt.Errorf("%s: cannot limit project %d to %d bytes: %w", dir, id, limit.Bytes, err)
	}
	return nil
}

// Get returns the limit and the usage of a project.
func Get(dir string, id uint32) (Limit, Usage, error) {
	var have dqblk
	if err := quota(dir, getQuota, id, &have); err != nil {
		return Limit{}, Usage{}, fmt.Errorf("%s: cannot read the limit of project %d: %w", dir, id, err)
	}
	return Limit{Bytes: have.blocksHard * blockUnit, Inodes: have.inodesHard}, Usage{Bytes: have.space, Inodes: have.inodes}, nil
}

// Limited calls do such that limits apply, even for root: on a separate thread that drops
// CAP_SYS_RESOURCE and ends afterwards.
func Limited(do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var all [2]unix.CapUserData
		if err := unix.Capget(&header, &all[0]); err != nil {
			result <- err
			return
		}
		all[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&header, &all[0]); err != nil {
			result <- err
			return
		}
		result <- panics.Do("quota-limited write", do)
	}()
	return <-result
}

// quota calls quotactl_fd(2).
func quota(dir string, command uint32, id uint32, block *dqblk) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(command<<8|project), uintptr(id), uintptr(unsafe.Pointer(block)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// attributes reads the attributes of a directory, calls look with them, and writes them back if set
// is not zero.
func attributes(dir string, get, set uintptr, look func(*fsxattr)) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var a fsxattr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), get, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	look(&a)
	if set == 0 {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), set, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	return nil
}
