package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/mkfs"
)

// names is the namespace of the GUIDs that the imager derives from the names of parts. Derived
// GUIDs are the same in equal images.
var names = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://orlop.dev/image"))

// derivedGUID returns the GUID of a part of the image, for example "disk" or "ESP". It depends only
// on the root hash and the name of the part.
func derivedGUID(rootHash []byte, part string) uuid.UUID {
	return uuid.NewSHA1(names, fmt.Appendf(nil, "%x %s", rootHash, part))
}

// makeErofs writes the tree below dir as an erofs image. All files have the time `epoch`, in
// seconds since 1970, and the owner root. The image has a fixed UUID and no extended attributes.
func makeErofs(dir, image string, p RootProfile, epoch int64) error {
	args := []string{"--quiet", "--all-root", "-x-1", fmt.Sprintf("-T%d", epoch), "-U" + names.String()}
	switch p.Compression {
	case "lz4":
		args = append(args, "-zlz4")
	case "lz4hc":
		args = append(args, "-zlz4hc,3") // higher levels take ten times as long, and save 2 %
	}
	if p.Compression != "none" {
		args = append(args, fmt.Sprintf("-C%d", p.ClusterSize))
	}
	if err := os.Remove(image); err != nil && !os.IsNotExist(err) {
		return err
	}
	if out, err := exec.Command("mkfs.erofs", append(args, image, dir)...).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.erofs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// diskPlan describes the content of a disk image.
type diskPlan struct {
	Sizes    layout.Sizes
	RootHash []byte
	PartUUID uuid.UUID         // of ROOT-A
	Root     string            // file with the root and its hash tree
	ESP      map[string][]byte // files of the ESP by absolute path
	Epoch    int64             // time of the files, seconds since 1970
	Work     string            // directory for intermediate files
}

// makeDisk writes a sparse disk image with a GPT and three partitions: the ESP, ROOT-A with the
// root, and an empty ROOT-B. At its first boot, a machine extends the table to its disk and adds
// the other partitions.
func makeDisk(image string, p diskPlan) error {
	size := int64(layout.Reserve)
	for _, part := range layout.System(p.Sizes) {
		size += int64(part.Size)
	}
	f, err := os.OpenFile(image, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	device, err := gpt.DeviceFromFile(f)
	if err != nil {
		return err
	}
	table, err := gpt.New(device, gpt.WithDiskGUID(derivedGUID(p.RootHash, "disk")))
	if err != nil {
		return fmt.Errorf("%s: cannot make partition table: %w", image, err)
	}
	id := map[string]uuid.UUID{layout.ESP: derivedGUID(p.RootHash, "ESP"), layout.RootA: p.PartUUID, layout.RootB: derivedGUID(p.RootHash, "ROOT-B")}
	start := map[string]int64{}
	for _, part := range layout.System(p.Sizes) {
		_, made, err := table.AllocatePartition(part.Size, part.Label, part.Type, gpt.WithUniqueGUID(id[part.Label]))
		if err != nil {
			return fmt.Errorf("%s: partition %s: %w", image, part.Label, err)
		}
		start[part.Label] = int64(made.FirstLBA) * int64(device.GetSectorSize())
	}
	if err := table.Write(); err != nil {
		return fmt.Errorf("%s: cannot write partition table: %w", image, err)
	}
	if err := copyInto(f, start[layout.RootA], p.Root, int64(p.Sizes.Root)); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := makeESP(image, start[layout.ESP], int64(p.Sizes.ESP), p.Epoch, p.ESP, p.Work); err != nil {
		return fmt.Errorf("ESP: cannot write file system: %w", err)
	}
	return nil
}

// copyInto copies a file to an offset of the disk, in bytes. It fails if the file has more than
// limit bytes.
func copyInto(disk *os.File, offset int64, name string, limit int64) error {
	src, err := os.Open(name)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if info.Size() > limit {
		return fmt.Errorf("%s: has %d MiB, the partition %d MiB: enlarge disk.root in the profile", name, info.Size()>>20, limit>>20)
	}
	_, err = io.Copy(io.NewOffsetWriter(disk, offset), src)
	return err
}

// makeESP writes a FAT32 file system with files to a part of a disk image. start and size are in
// bytes. dosfstools makes the empty file system, and mtools copies the files to it. Both use the
// time `epoch`, in seconds since 1970. work is the directory for intermediate files.
func makeESP(image string, start, size, epoch int64, files map[string][]byte, work string) error {
	run := func(argv ...string) error {
		c := exec.Command(argv[0], argv[1:]...)
		c.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), "TZ=UTC", "LC_ALL=C")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if err := run("mkfs.fat", "--invariant", "-F32", fmt.Sprintf("-s%d", mkfs.FAT32Cluster(uint64(size))), "-nESP", fmt.Sprintf("--offset=%d", start/512), image, fmt.Sprint(size/1024)); err != nil {
		return err
	}
	drive := fmt.Sprintf("%s@@%d", image, start)
	made := map[string]bool{}
	for _, name := range sortedKeys(files) {
		for _, dir := range parentDirs(name) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := run("mmd", "-i", drive, "::"+dir); err != nil {
				return err
			}
		}
		source := filepath.Join(work, "esp-file")
		if err := os.WriteFile(source, files[name], 0o644); err != nil {
			return err
		}
		if err := run("mcopy", "-i", drive, source, "::"+name); err != nil {
			return err
		}
	}
	return nil
}

// parentDirs returns the parent directories of an absolute path, topmost first, without "/".
func parentDirs(name string) []string {
	var all []string
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		all = append([]string{dir}, all...)
	}
	return all
}

// packing describes the effort of a compression. The window is in bytes. A reader needs memory for
// the whole window.
type packing struct {
	level  zstd.EncoderLevel
	window int
}

// The programs of the root contain the same code, so a window over several programs saves more than
// a higher level. Measured with a root of 282 MiB, in seconds of processor time:
//
//	default level, window  4 MiB: 89.0 MiB,  1.6 s
//	better level,  window  4 MiB: 83.9 MiB,  4 s
//	best level,    window  4 MiB: 78.9 MiB, 16 s
//	best level,    window 32 MiB: 72.1 MiB, 18 s
//
// With a root of 305 MiB, the best level makes 78.7 MiB with a window of 32 MiB, and 74.6 MiB with
// a window of 128 MiB.
var (
	// forMachine is for files that machines read. The memory of machines limits the window. The
	// level is not the best, because each test of an upgrade compresses a bundle.
	forMachine = packing{zstd.SpeedBetterCompression, bundle.Window}
	// forDownload is for files that only other computers read. The program zstd accepts a window of
	// up to 128 MiB without an option.
	forDownload = packing{zstd.SpeedBestCompression, 128 << 20}
)

// compress writes a zstd copy of the file src to dst. It uses the Go encoder, because go.sum pins
// its version and thus the bytes. The zstd of the computer is not pinned.
func compress(src, dst string, how packing) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	// Two workers pipeline the stages of one stream; the result does not depend on their number.
	enc, err := zstd.NewWriter(out, zstd.WithEncoderLevel(how.level), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(how.window))
	if err != nil {
		return err
	}
	if _, err := io.Copy(enc, in); err != nil {
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	return out.Close()
}
