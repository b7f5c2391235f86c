//go:build !cgo

// These tests run only without cgo, as machined does. With cgo, a process has threads that Go does
// not know, and the system calls for all threads fail.

package diskprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/mkfs/mkfstest"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
)

const (
	role     = "DISKPROBE_TEST_ROLE" // environment variable that selects an action of TestMain
	stranger = 65534                 // user ID of the process
)

// TestMain runs the action that the environment variable role selects: the examining process, or a
// process that misbehaves. Without this variable, it runs the tests.
func TestMain(m *testing.M) {
	// The process changes its user itself: the test binary is in a directory that only root can
	// read.
	if os.Getenv(role) != "" && os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(stranger), syscall.Setuid(stranger)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "examine":
		os.Exit(Main())
	case "allocate":
		_ = answer(os.Stdin, os.Stdout, func() error {
			if err := confineSelf(); err != nil {
				return err
			}
			var kept [][]byte
			for {
				b := make([]byte, 1<<20)
				for i := range b {
					b[i] = 1
				}
				kept = append(kept, b)
				runtime.KeepAlive(kept)
			}
		})
	case "block":
		_ = answer(os.Stdin, os.Stdout, func() error {
			if err := confineSelf(); err != nil {
				return err
			}
			<-make(chan struct{})
			return nil
		})
	case "chatter":
		for {
			fmt.Println(strings.Repeat("x", 1000))
		}
	case "look":
		_ = answer(os.Stdin, os.Stdout, func() error {
			err := confineSelf()
			if err == nil {
				err = lookAround()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
			return nil
		})
		os.Exit(0)
	}
	os.Exit(2)
}

// start runs the examining process for a disk, as machined does, and returns its result. The
// parameter what selects the action of the process (TestMain).
func start(t *testing.T, ctx context.Context, what string, d Device, f *File) (Result, error) {
	t.Helper()
	q := Request{Disk: d.Path, File: f}
	disk, err := os.Open(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	files := []*os.File{disk}
	for _, p := range d.Partitions {
		part, err := os.Open(p.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer part.Close()
		q.Partitions, files = append(q.Partitions, p.Number), append(files, part)
	}
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(Environment, role+"="+what)
	c.Stdin, c.Stderr, c.ExtraFiles = bytes.NewReader(text), &complaints, files
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(io.LimitReader(out, MaxResult+1))
	if err != nil || len(said) > MaxResult {
		_ = c.Process.Kill()
	}
	if err := errors.Join(err, c.Wait()); err != nil {
		return Result{}, fmt.Errorf("%w: %.500s", err, complaints.String())
	}
	return decode(said, d, f)
}

// diskFileOf makes a file of 64 MiB as a disk, with a GPT of two partitions. The first partition
// has the superblock of an ext4 file system.
func diskFileOf(t *testing.T) Device {
	t.Helper()
	const size = 64 << 20
	name := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	device, err := gpt.DeviceFromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	table, err := gpt.New(parttable.Ordered(device))
	if err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"first\n", "second"} {
		if _, _, err := table.AllocatePartition(20<<20, label, uuid.New()); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	super := make([]byte, 1024)
	copy(super[0x38:], []byte{0x53, 0xef})
	copy(super[0x60:], []byte{0xc0, 2})
	copy(super[0x78:], "photos")
	if _, err := f.WriteAt(super, 1<<20+1024); err != nil {
		t.Fatal(err)
	}
	return Device{Name: "disk", Path: name, Size: size, SectorSize: 512}
}

// TestExamination checks that the confined process reads the content of a disk.
func TestExamination(t *testing.T) {
	a, err := start(t, t.Context(), "examine", diskFileOf(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Problem != "" || a.Table != "gpt" || !a.Mirrored || len(a.Entries) != 2 || a.Entries[0].Label != "first?" || a.Entries[1].Label != "second" {
		t.Errorf("%+v", a)
	}
	if c := a.Content(1); c.Kind != "ext4" || c.Label != "photos" {
		t.Errorf("the first partition holds %+v", c)
	}
	if c := a.Content(2); c.Kind != "" {
		t.Errorf("the second partition holds %+v", c)
	}
	member := diskFileOf(t)
	raid, err := os.OpenFile(member.Path, os.O_WRONLY, 0)
	if err == nil {
		_, err = raid.WriteAt([]byte("Intel Raid ISM Cfg Sig. 1.3.00"), int64(member.Size)-1024)
		raid.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if a, err := start(t, t.Context(), "examine", member, nil); err != nil || a.Table != "gpt" || a.Whole.Kind != "Intel RAID member" {
		t.Errorf("a member of a RAID array with a partition table: %+v, %v", a, err)
	}
	blank := filepath.Join(t.TempDir(), "blank")
	if err := errors.Join(os.WriteFile(blank, nil, 0o600), os.Truncate(blank, 32<<20)); err != nil {
		t.Fatal(err)
	}
	d := Device{Name: "blank", Path: blank, Size: 32 << 20}
	if a, err := start(t, t.Context(), "examine", d, nil); err != nil || a.Problem != "" || a.Table != "" {
		t.Errorf("a blank disk: %+v, %v", a, err)
	}
	end := []byte("one byte at the end")
	f, err := os.OpenFile(blank, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(end, 32<<20-int64(len(end)))
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if a, err := start(t, t.Context(), "examine", d, nil); err != nil || a.Table != superblock.UnknownData {
		t.Errorf("a disk with data at its end: %+v, %v", a, err)
	}
}

// TestBlockDevice checks that the confined process reads the content of a block device, gets its
// size by ioctl, and that other ioctl requests fail.
func TestBlockDevice(t *testing.T) {
	mkfstest.Overwrites(t)
	devices, err := List(Sys)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Path == mkfstest.Disk })
	if i < 0 || devices[i].Size == 0 || devices[i].Identity == "" {
		t.Fatalf("the disk %s is missing: %+v", mkfstest.Disk, devices)
	}
	d := devices[i]
	if a, err := start(t, t.Context(), "examine", d, nil); err != nil || a.Table != "" || a.Size != d.Size {
		t.Errorf("a blank disk: %+v, %v", a, err)
	}
	disk, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	raid := []byte("\xfc\x4e\x2b\xa9")
	_, err = disk.WriteAt(raid, int64(d.Size)-8<<10)
	if err := errors.Join(err, disk.Sync()); err != nil {
		t.Fatal(err)
	}
	if a, err := start(t, t.Context(), "examine", d, nil); err != nil || a.Table != "a whole-disk Linux RAID member" {
		t.Errorf("a member of a RAID: %+v, %v", a, err)
	}
	if now, err := List(Sys); err != nil || now[i].Written == d.Written || now[i].Identity != d.Identity {
		t.Errorf("after a write: %+v, %v", now[i], err)
	}
	if _, err := start(t, t.Context(), "look", d, nil); err != nil && !errors.Is(err, errInvalid) {
		t.Error(err)
	}
	_, err = disk.WriteAt(make([]byte, len(raid)), int64(d.Size)-8<<10)
	if err := errors.Join(err, disk.Sync()); err != nil {
		t.Fatal(err)
	}
}

// TestConfined checks that the process cannot open files, connect, make changes or gain privileges.
func TestConfined(t *testing.T) {
	// "look" does not examine the disk, so its result is invalid.
	if _, err := start(t, t.Context(), "look", diskFileOf(t), nil); err != nil && !errors.Is(err, errInvalid) {
		t.Error(err)
	}
}

// lookAround tries operations that no examination needs. It returns an error if the kernel permits
// one of them.
func lookAround() error {
	if os.Getuid() == 0 {
		return errors.New("the process runs as root")
	}
	for name, do := range map[string]func() error{
		"a file":                 func() error { _, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0); return err },
		"its own program":        func() error { _, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0); return err },
		"another program":        func() error { return unix.Exec("/proc/self/exe", nil, nil) },
		"a socket":               func() error { _, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
		"a netlink socket":       func() error { _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0); return err },
		"a signal to its parent": func() error { return unix.Kill(unix.Getppid(), 0) },
		"a user namespace":       func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"a discard":              func() error { return unix.IoctlSetInt(diskFile, unix.BLKDISCARD, 0) },
		"a new table":            func() error { return unix.IoctlSetInt(diskFile, unix.BLKRRPART, 0) },
	} {
		if err := do(); !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: got %w", name, err)
		}
	}
	if _, err := unix.Pwrite(diskFile, []byte("x"), 0); err == nil {
		return errors.New("the process has written to the disk")
	}
	return nil
}

// TestBadProcess checks that a process that allocates or waits without end, or writes too much, is
// killed and gives no result.
func TestBadProcess(t *testing.T) {
	d := diskFileOf(t)
	for what, limit := range map[string]time.Duration{"allocate": time.Minute, "block": time.Second, "chatter": time.Minute} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		a, err := start(t, ctx, what, d, nil)
		if err == nil {
			t.Errorf("%s: %+v", what, a)
		}
		if what == "allocate" && ctx.Err() != nil {
			t.Errorf("%s: the process did not end by the expected limit: %v", what, err)
		}
		t.Logf("%s: %v", what, err)
		cancel()
	}
}
