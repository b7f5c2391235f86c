package durable

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Stamp is a text that is another one when a file was replaced by rename, as WriteFile does: also
// within the resolution of the file system's clock, and by as many bytes.
func Stamp(info fs.FileInfo) string {
	stamp := fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp += fmt.Sprint(" ", s.Ino)
	}
	return stamp
}
