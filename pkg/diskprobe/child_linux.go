package diskprobe

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/confine"
)

// Descriptors that the process is given.
const (
	diskFile      = 3
	firstPartFile = 4
)

// Limits of the process. Go's heap is kept below by GOMEMLIMIT, so the limit of memory is met only
// by what cannot be collected.
const (
	// bytes of writable memory of its own, Go's reserve of 64 MiB for each arena included
	mostMemory  = 256 << 20
	mostThreads = 512 // of all such processes together
	mostCPU     = 8   // seconds
	mostOpening = 256 // file descriptors
)

// Environment is the whole environment of the process.
var Environment = []string{"GOMEMLIMIT=96MiB", "GOMAXPROCS=2", "GOTRACEBACK=none"}

// systemCalls are those of an examination: it reads what is open, writes its answer, and opens
// nothing.
var systemCalls = slices.Concat(confine.Runtime, []uint32{
	unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_LSEEK, unix.SYS_FADVISE64,
	// of Go's timers
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
})

// requests are those that ask a block device for its size and the size of its sectors.
var requests = []uint32{unix.BLKGETSIZE64, unix.BLKSSZGET, unix.BLKIOOPT, unix.BLKIOMIN, unix.BLKBSZGET}

// Main is the process: it gives up everything, examines, answers and ends. It returns the exit
// status.
func Main() int {
	if err := answer(os.Stdin, os.Stdout, confineSelf); err != nil {
		fmt.Fprintln(os.Stderr, "diskprobe:", err)
		return 1
	}
	return 0
}

// confineSelf gives up what an examination does not need.
func confineSelf() error {
	return confine.Process(confine.Rules{
		Calls: systemCalls, Ioctls: requests,
		Limits: []confine.Limit{
			{Resource: unix.RLIMIT_DATA, Max: mostMemory}, {Resource: unix.RLIMIT_CPU, Max: mostCPU}, {Resource: unix.RLIMIT_NOFILE, Max: mostOpening},
			{Resource: unix.RLIMIT_CORE, Max: 0}, {Resource: unix.RLIMIT_FSIZE, Max: 0}, {Resource: unix.RLIMIT_MEMLOCK, Max: 0}, {Resource: unix.RLIMIT_NPROC, Max: mostThreads},
		},
	})
}

// answer reads the question, which PID 1 has written, and gives up everything before it reads the
// first byte of the disk.
func answer(in io.Reader, out io.Writer, confined func() error) error {
	var q Request
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("the question cannot be read: %w", err)
	}
	disk := os.NewFile(diskFile, q.Disk)
	var partitions []*os.File
	for i := range q.Partitions {
		partitions = append(partitions, os.NewFile(uintptr(firstPartFile+i), fmt.Sprint("partition ", q.Partitions[i])))
	}
	if err := confined(); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(Examine(q, disk, partitions))
}
