package boot

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGuard runs the bytes of the guard on this processor, in a program that acts as the firmware.
// If HandleProtocol succeeds, the guard clears the load options and jumps to the stub, with the
// image handle and the system table unchanged. If HandleProtocol fails, the guard does not start
// the stub.
func TestGuard(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) error {
		c := exec.Command(name, args...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		if err != nil && len(out) > 0 {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return err
	}
	source, err := filepath.Abs("testdata/guard.s")
	if err != nil {
		t.Fatal(err)
	}
	const at, entry = 0x7000, 0x7100 // testdata/guard.s has the stub 256 bytes after the guard, too
	for name, c := range map[string]struct {
		status string
		code   []byte
		passes bool
	}{
		"HandleProtocol succeeds":                             {"0", guard(at, entry), true},
		"HandleProtocol fails":                                {"14", guard(at, entry), true},
		"a guard that does nothing":                           {"0", append([]byte{0xe9, 251, 0, 0, 0}, make([]byte, 20)...), false},
		"a guard that jumps to a wrong address":               {"0", guard(at, entry+21), false},
		"a guard that returns instead of jumping to the stub": {"0", []byte{0xc3}, false},
	} {
		if err := os.WriteFile(filepath.Join(dir, "guard.bin"), c.code, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run("as", "--defsym", "STATUS="+c.status, "-o", "guard.o", source); err != nil {
			t.Fatal(err)
		}
		if err := run("ld", "-o", "guard", "guard.o"); err != nil {
			t.Fatal(err)
		}
		if err := run("./guard"); (err == nil) != c.passes {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGuardBehindTheStub checks the backward jump: the stub precedes the guard in an image.
func TestGuardBehindTheStub(t *testing.T) {
	code := guard(0x20000, 0x4000)
	distance := int32(uint32(code[guardJump]) | uint32(code[guardJump+1])<<8 | uint32(code[guardJump+2])<<16 | uint32(code[guardJump+3])<<24)
	if to := 0x20000 + guardJump + 4 + int(distance); code[guardJump-1] != 0xe9 || to != 0x4000 {
		t.Errorf("the guard jumps to %#x, want 0x4000", to)
	}
}
