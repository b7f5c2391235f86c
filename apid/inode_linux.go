package apid

import (
	"io/fs"
	"syscall"
)

// inode tells a file from another that was renamed over it within the resolution of the file system's clock.
func inode(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}
