package safefile

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Stamp returns a text that changes when a file is replaced by rename, as WriteFile does, even
// within the resolution of the file system's clock and with the same size.
func Stamp(info fs.FileInfo) string {
	stamp := fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp += fmt.Sprint(" ", s.Ino)
	}
	return stamp
}
