package verity

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/containerd/go-dmverity/pkg/dm"
)

// TestOpen opens a sealed image on a real disk. It cannot test a changed byte, because the kernel
// would reset the machine. The boot test of init tests a changed byte.
func TestOpen(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("overwrites a disk: runs under the product kernel only (make kernel)")
	}
	const disk = "/dev/vda"
	name := image(t, 3000)
	plain, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Format(name, []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, sealed, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Verify(disk, p); err != nil {
		t.Error(err)
	}
	device, err := Open(disk, p, "test")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(device)
	if err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%s does not show the image: %d bytes of %d, %v", device, len(got), len(plain), err)
	}
	if err := os.WriteFile(device, []byte("changed"), 0o600); err == nil {
		t.Errorf("a write to %s succeeds", device)
	}
	if _, err := Open(disk, p, "test"); err == nil {
		t.Error("Open creates a second device with the same name")
	}
	control, err := dm.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	if err := control.RemoveDevice("test"); err != nil {
		t.Fatal(err)
	}
	broken := p
	broken.HashStart = 1 << 27 // beyond the end of the disk
	if _, err := Open(disk, broken, "test"); err == nil {
		t.Error("Open accepts a hash tree beyond the end of the disk")
	}
	if _, err := Open(disk, p, "test"); err != nil {
		t.Errorf("the name is still in use after a failed Open: %v", err)
	}
	if err := control.RemoveDevice("test"); err != nil {
		t.Fatal(err)
	}
}

// TestRequestSize checks that dmRequest has the size that the ioctl number dmRemove encodes.
func TestRequestSize(t *testing.T) {
	if size := unsafe.Sizeof(dmRequest{}); size != dmRemove>>16&0x3fff {
		t.Errorf("dmRequest has %d bytes, and dmRemove encodes another size", size)
	}
}

// TestOpenEIO checks that a read of a changed block fails while the machine continues. It also
// checks that the kernel removes the device after its last user.
func TestOpenEIO(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("overwrites a disk: runs under the product kernel only (make kernel)")
	}
	const disk = "/dev/vda"
	name := image(t, 3000)
	p, err := Format(name, []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	sealed[2*BlockSize] ^= 1
	if err := os.WriteFile(disk, sealed, 0o600); err != nil {
		t.Fatal(err)
	}
	device, err := OpenEIO(disk, p, "eio")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	if err := RemoveWhenUnused("eio"); err != nil {
		t.Error(err)
	}
	block := make([]byte, BlockSize)
	if _, err := f.ReadAt(block, 2*BlockSize); !errors.Is(err, syscall.EIO) {
		t.Errorf("a read of the changed block: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if device, err = OpenEIO(disk, p, "eio"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the device still exists after its last user has closed it: %v", err)
		}
	}
	if err := Remove("eio"); err != nil {
		t.Errorf("%s: %v", device, err)
	}
}
