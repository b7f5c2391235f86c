package timesync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/durable"
)

// What Past adds to what it knew.
const (
	// pastDrift is the share of the elapsed time that is left out, in parts per million: a
	// crystal may run fast.
	pastDrift = 1000
	// quorumHold is how long a quorum must have kept the clock before its time is taken for one
	// that has passed.
	quorumHold = time.Hour
	// quorumMargin is by how much less than the clock that is.
	quorumMargin = 24 * time.Hour
	// markEvery is how much later than the kept mark the time must be to be written. A machine
	// that never runs for so long keeps the mark that it has.
	markEvery = 6 * time.Hour
)

// Floor knows a time that has passed for certain. It is never later than the real time unless a
// quorum of time servers lies for quorumHold: it begins at the build of the system or at the mark
// that was kept on STATE, and goes on with elapsed monotonic time. What one server says, and what
// the hardware clock says, does not move it. It may be used from several goroutines.
type Floor struct {
	mu     sync.Mutex
	base   time.Time // had passed at the monotonic reading of at
	at     time.Time
	quorum time.Time // since when every round had a quorum; zero: the last had none
}

// NewFloor returns a Past that begins with floor at now, which has a monotonic reading (time.Now).
func NewFloor(floor, now time.Time) *Floor { return &Floor{base: floor.Round(0), at: now} }

// Now returns the time that has passed for certain at now, which has a monotonic reading.
func (p *Floor) Now(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nowLocked(now)
}

func (p *Floor) nowLocked(now time.Time) time.Time {
	elapsed := max(0, now.Sub(p.at))
	return p.base.Add(elapsed - elapsed/1e6*pastDrift)
}

// Raise takes over a time that has passed for certain at now, if it is later than what is known.
func (p *Floor) Raise(floor, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if floor.After(p.nowLocked(now)) {
		p.base, p.at = floor.Round(0), now
	}
}

// Round notes a round that succeeded, after the clock was moved: now has the wall clock and the
// monotonic reading. It never adds more than FirstWindow at once.
func (p *Floor) Round(quorum bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !quorum {
		p.quorum = time.Time{}
		return
	}
	if p.quorum.IsZero() {
		p.quorum = now
	}
	known, says := p.nowLocked(now), now.Round(0).Add(-quorumMargin)
	if now.Sub(p.quorum) < quorumHold || !says.After(known) {
		return
	}
	if most := known.Add(FirstWindow); says.After(most) {
		says = most
	}
	p.base, p.at = says, now
}

// Failed notes a round without an answer that could be used.
func (p *Floor) Failed() { p.Round(false, time.Time{}) }

// ReadFloor reads the mark that Keep wrote: the zero time if there is none. One that cannot be
// read is an error; the zero time is the right one to go on with.
func ReadFloor(file string, build time.Time) (time.Time, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("time mark: cannot read: %w", err)
	}
	defer f.Close()
	buf := make([]byte, 64)
	n, err := f.Read(buf)
	if err != nil {
		return time.Time{}, fmt.Errorf("time mark %s: cannot read: %w; it is begun anew", file, err)
	}
	mark, err := time.Parse(time.RFC3339, strings.TrimSuffix(string(buf[:n]), "\n"))
	if err != nil {
		return time.Time{}, fmt.Errorf("time mark %s: cannot use: %w; it is begun anew", file, err)
	}
	if mark.After(build.Add(horizon)) {
		return time.Time{}, fmt.Errorf("time mark %s: cannot use: %s is decades after the build; it is begun anew", file,
			mark.UTC().Format(time.RFC3339))
	}
	return mark, nil
}

// due returns the mark to write, and whether the one that was kept is so much older that it is
// worth a write.
func (p *Floor) due(kept, now time.Time) (time.Time, bool) {
	t := p.Now(now).UTC().Truncate(time.Second)
	return t, t.Sub(kept) >= markEvery
}

// Run writes the mark to a file, about four times a day, until ctx is done. kept is what
// ReadFloor returned. A power cut leaves the old mark or the new one.
func (p *Floor) Run(ctx context.Context, file string, kept time.Time, failed func(error)) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		if t, due := p.due(kept, time.Now()); due {
			err := os.MkdirAll(filepath.Dir(file), 0o700)
			if err == nil {
				err = durable.WriteFile(file, []byte(t.Format(time.RFC3339)+"\n"), 0o600)
			}
			if err == nil {
				kept = t
			} else {
				failed(fmt.Errorf("time mark: cannot write: %w", err))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
