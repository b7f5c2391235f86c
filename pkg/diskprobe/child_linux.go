package diskprobe

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/confine"
)

// File descriptors that the process inherits.
const (
	diskFile      = 3
	firstPartFile = 4
)

// Limits of the process. GOMEMLIMIT makes Go collect garbage long before the heap reaches
// maxMemory. So only memory that is in use can reach maxMemory.
const (
	maxMemory = 256 << 20 // bytes (confine.ParserLimits)
	maxCPU    = 8         // seconds
	maxFiles  = 256       // file descriptors
)

// Environment holds all environment variables of the process.
var Environment = []string{"GOMEMLIMIT=96MiB", "GOMAXPROCS=2", "GOTRACEBACK=none"}

// systemCalls are the system calls that an examination needs.
var systemCalls = slices.Concat(confine.ParserCalls, []uint32{unix.SYS_FADVISE64})

// requests are the ioctl requests for the size and the sector size of a block device.
var requests = []uint32{unix.BLKGETSIZE64, unix.BLKSSZGET, unix.BLKIOOPT, unix.BLKIOMIN, unix.BLKBSZGET}

// Main is the main function of the process: it drops its privileges, examines the disk, writes the
// result, and returns the exit status.
func Main() int {
	if err := answer(os.Stdin, os.Stdout, confineSelf); err != nil {
		fmt.Fprintln(os.Stderr, "diskprobe:", err)
		return 1
	}
	return 0
}

// confineSelf drops all privileges that an examination does not need.
func confineSelf() error {
	return confine.Process(confine.Rules{Calls: systemCalls, Ioctls: requests, Limits: confine.ParserLimits(maxMemory, maxCPU, maxFiles)})
}

// answer reads the request of PID 1, drops all privileges by calling confined, and then reads the
// disk. It writes the result to out.
func answer(in io.Reader, out io.Writer, confined func() error) error {
	var q Request
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("cannot parse the request: %w", err)
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
