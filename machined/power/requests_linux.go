package power

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
)

// modeOf returns the shutdown mode that a signal to PID 1 requests; empty for other signals. The
// kernel sends SIGINT for Ctrl-Alt-Del (kernel.ctrl-alt-del=0, reboot(2)). SIGPWR reports a failing
// power supply. A container runtime sends SIGTERM to stop the first process of a container.
func modeOf(s os.Signal) Mode {
	switch s {
	case unix.SIGINT, unix.SIGTERM:
		return Reboot
	case unix.SIGPWR:
		return PowerOff
	}
	return ""
}

// Signals calls wish for every signal that requests a shutdown, until ctx ends.
//
// It receives and discards all other signals that would end a Go program. The kernel does not end
// PID 1 by such a signal, but the Go runtime does, and the end of PID 1 is a kernel panic. Signals
// does not use signal.Ignore, because child processes would inherit the ignored signals.
func Signals(ctx context.Context, wish func(mode Mode, why string)) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGPWR, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGVTALRM, unix.SIGPIPE, unix.SIGXCPU, unix.SIGXFSZ)
	defer signal.Stop(signals)
	for {
		select {
		case s := <-signals:
			if mode := modeOf(s); mode != "" {
				wish(mode, fmt.Sprintf("signal %s", s))
			}
		case <-ctx.Done():
			return
		}
	}
}

// From include/uapi/linux/input-event-codes.h.
const (
	evKey    = 0x01
	keyPower = 116
	keyMax   = 0x2ff
)

// inputEvent is the size of struct input_event on 64-bit machines, in bytes: two words of time,
// then type, code and value.
const inputEvent = 24

// Buttons watches the power buttons: input devices in dir (/dev/input) that have KEY_POWER. It
// calls pressed for each press, until ctx ends. It scans for new devices whenever it receives from
// rescan, on which the caller sends when the kernel adds an input device.
func Buttons(ctx context.Context, dir string, rescan <-chan struct{}, pressed func(device string)) {
	var watching sync.WaitGroup
	defer watching.Wait()
	var mu sync.Mutex
	open := map[string]bool{}
	scan := func() {
		paths, err := filepath.Glob(filepath.Join(dir, "event*"))
		if err != nil {
			return // Glob fails only for an invalid pattern.
		}
		for _, path := range paths {
			mu.Lock()
			known := open[path]
			open[path] = true
			mu.Unlock()
			if known {
				continue
			}
			watching.Go(panics.Guarded("power button "+path, func() {
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					// The device was removed or has no power key. A later device may have the same
					// name.
					delete(open, path)
				}()
				watchButton(ctx, path, pressed)
			}))
		}
	}
	for {
		scan()
		select {
		case <-rescan:
		case <-ctx.Done():
			return
		}
	}
}

// watchButton reads events of a device until the device is removed or ctx ends. It returns at once
// if the device has no power key.
func watchButton(ctx context.Context, path string, pressed func(device string)) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return // The device was removed in the meantime.
	}
	defer context.AfterFunc(ctx, func() { f.Close() })()
	defer f.Close()
	if has, err := hasPowerKey(f); err != nil || !has {
		return
	}
	readButton(f, func() { pressed(path) })
}

// readButton reads input events until f ends, and calls pressed when the power key goes down (value
// 1). A held key repeats with value 2, which readButton ignores.
func readButton(f *os.File, pressed func()) {
	buffer := make([]byte, 64*inputEvent)
	for {
		n, err := f.Read(buffer)
		if errors.Is(err, fs.ErrClosed) || err != nil || n == 0 {
			return
		}
		for event := buffer[:n]; len(event) >= inputEvent; event = event[inputEvent:] {
			kind := binary.NativeEndian.Uint16(event[16:])
			code := binary.NativeEndian.Uint16(event[18:])
			value := binary.NativeEndian.Uint32(event[20:])
			if kind == evKey && code == keyPower && value == 1 {
				pressed()
			}
		}
	}
}

// hasPowerKey reports whether the device has a power key. It calls the ioctl EVIOCGBIT(EV_KEY,
// length) of linux/input.h.
func hasPowerKey(f *os.File) (bool, error) {
	var bits [keyMax/8 + 1]byte
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	const read = 2 // _IOC_READ
	request := uintptr(read<<30 | len(bits)<<16 | 'E'<<8 | (0x20 + evKey))
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&bits[0])))
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return bits[keyPower/8]&(1<<(keyPower%8)) != 0, err
}
