package podlogd

import "time"

// limiter limits the lines of a container by a token bucket. It uses the times of the lines and not
// the clock. After an outage of a receiver, podlogd reads lines faster than they were written, and
// must not drop lines for this reason.
type limiter struct {
	perSecond float64 // lines per second; each full KiB of a line counts as one more line
	tokens    float64 // lines that are allowed now, at most burst * perSecond
	last      time.Time
	dropped   uint64    // lines dropped since the last report
	reported  time.Time // time of the last report
}

// burst is the size of the bucket, in seconds of the limit: a container that was silent can write
// that many lines at once.
const burst = 5

// reportEvery is the shortest time between two reports about dropped lines of a container.
const reportEvery = 10 * time.Second

func newLimiter(perSecond int) limiter {
	return limiter{perSecond: float64(perSecond), tokens: burst * float64(perSecond)}
}

// allow reports whether a line is within the limit. size is in bytes, and at is the time of the
// line. allow counts a line beyond the limit as dropped. A time before the previous one adds no
// tokens.
func (l *limiter) allow(at time.Time, size int) bool {
	if elapsed := at.Sub(l.last); elapsed > 0 && !l.last.IsZero() {
		l.tokens = min(burst*l.perSecond, l.tokens+elapsed.Seconds()*l.perSecond)
	}
	l.last = at
	cost := float64(1 + size>>10)
	if l.tokens < cost {
		l.dropped++
		return false
	}
	l.tokens -= cost
	return true
}

// report returns the number of dropped lines since the last report. It returns 0 if there are none,
// or if the last report is younger than reportEvery.
func (l *limiter) report(now time.Time) uint64 {
	if l.dropped == 0 || now.Sub(l.reported) < reportEvery {
		return 0
	}
	dropped := l.dropped
	l.dropped, l.reported = 0, now
	return dropped
}
