package vm

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Clock is the clock of the machines and hosts on a network. With a Dilation of more than 1, it
// runs more slowly than the clock of this computer, which shows the time outside. In a second of
// this clock, each of several emulated machines then does as much work as on a faster computer.
// This method is time dilation (Gupta et al., "To Infinity and Beyond: Time-Warped Network
// Emulation", NSDI 2006).
//
// With dilation, a computation takes the same time outside as without dilation. A wait takes longer
// outside. During a wait, other machines can use the processors. The document
// docs/decisions/0042-time-dilation.md explains measured figures in the time of this clock.
//
// The zero value shows the time outside.
type Clock struct {
	// Began is the time at which this clock and the clock outside showed the same time.
	Began time.Time `json:"began,omitzero"`
	// Dilation is the number of seconds outside per second of this clock; 0 means 1.
	Dilation int `json:"dilation,omitempty"`
}

// MaxDilation is the highest permitted Dilation, which is the highest tested value.
const MaxDilation = 8

// Now returns the present time of this clock.
func (c Clock) Now() time.Time { return c.At(time.Now()) }

// At returns the time that this clock shows at a time outside. The zero time stays the zero time.
func (c Clock) At(outside time.Time) time.Time {
	if c.Dilation <= 1 || outside.IsZero() {
		return outside
	}
	return c.Began.Add(outside.Sub(c.Began) / time.Duration(c.Dilation))
}

// Outside converts a duration of this clock to the duration outside.
func (c Clock) Outside(d time.Duration) time.Duration { return d * time.Duration(max(c.Dilation, 1)) }

// Since returns the time that has passed on this clock since a time outside.
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

// environment returns the environment variables that make QEMU use this clock from now on; nil
// without dilation. The library changes the results of clock_gettime and the lengths of waits, and
// so all clocks of the machine that QEMU derives from them. The time stamp counter of the processor
// is unchanged. The guest calibrates this counter with the other clocks, and so measures a higher
// frequency.
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
		os.Remove("/dev/shm/" + name + strconv.Itoa(pid)) // no file if QEMU ended by itself
	}
}

// stackClock is the clock of the IP stacks of Hosts: neighbor timeouts and retransmissions are in
// the time of the network.
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
