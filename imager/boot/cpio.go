// Package boot makes what the firmware starts: the initramfs (a compressed cpio archive) and the unified kernel image
// (one PE file of loader stub, kernel, initramfs and command line).
//
// It works on bytes only; it does not choose what goes in, and it does not sign.
package boot

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Entry is one entry of the initramfs.
type Entry struct {
	Name string      // path without a leading slash
	Mode fs.FileMode // type and permission bits; regular file, folder, symbolic link or character device
	// Content of a regular file, or target of a symbolic link.
	Content []byte
	// Device number, for a character device.
	Major, Minor uint32
}

// Initramfs writes the entries as a cpio archive (kernel: Documentation/driver-api/early-userspace/buffer-format.rst,
// format "newc"), compressed with zstd. Owner is root, times are zero, the order is by name: the result depends on
// the entries only. Folders above an entry must be entries too.
func Initramfs(entries []Entry) ([]byte, error) {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	for i, e := range sorted {
		mode, err := unixMode(e)
		if err != nil {
			return nil, err
		}
		links := 1
		if e.Mode.IsDir() {
			links = 2
		}
		writeEntry(&b, i+1, mode, links, e)
	}
	writeEntry(&b, 0, 0, 1, Entry{Name: "TRAILER!!!"})

	// One encoder on one block stream: the output is the same on any number of processors. The kernel's decoder
	// takes windows of up to 128 MiB, but a small one keeps its memory small.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		return nil, err
	}
	return enc.EncodeAll(b.Bytes(), nil), nil
}

func writeEntry(b *bytes.Buffer, inode int, mode uint32, links int, e Entry) {
	fmt.Fprintf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		inode, mode, 0, 0, links, 0, len(e.Content), 0, 0, e.Major, e.Minor, len(e.Name)+1, 0)
	b.WriteString(e.Name)
	b.WriteByte(0)
	pad(b)
	b.Write(e.Content)
	pad(b)
}

// pad fills up to a multiple of 4 bytes.
func pad(b *bytes.Buffer) { b.Write(make([]byte, -b.Len()&3)) }

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
