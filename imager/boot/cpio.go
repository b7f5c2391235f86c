// Package boot makes the files that the firmware starts: the initramfs (a compressed cpio archive)
// and the unified kernel image (a PE file with loader stub, kernel, initramfs and command line).
//
// The package only converts bytes. It does not select the content of the files, and does not sign.
package boot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Entry is a file of the initramfs.
type Entry struct {
	Name string // path without a leading slash
	// type and permission bits; regular file, directory, symbolic link or character device
	Mode fs.FileMode
	// Content of a regular file, or target of a symbolic link.
	Content []byte
	// Device number, for a character device.
	Major, Minor uint32
}

// Initramfs returns the entries as a cpio archive (kernel:
// Documentation/driver-api/early-userspace/buffer-format.rst, format "newc"), compressed with zstd.
// root owns all files, all times are zero, and the files are sorted by name. The result therefore
// depends only on the entries. The directories above an entry must be entries, too. A caller can
// append another archive, because the kernel accepts several archives in sequence.
func Initramfs(entries []Entry) ([]byte, error) {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	// Without concurrency, the output is the same on any number of processors. The kernel's decoder
	// accepts windows of up to 128 MiB, but needs less memory with a small window. The best level
	// would take six times as long, for an archive that is 7 % smaller.
	var out bytes.Buffer
	enc, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		return nil, err
	}
	a := archive{to: enc}
	for i, e := range sorted {
		mode, err := unixMode(e)
		if err != nil {
			return nil, err
		}
		links := 1
		if e.Mode.IsDir() {
			links = 2
		}
		a.entry(i+1, mode, links, e)
	}
	a.entry(0, 0, 1, Entry{Name: "TRAILER!!!"})
	err = errors.Join(a.err, enc.Close())
	return out.Bytes(), err
}

// archive writes a cpio archive. Each header and each content begins at a multiple of 4 bytes.
type archive struct {
	to  io.Writer
	n   int   // bytes written
	err error // first error
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.to.Write(b)
	}
	a.n += len(b)
}

func (a *archive) pad() { a.write(make([]byte, -a.n&3)) }

func (a *archive) entry(inode int, mode uint32, links int, e Entry) {
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		inode, mode, 0, 0, links, 0, len(e.Content), 0, 0, e.Major, e.Minor, len(e.Name)+1, 0, e.Name))
	a.pad()
	a.write(e.Content)
	a.pad()
}

func unixMode(e Entry) (uint32, error) {
	perm := uint32(e.Mode.Perm())
	switch e.Mode.Type() {
	case 0:
		return 0o100000 | perm, nil
	case fs.ModeDir:
		return 0o040000 | perm, nil
	case fs.ModeSymlink:
		return 0o120777, nil
	case fs.ModeDevice | fs.ModeCharDevice:
		return 0o020000 | perm, nil
	}
	return 0, fmt.Errorf("%s: cannot put a file of type %v into the initramfs", e.Name, e.Mode.Type())
}
