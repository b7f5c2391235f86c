// Package projectquota limits the disk usage below a directory by the project quotas of the kernel.
// A project is a number in the attributes of each file. New files inherit the project of their
// directory. The file system counts the blocks and inodes of each project and enforces the limits
// of the project.
//
// The package needs an ext4 file system with the features quota and project, which mkfs.Ext4
// enables on DATA. At the mount, the kernel needs the module quota_v2. The kernel counts the usage
// from the mount on, and enforces limits after the call of Enforce. A write beyond the limit fails
// with EDQUOT. statfs(2) of a directory of a project returns the limit as the size of the file
// system.
//
// The quotas have two gaps. Limits do not apply to processes with CAP_SYS_RESOURCE
// (fs/quota/dquot.c, ignore_hardlimit). The owner of a file can change its project, except in a
// user namespace (fs/ioctl.c, fileattr_set_prepare).
//
// The numbers of commands and the structs are from quotactl(2) and from include/uapi/linux/quota.h
// and fs.h of the kernel. The caller selects the project numbers.
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

// ErrUnsupported is the error for a file system without project quotas.
var ErrUnsupported = errors.New("the file system has no project quotas, because an earlier version created it; reset the machine's data to create a new file system")

// Limit is the largest usage of a project. A field that is 0 sets no limit.
type Limit struct {
	Bytes  uint64 // SetLimit rounds it up to a multiple of 1 KiB, the unit of the kernel
	Inodes uint64
}

// Usage is the present usage of a project.
type Usage struct {
	Bytes, Inodes uint64
}

// These are commands of quotactl(2) and values of its arguments, from include/uapi/linux/quota.h.
const (
	quotaOn     = 0x800002
	getQuota    = 0x800007
	setQuota    = 0x800008
	project     = 2 // PRJQUOTA; the types are user, group and project
	blockUnit   = 1024
	blockLimits = 1
	inodeLimits = 4
)

// dqblk has the layout of struct if_dqblk.
type dqblk struct {
	blocksHard, blocksSoft uint64 // in units of blockUnit
	space                  uint64 // bytes
	inodesHard, inodesSoft uint64
	inodes                 uint64
	blockTime, inodeTime   uint64
	valid                  uint32
	_                      uint32
}

// These values are from include/uapi/linux/fs.h.
const (
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit       = 0x200      // FS_XFLAG_PROJINHERIT
)

// fsxattr has the layout of struct fsxattr.
type fsxattr struct {
	flags, extent, extents, project, cowExtent uint32
	_                                          [8]byte
}

// Enforce makes the kernel enforce the limits of all projects on the file system that contains dir,
// until the file system is unmounted. Repeated calls are harmless. It fails with ErrUnsupported if
// the file system has no project quotas.
func Enforce(dir string) error {
	err := quota(dir, quotaOn, 0, &dqblk{})
	switch {
	case err == nil, errors.Is(err, unix.EEXIST): // already enabled
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%s: cannot enforce limits: %w", dir, ErrUnsupported)
	}
	return fmt.Errorf("%s: cannot enforce limits: %w", dir, err)
}

// Assign assigns a directory to a project. New files in the directory inherit the project; existing
// files do not change.
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

// Of returns the project of a directory. All files without an assigned project have project 0.
func Of(dir string) (uint32, error) {
	var id uint32
	if err := attributes(dir, getAttributes, 0, func(a *fsxattr) { id = a.project }); err != nil {
		return 0, fmt.Errorf("%s: cannot read project: %w", dir, err)
	}
	return id, nil
}

// SetLimit sets the limit of a project on the file system that contains dir. If the usage is
// already larger, the files stay, and the usage cannot grow.
func SetLimit(dir string, id uint32, limit Limit) error {
	want := dqblk{blocksHard: (limit.Bytes + blockUnit - 1) / blockUnit, inodesHard: limit.Inodes, valid: blockLimits | inodeLimits}
	if err := quota(dir, setQuota, id, &want); err != nil {
		return fmt.Errorf("%s: cannot limit project %d to %d bytes: %w", dir, id, limit.Bytes, err)
	}
	return nil
}

// Get returns the limit and the usage of a project on the file system that contains dir.
func Get(dir string, id uint32) (Limit, Usage, error) {
	var have dqblk
	if err := quota(dir, getQuota, id, &have); err != nil {
		return Limit{}, Usage{}, fmt.Errorf("%s: cannot read the limit of project %d: %w", dir, id, err)
	}
	return Limit{Bytes: have.blocksHard * blockUnit, Inodes: have.inodesHard}, Usage{Bytes: have.space, Inodes: have.inodes}, nil
}

// Limited calls the function do and returns its error. Limits apply to do even if the process is
// root, because do runs on a thread without CAP_SYS_RESOURCE. The thread ends when do has returned.
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

// quota calls quotactl_fd(2) for a project on the file system that contains dir.
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

// The function attributes reads the attributes of a directory and calls the function look, which
// can change them. If set is not 0, attributes then writes the result. get and set are ioctl
// numbers.
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
