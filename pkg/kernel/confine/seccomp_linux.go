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

// Runtime are the system calls that the Go runtime needs in every process: for memory, threads,
// signals and time. The list comes from strace(1) and the source of the runtime.
var Runtime = []uint32{
	unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MINCORE,
	unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_UNAME,
	unix.SYS_SIGALTSTACK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_TGKILL, unix.SYS_RESTART_SYSCALL,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM, unix.SYS_PRLIMIT64,
}

// ParserCalls are the system calls that a process needs to read open files and to write an answer.
// They do not permit it to open files.
var ParserCalls = slices.Concat(Runtime, []uint32{
	unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_LSEEK,
	// for Go's timers
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
})

// Offsets in the input of a filter (struct seccomp_data in linux/seccomp.h).
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16 // lower half on a little-endian machine
	dataArg1   = 24 // lower half, too
)

// auditArch maps Go's name of an instruction set to the kernel's number (linux/audit.h).
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// maxCalls is the maximum number of system calls and ioctl requests in a filter. It is limited
// because a conditional BPF jump skips at most 255 instructions.
const maxCalls = 200

// program returns a filter that permits the system calls of the rules. Other calls fail with EPERM.
// A call of another instruction set (such as a 32-bit call) kills the process.
func program(r Rules) ([]bpf.RawInstruction, error) {
	arch, known := auditArch[runtime.GOARCH]
	if !known {
		return nil, fmt.Errorf("there is no filter for %s", runtime.GOARCH)
	}
	if len(r.Calls)+len(r.Ioctls) > maxCalls {
		return nil, fmt.Errorf("%d system calls and requests are more than %d", len(r.Calls)+len(r.Ioctls), maxCalls)
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

// onlyWith returns instructions for a single system call. They permit the call if the argument is
// one of the values, and reject it otherwise. Other calls continue with the next instruction of the
// program.
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

// restrictCalls installs the filter for every thread (seccomp(2)). It requires no_new_privs.
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
