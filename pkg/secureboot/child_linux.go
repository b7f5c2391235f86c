package secureboot

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/confine"
)

// imageFile is the descriptor of the image in the process.
const imageFile = 3

// Limits of the process. It reads the image in pieces.
const (
	maxMemory  = 256 << 20 // bytes of private writable memory, including Go's reserve
	maxThreads = 512       // of all processes of this user together
	maxCPU     = 20        // seconds
	maxFiles   = 64        // file descriptors
)

// Environment is the complete environment of the process.
var Environment = []string{"GOMEMLIMIT=64MiB", "GOMAXPROCS=1", "GOTRACEBACK=none"}

// systemCalls are the system calls of a check: it reads an open file, and writes its answer.
var systemCalls = slices.Concat(confine.Runtime, []uint32{
	unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_LSEEK,
	// for Go's timers
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
})

// Main is the main function of the process: it drops its privileges, checks the image, writes the
// answer, and returns the exit status.
func Main() int {
	if err := respond(os.Stdin, os.Stdout, os.NewFile(imageFile, "boot image"), confineSelf); err != nil {
		fmt.Fprintln(os.Stderr, "bootcheck:", err)
		return 1
	}
	return 0
}

// confineSelf drops all privileges that a check does not need.
func confineSelf() error {
	return confine.Process(confine.Rules{
		Calls: systemCalls,
		Limits: []confine.Limit{
			{Resource: unix.RLIMIT_DATA, Max: maxMemory}, {Resource: unix.RLIMIT_CPU, Max: maxCPU}, {Resource: unix.RLIMIT_NOFILE, Max: maxFiles},
			{Resource: unix.RLIMIT_CORE, Max: 0}, {Resource: unix.RLIMIT_FSIZE, Max: 0}, {Resource: unix.RLIMIT_MEMLOCK, Max: 0}, {Resource: unix.RLIMIT_NPROC, Max: maxThreads},
		},
	})
}

// respond reads the question, which PID 1 has written, and drops all privileges before it parses
// the databases and the image.
func respond(in io.Reader, out io.Writer, image *os.File, confined func() error) error {
	var q question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("cannot parse the question: %w", err)
	}
	if err := confined(); err != nil {
		return err
	}
	info, err := image.Stat()
	if err != nil {
		return err
	}
	var a answer
	if err := Accept(image, info.Size(), q.DB, q.DBX); err != nil {
		a.Refused = err.Error()
	}
	return json.NewEncoder(out).Encode(a)
}
