package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

// copyImage copies a disk image sparsely and makes it so many MiB large.
func copyImage(from, to string, mib int64) error {
	if out, err := exec.Command("cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy %s: %w: %s", from, err, out)
	}
	return os.Truncate(to, mib<<20)
}

// imageFile is a disk image as the partition library sees one.
type imageFile struct{ *os.File }

func (imageFile) GetSectorSize() uint      { return 512 }
func (imageFile) GetIOSize() (uint, error) { return 512, nil }
func (f imageFile) GetSize() uint64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return uint64(info.Size())
}
func (imageFile) KernelPartitionAdd(int, uint64, uint64) error    { return nil }
func (imageFile) KernelPartitionDelete(int) error                 { return nil }
func (imageFile) KernelPartitionResize(int, uint64, uint64) error { return nil }
func (imageFile) GetKernelLastPartitionNum() (int, error)         { return 0, nil }

func withTable(file string, change func(*os.File, *gpt.Table) error) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	table, err := gpt.Read(imageFile{f})
	if err != nil {
		return fmt.Errorf("%s: cannot read the partition table: %w", file, err)
	}
	return change(f, table)
}

// flipRoot inverts the bits of one byte in ROOT-A: of the file system's superblock, which every mount reads.
func flipRoot(file string) error {
	return withTable(file, func(f *os.File, t *gpt.Table) error {
		for _, p := range t.Partitions() {
			if p == nil || p.Name != "ROOT-A" {
				continue
			}
			at := int64(p.FirstLBA)*512 + 1024 + 100
			var b [1]byte
			if _, err := f.ReadAt(b[:], at); err != nil {
				return err
			}
			b[0] ^= 0xff
			_, err := f.WriteAt(b[:], at)
			return err
		}
		return errors.New("there is no partition ROOT-A")
	})
}

// addForeignPartition puts a partition of somebody else's behind the image's own. It takes all that is left, so that it is in the way
// of STATE and DATA, and it is not empty.
func addForeignPartition(file string) error {
	return withTable(file, func(f *os.File, t *gpt.Table) error {
		linux := uuid.MustParse("0fc63daf-8483-4772-8e79-3d69d8477de4") // Linux filesystem data
		_, p, err := t.AllocatePartition(t.LargestContiguousAllocatable(), "photos", linux)
		if err != nil {
			return err
		}
		if _, err := f.WriteAt([]byte("nobody may touch this"), int64(p.FirstLBA)*512); err != nil {
			return err
		}
		return t.Write()
	})
}
