package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/durable"
)

// Journal holds the calls that go on, in a file each, in a folder of its own. It is bounded by how
// many go on at once.
type Journal struct {
	Dir string
}

// begun is a call's file.
type begun struct {
	At time.Time `json:"at"`
	Call
}

// Begin writes down that a call, which has an ID, begins, and returns when that is on the disk.
func (j Journal) Begin(at time.Time, c Call) error {
	text, err := json.Marshal(begun{at.UTC(), c})
	if err == nil {
		err = os.MkdirAll(j.Dir, 0o700)
	}
	if err == nil {
		err = durable.WriteFile(j.file(c.ID), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("audit: cannot write down that a call begins: %w", err)
	}
	return nil
}

// End forgets a call, whose end is on record.
func (j Journal) End(id string) error {
	err := os.Remove(j.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncDir(j.Dir)
	}
	if err != nil {
		return fmt.Errorf("audit: cannot forget a call that has ended: %w", err)
	}
	return nil
}

func (j Journal) file(id string) string { return filepath.Join(j.Dir, filepath.Base(id)+".json") }

// Unfinished are the calls that had begun and not ended when the journal was last written, the oldest
// first. It is for the start, before the first call begins. What cannot be read is taken for a call
// of which nothing is known but its ID.
func (j Journal) Unfinished() (calls []Entry, err error) {
	names, err := filepath.Glob(filepath.Join(j.Dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	for _, name := range names {
		var b begun
		text, err := os.ReadFile(name)
		if err != nil {
			return calls, fmt.Errorf("audit: cannot read which calls went on: %w", err)
		}
		if json.Unmarshal(text, &b) != nil {
			b = begun{}
		}
		if b.ID = filepath.Base(name); len(b.ID) > len(".json") {
			b.ID = b.ID[:len(b.ID)-len(".json")]
		}
		calls = append(calls, Entry{At: b.At, Call: b.Call})
	}
	slices.SortStableFunc(calls, func(a, b Entry) int { return a.At.Compare(b.At) })
	return calls, nil
}
