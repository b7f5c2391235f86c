package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/vm"
)

// copyImage copies a disk image as a sparse file, and sets the size of the copy to mib MiB.
func copyImage(from, to string, mib int64) error {
	if out, err := exec.Command("cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy %s: %w: %s", from, err, out)
	}
	return os.Truncate(to, mib<<20)
}

// imageFile implements the block device interface of the GPT library for a disk image in a file.
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

// withTable opens a disk image, and calls change with the file and its partition table.
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

// flipRoot inverts the bits of one byte in the partition ROOT-A. The byte is in the superblock of
// the file system, so every mount reads it.
func flipRoot(file string) error { return flip(file, "ROOT-A") }

func flip(file, label string) error {
	return withTable(file, func(f *os.File, t *gpt.Table) error {
		at, err := begin(t, label)
		if err != nil {
			return err
		}
		at += 1024 + 100
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			return err
		}
		b[0] ^= 0xff
		_, err = f.WriteAt(b[:], at)
		return err
	})
}

// zeroSize is the number of bytes that zero overwrites at the beginning and at the end of a
// partition: more than the header of an encrypted partition, and more than a wipe overwrites.
const zeroSize = 32 << 20

// zero overwrites the beginning and the end of a partition with zeros. Afterwards the machine
// considers the partition blank: the end of an encrypted partition has ciphertext before.
func zero(file, label string) error {
	return withTable(file, func(f *os.File, t *gpt.Table) error {
		p, err := named(t, label)
		if err != nil {
			return err
		}
		first, end := int64(p.FirstLBA)*512, int64(p.LastLBA+1)*512
		zeros := make([]byte, min(zeroSize, end-first))
		_, err = f.WriteAt(zeros, first)
		_, atEnd := f.WriteAt(zeros, end-int64(len(zeros)))
		return errors.Join(err, atEnd)
	})
}

// plain replaces the content of a partition by an ext4 file system with the label of the partition.
func plain(file, label string) error {
	if err := zero(file, label); err != nil {
		return err
	}
	return withTable(file, func(_ *os.File, t *gpt.Table) error {
		at, err := begin(t, label)
		if err != nil {
			return err
		}
		out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-L", label, "-E", fmt.Sprintf("offset=%d", at), file, "128M").CombinedOutput()
		if err != nil {
			return fmt.Errorf("cannot format %s: %w: %s", label, err, out)
		}
		return nil
	})
}

// begin returns the offset in bytes of the partition with this label.
func begin(t *gpt.Table, label string) (int64, error) {
	p, err := named(t, label)
	if err != nil {
		return 0, err
	}
	return int64(p.FirstLBA) * 512, nil
}

// named returns the partition with this label.
func named(t *gpt.Table, label string) (*gpt.Partition, error) {
	for _, p := range t.Partitions() {
		if p != nil && p.Name == label {
			return p, nil
		}
	}
	return nil, fmt.Errorf("there is no partition %s", label)
}

// fillESP fills the ESP with a file, so that only leave MiB remain free.
func fillESP(file string, leave int64) error {
	return withTable(file, func(_ *os.File, t *gpt.Table) error {
		at, err := begin(t, "ESP")
		if err != nil {
			return err
		}
		esp := fmt.Sprintf("%s@@%d", file, at)
		listing, err := exec.Command("mdir", "-i", esp, "::/").CombinedOutput()
		if err != nil {
			return fmt.Errorf("cannot list the ESP: %w: %s", err, listing)
		}
		m := regexp.MustCompile(`([0-9 ]+) bytes free`).FindStringSubmatch(string(listing))
		if m == nil {
			return fmt.Errorf("the listing of the ESP lacks its free space: %s", listing)
		}
		free, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(m[1]), " ", ""), 10, 64)
		if err != nil {
			return err
		}
		filler := file + ".filler"
		defer os.Remove(filler)
		if err := os.WriteFile(filler, make([]byte, free-leave<<20), 0o600); err != nil {
			return err
		}
		if out, err := exec.Command("mcopy", "-i", esp, filler, "::/filler").CombinedOutput(); err != nil {
			return fmt.Errorf("cannot fill the ESP: %w: %s", err, out)
		}
		return nil
	})
}

// damageVerb damages the disk or the firmware variables of a machine that is off.
func (s *story) damageVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 3, "damage NAME flip PARTITION | zero PARTITION | plain PARTITION | fill MIB | variables | tpm | disk")
	m := s.machine(ts, args[0])
	if m.Running() {
		ts.Fatalf("damage: machine %s is on, but must be off", args[0])
	}
	disk := m.DiskPath("disk0")
	switch {
	case args[1] == "flip" && len(args) == 3:
		ts.Check(flip(disk, args[2]))
	case args[1] == "zero" && len(args) == 3:
		ts.Check(zero(disk, args[2]))
	case args[1] == "plain" && len(args) == 3:
		ts.Check(plain(disk, args[2]))
	case args[1] == "fill" && len(args) == 3:
		leave, err := strconv.ParseInt(args[2], 10, 64)
		ts.Check(err)
		ts.Check(fillESP(disk, leave))
	case args[1] == "variables" && len(args) == 2:
		ts.Check(m.ResetFirmwareVars())
	case args[1] == "tpm" && len(args) == 2:
		ts.Check(vm.ReplaceTPM(m))
	case args[1] == "disk" && len(args) == 2:
		old, err := os.Stat(disk)
		ts.Check(err)
		ts.Check(os.Remove(disk))
		ts.Check(copyImage(filepath.Join(*imageDir, "disk.raw"), disk, old.Size()>>20))
	default:
		ts.Fatalf("damage: unknown kind of damage %q", args[1:])
	}
	s.note("damage %s", strings.Join(args, " "))
}

// diskVerb replaces the content of the first disk of a machine: by the disk of another machine, by
// the image, or by zeros.
func (s *story) diskVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "disk NAME MACHINE|image|blank")
	m := s.machine(ts, args[0])
	first := m.DiskPath("first")
	info, err := os.Stat(first)
	ts.Check(err)
	from := filepath.Join(*imageDir, "disk.raw")
	if args[1] != "image" && args[1] != "blank" {
		from = s.machine(ts, args[1]).DiskPath("disk0")
		if s.machine(ts, args[1]).Running() {
			ts.Fatalf("disk: machine %s is on, but must be off", args[1])
		}
	}
	if m.Running() {
		ts.Fatalf("disk: machine %s is on, but must be off", args[0])
	}
	if args[1] == "blank" {
		ts.Check(os.Truncate(first, 0))
		ts.Check(os.Truncate(first, info.Size()))
	} else {
		ts.Check(copyImage(from, first, info.Size()>>20))
	}
	s.note("the first disk of %s has a new content: %s", args[0], args[1])
}

// swapVerb exchanges a disk of a machine with a blank disk of the same size. A second call restores
// the original disk.
func (s *story) swapVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "swap NAME DISK")
	m := s.machine(ts, args[0])
	if m.Running() {
		ts.Fatalf("swap: machine %s is on, but must be off", args[0])
	}
	path := m.DiskPath(args[1])
	aside, third := path+".aside", path+".third"
	info, err := os.Stat(path)
	ts.Check(err)
	if _, err := os.Stat(aside); errors.Is(err, fs.ErrNotExist) {
		f, err := os.Create(aside)
		ts.Check(err)
		ts.Check(errors.Join(f.Truncate(info.Size()), f.Close()))
	}
	for _, move := range [][2]string{{path, third}, {aside, path}, {third, aside}} {
		ts.Check(os.Rename(move[0], move[1]))
	}
	s.note("disk %s of %s is exchanged", args[1], args[0])
}

// addForeignPartition adds a nonempty partition of another system after the partitions of the
// image. The partition takes all remaining space, so there is no space for STATE and DATA.
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
