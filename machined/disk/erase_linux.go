package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/siderolabs/go-blockdevice/v2/block"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// eraseTime is the maximum time for overwriting DATA if the disk does not discard it.
const eraseTime = 30 * time.Second

// Do erases the content and reports the result. Data that the disk retains are an error on STATE,
// but not on DATA.
func (e Erase) Do(ctx context.Context) error {
	d, err := openErasable(e.Device)
	if err != nil {
		return fmt.Errorf("%s: cannot erase %s: %w", e.Device, e.Label, err)
	}
	defer d.close()
	result := "the whole partition was overwritten and reads back as zeros"
	if e.Label == layout.State {
		err = overwriteAll(ctx, d)
	} else {
		end := time.Now().Add(eraseTime)
		if deadline, bounded := ctx.Deadline(); bounded && deadline.Add(-eraseTime/3).Before(end) {
			end = deadline.Add(-eraseTime / 3)
		}
		result, err = discardAll(ctx, d, end, time.Now)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot erase %s: %w; its content can still be read: destroy the disk, or overwrite it elsewhere", e.Device, e.Label, err)
	}
	if e.report != nil {
		e.report(fmt.Sprintf("%s (%s): %s", e.Label, e.Device, result))
	}
	return nil
}

// partition is an open partition.
type partition struct {
	device *block.Device
	direct *os.File // reads past the page cache (O_DIRECT, open(2))
	buffer []byte   // page-aligned, as O_DIRECT requires
	length uint64
}

// openErasable opens a partition that is not mounted.
func openErasable(path string) (*partition, error) {
	device, err := block.NewFromPath(path, block.OpenForWrite(), block.OpenAssertNotMounted())
	if err != nil {
		return nil, err
	}
	p := &partition{device: device}
	if p.length, err = device.GetSize(); err == nil {
		p.direct, err = os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		p.buffer, err = unix.Mmap(-1, 0, erasePiece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *partition) close() {
	if p.buffer != nil {
		_ = unix.Munmap(p.buffer)
	}
	if p.direct != nil {
		p.direct.Close()
	}
	p.device.Close()
}

func (p *partition) size() uint64 { return p.length }

func (p *partition) discard(start, length uint64) error {
	return p.request(unix.BLKDISCARD, start, length)
}

func (p *partition) zeroOut(start, length uint64) error {
	return p.request(unix.BLKZEROOUT, start, length)
}

func (p *partition) request(number uintptr, start, length uint64) error {
	where := [2]uint64{start, length}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, p.device.File().Fd(), number, uintptr(unsafe.Pointer(&where[0]))); errno != 0 {
		return errno
	}
	return nil
}

func (p *partition) write(b []byte, start uint64) error {
	_, err := p.device.File().WriteAt(b, int64(start))
	return err
}

func (p *partition) flush() error { return p.device.File().Sync() }

func (p *partition) readBack(b []byte, start uint64) error {
	n, err := p.direct.ReadAt(p.buffer[:len(b)], int64(start))
	if n == len(b) {
		copy(b, p.buffer)
		return nil
	}
	return errors.Join(err, fmt.Errorf("%d of %d bytes at %d", n, len(b), start))
}
