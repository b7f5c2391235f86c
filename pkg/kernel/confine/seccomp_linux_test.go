package confine

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestProgram compiles rules to a seccomp filter, and runs the filter in a BPF interpreter: for
// system calls that the rules permit, and for other system calls.
func TestProgram(t *testing.T) {
	const allow, refuse = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | int(unix.EPERM)
	rules := Rules{Calls: []uint32{unix.SYS_READ, unix.SYS_WRITE}, UnixSockets: true, Ioctls: []uint32{unix.BLKGETSIZE64, unix.BLKSSZGET}}
	for _, c := range []struct {
		name       string
		rules      Rules
		call       uint32
		arg0, arg1 uint32
		want       int
	}{
		{"the first call of the list", rules, unix.SYS_READ, 0, 0, allow},
		{"the last call of the list", rules, unix.SYS_WRITE, 0, 0, allow},
		{"a call that is not in the list", rules, unix.SYS_OPENAT, 0, 0, refuse},
		{"a Unix socket", rules, unix.SYS_SOCKET, unix.AF_UNIX, 0, allow},
		{"a TCP socket", rules, unix.SYS_SOCKET, unix.AF_INET, 0, refuse},
		{"the first ioctl request of the list", rules, unix.SYS_IOCTL, 3, unix.BLKGETSIZE64, allow},
		{"the last ioctl request of the list", rules, unix.SYS_IOCTL, 3, unix.BLKSSZGET, allow},
		{"an ioctl request that is not in the list", rules, unix.SYS_IOCTL, 3, unix.BLKDISCARD, refuse},
		{"rules without sockets", Rules{Calls: rules.Calls}, unix.SYS_SOCKET, unix.AF_UNIX, 0, refuse},
		{"rules without ioctl requests", Rules{Calls: rules.Calls}, unix.SYS_IOCTL, 3, unix.BLKGETSIZE64, refuse},
		{"empty rules", Rules{}, unix.SYS_READ, 0, 0, refuse},
	} {
		raw, err := program(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		instructions, whole := bpf.Disassemble(raw)
		if !whole {
			t.Fatal("the filter has unknown instructions")
		}
		vm, err := bpf.NewVM(instructions)
		if err != nil {
			t.Fatal(err)
		}
		// The BPF interpreter reads big-endian words, the kernel reads words in the byte order of
		// the processor.
		data := make([]byte, 64)
		binary.BigEndian.PutUint32(data[dataNumber:], c.call)
		binary.BigEndian.PutUint32(data[dataArch:], auditArch[runtime.GOARCH])
		binary.BigEndian.PutUint32(data[dataArg0:], c.arg0)
		binary.BigEndian.PutUint32(data[dataArg1:], c.arg1)
		if got, err := vm.Run(data); err != nil || got != c.want {
			t.Errorf("%s: %#x, %v; want %#x", c.name, got, err, c.want)
		}
	}
	if _, err := program(Rules{Calls: make([]uint32, maxCalls+1)}); err == nil {
		t.Error("program accepts more than maxCalls calls, although a BPF jump cannot skip so many instructions")
	}
}
