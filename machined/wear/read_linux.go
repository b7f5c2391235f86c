package wear

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// commandTimeout is the timeout that the kernel applies to each command.
const commandTimeout = 10 * time.Second

// Read reads the log of a disk. It opens the disk read-only, and its commands change nothing on the
// disk.
func Read(t Target) (l Log, err error) {
	// O_NONBLOCK opens the disk even if it is not ready.
	fd, err := unix.Open(t.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return Log{}, fmt.Errorf("%s: cannot open: %w", t.Path, err)
	}
	disk := os.NewFile(uintptr(fd), t.Path)
	defer disk.Close()
	if t.Transport == NVMe {
		l, err = readNVMe(fd)
	} else {
		l, err = readATA(fd)
	}
	if err != nil {
		return Log{}, fmt.Errorf("%s: cannot read log: %w", t.Path, err)
	}
	return l, nil
}

// nvmeCommand is struct nvme_passthru_cmd (include/uapi/linux/nvme_ioctl.h).
type nvmeCommand struct {
	opcode, flags uint8
	_             uint16
	namespace     uint32
	_             [2]uint32
	_             uint64
	address       uint64
	_             uint32
	length        uint32
	words         [6]uint32 // command words 10 to 15
	timeout       uint32    // ms
	_             uint32    // result
}

// adminCommand is NVME_IOCTL_ADMIN_CMD.
const adminCommand = 0xc0484e41

// readNVMe reads the log page SMART / Health Information (log 2) of an NVMe controller.
func readNVMe(fd int) (Log, error) {
	const getLogPage, health, all = 0x02, 0x02, 0xffffffff
	page := make([]byte, pageSize)
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&page[0])
	c := nvmeCommand{opcode: getLogPage, namespace: all, address: uint64(uintptr(unsafe.Pointer(&page[0]))), length: pageSize, timeout: uint32(commandTimeout.Milliseconds())}
	c.words[0] = health | (pageSize/4-1)<<16
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), adminCommand, uintptr(unsafe.Pointer(&c)))
	if errno != 0 {
		return Log{}, errno
	}
	if status != 0 {
		return Log{}, fmt.Errorf("the disk answered with status %#x", status)
	}
	return decodeNVMe(page)
}

// scsiCommand is struct sg_io_hdr (include/scsi/sg.h).
type scsiCommand struct {
	id, direction           int32
	commandLength, maxSense uint8
	_                       uint16
	length                  uint32
	data, command, sense    unsafe.Pointer
	timeout                 uint32 // ms
	_                       [2]uint32
	_                       unsafe.Pointer
	result                  scsiResult
}

// scsiResult is the part of scsiCommand that the kernel writes.
type scsiResult struct {
	status     uint8
	_          [2]uint8
	senseBytes uint8
	host       uint16
	_          uint16
	_          [3]uint32
}

// Constants for struct sg_io_hdr.
const (
	scsiIO       = 0x2285 // SG_IO
	scsiID       = 'S'
	scsiNone     = -1 // SG_DXFER_NONE
	scsiFromDisk = -3 // SG_DXFER_FROM_DEV
	scsiChecked  = 2  // status CHECK CONDITION
)

// ATA commands in a SCSI command ATA PASS-THROUGH (16) (SAT-3, section 12.2.2).
const (
	passThrough = 0x85
	extended    = 1      // flag in byte 1: the command has 48-bit registers
	noData      = 3 << 1 // protocol in byte 1: no data
	pioIn       = 4 << 1
	toHost      = 0x0e // byte 2: data from the disk; the count has the number of blocks
	registers   = 0x20 // byte 2: return the registers as sense data

	ataSMART      = 0xb0
	ataReadData   = 0xd0
	ataStatus     = 0xda
	ataReadLog    = 0x2f // READ LOG EXT
	ataStatistics = 0x04 // number of the log of device statistics
	ataSolidState = 0x07 // page of the log for solid-state disks
)

// readATA reads the attributes of an ATA disk, its prediction of a failure, and the used percentage
// of its life. It returns an error only if the attributes cannot be read, because many disks do not
// report the other two.
func readATA(fd int) (Log, error) {
	page := make([]byte, pageSize)
	if _, err := sendATA(fd, [16]byte{0: passThrough, 1: pioIn, 2: toHost, 4: ataReadData, 6: 1, 10: 0x4f, 12: 0xc2, 14: ataSMART}, page); err != nil {
		return Log{}, err
	}
	l, err := decodeATA(page)
	if err != nil {
		return Log{}, err
	}
	if sense, err := sendATA(fd, [16]byte{0: passThrough, 1: noData, 2: registers, 4: ataStatus, 10: 0x4f, 12: 0xc2, 14: ataSMART}, nil); err == nil && failedByATA(sense) {
		l.Failures = append(l.Failures, FailurePredicted)
	}
	clear(page)
	if _, err := sendATA(fd, [16]byte{0: passThrough, 1: pioIn | extended, 2: toHost, 6: 1, 8: ataStatistics, 10: ataSolidState, 14: ataReadLog}, page); err == nil {
		l.UsedPercent = usedByATA(page)
	}
	return l, nil
}

// sendATA sends a command, fills data, and returns the sense data. The status CHECK CONDITION is a
// success only for a command that requests the registers.
func sendATA(fd int, command [16]byte, data []byte) ([]byte, error) {
	sense := make([]byte, 32)
	words := command[:]
	c := scsiCommand{id: scsiID, direction: scsiNone, commandLength: uint8(len(words)), maxSense: uint8(len(sense)), timeout: uint32(commandTimeout.Milliseconds())}
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pin := func(b []byte) unsafe.Pointer {
		pinned.Pin(&b[0])
		return unsafe.Pointer(&b[0])
	}
	c.command, c.sense = pin(words), pin(sense)
	if len(data) > 0 {
		c.direction, c.length, c.data = scsiFromDisk, uint32(len(data)), pin(data)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), scsiIO, uintptr(unsafe.Pointer(&c))); errno != 0 {
		return nil, errno
	}
	wantsRegisters := command[2]&registers != 0
	switch {
	case c.result.host != 0:
		return nil, fmt.Errorf("the controller answered with status %#x", c.result.host)
	case c.result.status == scsiChecked && wantsRegisters, c.result.status == 0:
		return sense[:min(int(c.result.senseBytes), len(sense))], nil
	}
	return nil, errors.New("the disk rejected the command")
}
