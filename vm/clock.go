package vm

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Clock is the time of the machines and of the NTP server on a network. With a Dilation of more
// than 1 it runs more slowly than the time outside, so each of several emulated machines does as
// much work in one of its seconds as on a faster computer (time dilation: Gupta et al., "To
// Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006). Computations of the machines
// take the same time outside as before; waits take longer outside and need less processor time.
// docs/decisions/0042-time-dilation.md explains figures in this time.
//
// The zero value is the time outside.
type Clock struct {
	// Began is the time at which both clocks were equal.
	Began time.Time `json:"began,omitzero"`
	// Dilation is the number of seconds outside per second of this clock; 0 is 1.
	Dilation int `json:"dilation,omitempty"`
}

// MaxDilation bounds Dilation to tested values.
const MaxDilation = 8

// Now returns the present time of this clock.
func (c Clock) Now() time.Time { return c.At(time.Now()) }

// At returns the time of this clock at a time outside.
func (c Clock) At(outside time.Time) time.Time {
	if c.Dilation <= 1 || outside.IsZero() {
		return outside
	}
	return c.Began.Add(outside.Sub(c.Began) / time.Duration(c.Dilation))
}

// Outside converts a duration of this clock to the duration outside.
func (c Clock) Outside(d time.Duration) time.Duration { return d * time.Duration(max(c.Dilation, 1)) }

// Since returns the time of this clock that has passed since a time outside.
func (c Clock) Since(outside time.Time) time.Duration { return c.Now().Sub(c.At(outside)) }

// dilator is the library that changes QEMU's clock (Debian's package libfaketime), in its variant
// for programs with threads.
const dilator = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"

func (c Clock) check() error {
	if c.Dilation < 0 || c.Dilation > MaxDilation {
		return fmt.Errorf("network: time cannot pass %d times more slowly: expected 1 to %d", c.Dilation, MaxDilation)
	}
	if c.Dilation <= 1 {
		return nil
	}
	if _, err := os.Stat(dilator); err != nil {
		return fmt.Errorf("network: time cannot pass more slowly: %w (it is in Debian's package libfaketime)", err)
	}
	return nil
}

// environment returns additional environment variables for QEMU, which let it use this clock from
// now on. All clocks of the machine derive from clock_gettime and from QEMU's waits, which the
// library changes, except for the processor's time stamp counter: the guest calibrates it against
// the other clocks and measures a correspondingly higher frequency.
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

// sweep removes the shared memory that the library leaves after a process was killed.
func (c Clock) sweep(pid int) {
	if c.Dilation <= 1 {
		return
	}
	for _, name := range []string{"faketime_shm_", "sem.faketime_sem_"} {
		os.Remove("/dev/shm/" + name + strconv.Itoa(pid)) // missing if QEMU ended by itself
	}
}

// stackClock is a clock for the IP stacks of this process's own hosts: for neighbor timeouts and
// retransmissions.
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
