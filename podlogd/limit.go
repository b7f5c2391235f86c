package podlogd

import "time"

// limiter limits the lines of a container by a token bucket. It counts by the times of the lines
// and not by the clock, so that lines that waited for a receiver are not dropped because they are
// read faster than they were written.
type limiter struct {
	perSecond float64 // lines of up to 1 KiB; longer lines count as several
	tokens    float64 // at most burst seconds of lines
	last      time.Time
	dropped   uint64    // lines since the last report
	reported  time.Time // when a record told the number of dropped lines
}

// burst is the time for which a container that was silent can write at any rate, in seconds of its
// limit.
const burst = 5

// reportEvery is the interval of the records about dropped lines of a container.
const reportEvery = 10 * time.Second

func newLimiter(perSecond int) limiter {
	return limiter{perSecond: float64(perSecond), tokens: burst * float64(perSecond)}
}

// allow reports whether a line with a size is within the limit, and counts it if it is not. A time
// before the last one adds no tokens.
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

// report returns the number of dropped lines for a record, or 0 if none is due.
func (l *limiter) report(now time.Time) uint64 {
	if l.dropped == 0 || now.Sub(l.reported) < reportEvery {
		return 0
	}
	dropped := l.dropped
	l.dropped, l.reported = 0, now
	return dropped
}
