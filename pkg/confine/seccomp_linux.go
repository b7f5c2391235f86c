package confine

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Runtime are the system calls that Go's runtime makes in every process: memory, threads, signals,
// time. Taken from strace(1) and from the runtime.
var Runtime = []uint32{
	unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MINCORE,
	unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_UNAME,
	unix.SYS_SIGALTSTACK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_TGKILL, unix.SYS_RESTART_SYSCALL,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM, unix.SYS_PRLIMIT64,
}

// Where a filter finds what it judges (struct seccomp_data in linux/seccomp.h).
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16 // its low half, on a little-endian machine
	dataArg1   = 24 // likewise
)

// auditArch is what the kernel calls the instruction set (linux/audit.h).
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// most is how many system calls and requests a filter can name: a conditional jump of BPF goes 255
// instructions at most.
const most = 200

// program lets the rules' calls pass. What else is asked for fails with EPERM; a call by another
// instruction set's numbers ends the process.
func program(r Rules) ([]bpf.RawInstruction, error) {
	arch, known := auditArch[runtime.GOARCH]
	if !known {
		return nil, fmt.Errorf("there is no filter for %s", runtime.GOARCH)
	}
	if len(r.Calls)+len(r.Ioctls) > most {
		return nil, fmt.Errorf("%d system calls and requests are more than %d", len(r.Calls)+len(r.Ioctls), most)
	}
	const refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	out := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: dataNumber, Size: 4},
	}
	if r.UnixSockets {
		out = append(out, onlyWith(unix.SYS_SOCKET, dataArg0, []uint32{unix.AF_UNIX}, refuse)...)
	}
	if len(r.Ioctls) > 0 {
		out = append(out, onlyWith(unix.SYS_IOCTL, dataArg1, r.Ioctls, refuse)...)
	}
	calls := slices.Clone(r.Calls)
	for i, number := range calls {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipTrue: uint8(len(calls) - i)})
	}
	out = append(out, bpf.RetConstant{Val: refuse}, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	return bpf.Assemble(out)
}

// onlyWith judges one system call by an argument, and leaves all others to what follows.
func onlyWith(call uint32, argument uint32, values []uint32, refuse uint32) []bpf.Instruction {
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: call, SkipFalse: uint8(len(values) + 3)},
		bpf.LoadAbsolute{Off: argument, Size: 4},
	}
	for i, v := range values {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(len(values) - i)})
	}
	return append(out, bpf.RetConstant{Val: refuse}, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// restrictCalls puts the filter over every thread (seccomp(2)). It needs no_new_privs.
func restrictCalls(r Rules) error {
	instructions, err := program(r)
	if err != nil {
		return fmt.Errorf("privileges: cannot restrict system calls: %w", err)
	}
	filter := make([]unix.SockFilter, len(instructions))
	for i, p := range instructions {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("privileges: cannot restrict system calls: %w", errno)
	}
	return nil
}
