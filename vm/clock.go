package vm

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Clock is the time on a network: of its machines, and of its NTP server. With a Dilation of more
// than 1 it passes more slowly than outside, so that each of several emulated machines gets as much
// done in a second of its own as a faster computer would let it (time dilation: Gupta et al., "To
// Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006). What machines compute takes as
// long outside as ever; what they wait for takes longer outside, and costs the processors less.
// docs/decisions/0042-time-dilation.md says what figures in this time mean.
//
// The zero value is the time outside.
type Clock struct {
	// Began is when both clocks showed the same.
	Began time.Time `json:"began,omitzero"`
	// Dilation is how many seconds outside are one second of this clock; 0 is 1.
	Dilation int `json:"dilation,omitempty"`
}

// mostDilation bounds Dilation to what was tried.
const mostDilation = 8

// Now is the time that this clock shows.
func (c Clock) Now() time.Time { return c.At(time.Now()) }

// At is the time that this clock showed at a time outside.
func (c Clock) At(outside time.Time) time.Time {
	if c.Dilation <= 1 || outside.IsZero() {
		return outside
	}
	return c.Began.Add(outside.Sub(c.Began) / time.Duration(c.Dilation))
}

// Outside is how long d of this clock takes outside.
func (c Clock) Outside(d time.Duration) time.Duration { return d * time.Duration(max(c.Dilation, 1)) }

// Since is how much of this clock's time has passed since a time outside.
func (c Clock) Since(outside time.Time) time.Duration { return c.Now().Sub(c.At(outside)) }

// dilator is the library that has QEMU live by another clock (Debian's package libfaketime); the
// form for programs with threads.
const dilator = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"

func (c Clock) check() error {
	if c.Dilation < 0 || c.Dilation > mostDilation {
		return fmt.Errorf("network: time cannot pass %d times more slowly: expected 1 to %d", c.Dilation, mostDilation)
	}
	if c.Dilation <= 1 {
		return nil
	}
	if _, err := os.Stat(dilator); err != nil {
		return fmt.Errorf("network: time cannot pass more slowly: %w (it is in Debian's package libfaketime)", err)
	}
	return nil
}

// environment is what QEMU is started with beside our own environment, so that it lives by this
// clock from now on. All that QEMU shows its machine comes from clock_gettime and from how long it
// waits, which the library changes, but for the processor's time stamp counter: the guest measures
// that with the other clocks, and finds it so much faster.
func (c Clock) environment(now time.Time) []string {
	if c.Dilation <= 1 {
		return nil
	}
	at := c.At(now)
	return []string{
		"LD_PRELOAD=" + dilator,
		"FAKETIME_FMT=%s",
		fmt.Sprintf("FAKETIME=@%d.%09d x%s", at.Unix(), at.Nanosecond(), strconv.FormatFloat(1/float64(c.Dilation), 'f', -1, 64)),
		"NO_FAKE_STAT=1",
	}
}

// sweep removes what the library leaves in shared memory of a process that was killed.
func (c Clock) sweep(pid int) {
	if c.Dilation <= 1 {
		return
	}
	for _, name := range []string{"faketime_shm_", "sem.faketime_sem_"} {
		os.Remove("/dev/shm/" + name + strconv.Itoa(pid)) // not there if QEMU ended by itself
	}
}

// stackClock is a clock for the IP stacks of this process's own hosts: how long they wait for a
// neighbour, and when they send again.
type stackClock struct {
	outside tcpip.Clock
	clock   Clock
}

func (c stackClock) Now() time.Time { return c.clock.At(c.outside.Now()) }

func (c stackClock) NowMonotonic() tcpip.MonotonicTime {
	var zero tcpip.MonotonicTime
	return zero.Add(c.outside.NowMonotonic().Sub(zero) / time.Duration(max(c.clock.Dilation, 1)))
}

func (c stackClock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	return stackTimer{c.outside.AfterFunc(c.clock.Outside(d), f), c.clock}
}

type stackTimer struct {
	tcpip.Timer
	clock Clock
}

func (t stackTimer) Reset(d time.Duration) { t.Timer.Reset(t.clock.Outside(d)) }
