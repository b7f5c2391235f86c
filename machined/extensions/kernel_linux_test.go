package extensions

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// sampleImage copies testdata/sample.img and returns the path of the copy and its statement.
// `imager extension` has made both files from a file with 40000 letters x and a link to this file.
func sampleImage(t *testing.T) (string, extension.Statement) {
	t.Helper()
	var s extension.Statement
	text, err := os.ReadFile("testdata/sample.json")
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile("testdata/sample.img")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, s
}

// TestKernel mounts an image and compares its files with its statement. It then mounts an overlay
// in which files of another directory hide files of the image. Last, it checks that the unmount
// releases the loop device and the device of dm-verity.
func TestKernel(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("makes devices: runs under the product kernel only (make kernel)")
	}
	image, s := sampleImage(t)
	target := filepath.Join(t.TempDir(), "mount")
	if err := Linux().Mount(image, target, s); err != nil {
		t.Fatal(err)
	}
	if err := compare(target, s); err != nil {
		t.Error(err)
	}
	want := bytes.Repeat([]byte("x"), 40000)
	if got, err := os.ReadFile(filepath.Join(target, "usr/lib/firmware/sample/link")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := os.WriteFile(filepath.Join(target, "usr/x"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write: %v", err)
	}

	own, joined := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(own, "lib/firmware/sample"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "lib/firmware/sample/link"), []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := overlay([]string{target})
	m.Target, m.Data = joined, "lowerdir="+own+":"+target+"/usr"
	if err := m.Do(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(joined, "lib/firmware/sample/link")); string(got) != "own" {
		t.Errorf("the file of the system is %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(joined, "lib/firmware/sample/blob")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file of the extension has %d bytes, %v", len(got), err)
	}
	if err := errors.Join(mount.Unmount(joined), Linux().Unmount(target)); err != nil {
		t.Fatal(err)
	}
	mountAgain(t, image, target, s)
}

// mountAgain mounts an image again. It retries until the kernel has removed the former devices of
// the image.
func mountAgain(t *testing.T, image, target string, s extension.Statement) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := Linux().Mount(image, target, s)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the devices stay after the unmount: %v", err)
		}
	}
	if err := Linux().Unmount(target); err != nil {
		t.Error(err)
	}
}

// TestDamaged checks that a read of a damaged file fails with an error (EIO), instead of a panic of
// the kernel.
func TestDamaged(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("makes devices: runs under the product kernel only (make kernel)")
	}
	image, s := sampleImage(t)
	s.Name = "damaged"
	content, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	content[4096+100] ^= 1 // the compressed content of the file
	if err := os.WriteFile(image, content, 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "mount")
	if err := Linux().Mount(image, target, s); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(target, "usr/lib/firmware/sample/blob")); !errors.Is(err, syscall.EIO) {
		t.Errorf("a read of damaged content: %v", err)
	}
	if err := Linux().Unmount(target); err != nil {
		t.Error(err)
	}
}

// TestSampleImage checks that the image of these tests has the digest of its statement.
func TestSampleImage(t *testing.T) {
	image, s := sampleImage(t)
	content, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readVerified(bytes.NewReader(content), s.Image.SHA256, s.Image.Size); err != nil {
		t.Error(err)
	}
}
