package host

import (
	"golang.org/x/sys/unix"
)

// statfs returns the usage of the file system at a mount point.
func statfs(mountPoint string) (usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(mountPoint, &s); err != nil {
		return usage{}, err
	}
	size := uint64(s.Bsize)
	return usage{
		size: s.Blocks * size, free: s.Bfree * size, available: s.Bavail * size, files: s.Files, filesFree: s.Ffree, readOnly: s.Flags&unix.ST_RDONLY != 0,
	}, nil
}

func (r *reader) uname() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	r.Gauge("node_uname_info", "Labeled system information as provided by the uname system call.", 1,
		"sysname", unix.ByteSliceToString(u.Sysname[:]), "release", unix.ByteSliceToString(u.Release[:]), "version", unix.ByteSliceToString(u.Version[:]),
		"machine", unix.ByteSliceToString(u.Machine[:]), "nodename", unix.ByteSliceToString(u.Nodename[:]), "domainname", unix.ByteSliceToString(u.Domainname[:]))
	return nil
}
