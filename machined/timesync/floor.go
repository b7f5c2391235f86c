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

	"github.com/orlop-os/orlop/pkg/safefile"
)

// The limits for the growth of a Floor.
const (
	// floorDrift is the part of the elapsed time that is not added to the floor, in parts per
	// million. The monotonic clock can show more time than has passed, because its crystal can run
	// fast.
	floorDrift = 1000
	// quorumHold is the time for which all rounds must have had a quorum before the floor follows
	// the clock.
	quorumHold = time.Hour
	// quorumMargin is the time by which the floor then stays behind the clock.
	quorumMargin = 24 * time.Hour
	// storeInterval is the growth of the floor after which it is stored again. A machine that
	// always runs for a shorter time keeps its stored mark.
	storeInterval = 6 * time.Hour
)

// Floor is a lower bound of the real time. It starts at the build time of the system or at the mark
// stored on STATE, and grows with the elapsed monotonic time. A quorum of time servers can raise
// it; a single server and the hardware clock cannot. It is later than the real time only if a
// quorum sends false times for quorumHold. It is safe for concurrent use.
type Floor struct {
	mu   sync.Mutex
	base time.Time // the floor at the time `at`
	at   time.Time // has a monotonic reading
	// quorum is the time of the first round in the current series of rounds with a quorum. It is
	// zero if the last round had no quorum.
	quorum time.Time
}

// NewFloor returns a Floor that is floor at the time now. now has a monotonic reading (time.Now).
func NewFloor(floor, now time.Time) *Floor { return &Floor{base: floor.Round(0), at: now} }

// Now returns the floor at the time now, which has a monotonic reading.
func (p *Floor) Now(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nowLocked(now)
}

func (p *Floor) nowLocked(now time.Time) time.Time {
	elapsed := max(0, now.Sub(p.at))
	return p.base.Add(elapsed - elapsed/1e6*floorDrift)
}

// Raise raises the floor to a time that has certainly passed at now. It changes nothing if the
// floor is later already.
func (p *Floor) Raise(floor, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if floor.After(p.nowLocked(now)) {
		p.base, p.at = floor.Round(0), now
	}
}

// Round records a successful round. now is the time after the adjustment of the clock, with its
// monotonic reading. After quorumHold with a quorum, Round raises the floor to quorumMargin before
// now, but by at most FirstWindow.
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

// Failed records a round without a usable answer, which ends a series of rounds with a quorum.
func (p *Floor) Failed() { p.Round(false, time.Time{}) }

// ReadFloor reads the mark that Run has stored. It returns the zero time if there is no mark. It
// fails if the mark is unreadable or implausible; the caller can then continue with the zero time
// that it also returns.
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
		return time.Time{}, fmt.Errorf("time mark %s: cannot read: %w; a new mark is started", file, err)
	}
	mark, err := time.Parse(time.RFC3339, strings.TrimSuffix(string(buf[:n]), "\n"))
	if err != nil {
		return time.Time{}, fmt.Errorf("time mark %s: cannot use: %w; a new mark is started", file, err)
	}
	if mark.After(build.Add(horizon)) {
		return time.Time{}, fmt.Errorf("time mark %s: cannot use: %s is decades after the build; a new mark is started", file,
			mark.UTC().Format(time.RFC3339))
	}
	return mark, nil
}

// due returns the mark to store at the time now. The second result is true if this mark is later
// than the stored mark, kept, by at least storeInterval.
func (p *Floor) due(kept, now time.Time) (time.Time, bool) {
	t := p.Now(now).UTC().Truncate(time.Second)
	return t, t.Sub(kept) >= storeInterval
}

// Run stores the mark in a file, about four times a day, until ctx is done. kept is the stored
// mark, the result of ReadFloor. After a power cut, the file has either the old or the new mark.
func (p *Floor) Run(ctx context.Context, file string, kept time.Time, failed func(error)) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		if t, due := p.due(kept, time.Now()); due {
			err := os.MkdirAll(filepath.Dir(file), 0o700)
			if err == nil {
				err = safefile.WriteFile(file, []byte(t.Format(time.RFC3339)+"\n"), 0o600)
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
