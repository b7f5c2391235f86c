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

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Journal stores the calls in progress, one file each, in its own directory. The number of
// concurrent calls bounds its size.
type Journal struct {
	Dir string
}

// openCall is the content of a call's file.
type openCall struct {
	At time.Time `json:"at"`
	Call
}

// Begin stores a call that begins, by its ID, and returns when the file is on disk.
func (j Journal) Begin(at time.Time, c Call) error {
	text, err := json.Marshal(openCall{at.UTC(), c})
	if err == nil {
		err = os.MkdirAll(j.Dir, 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(j.file(c.ID), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("audit: cannot record the start of a call: %w", err)
	}
	return nil
}

// End removes a call from the journal. Before, the caller must have appended the end of the call to
// a record.
func (j Journal) End(id string) error {
	err := os.Remove(j.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = safefile.SyncDir(j.Dir)
	}
	if err != nil {
		return fmt.Errorf("audit: cannot remove a finished call from the journal: %w", err)
	}
	return nil
}

func (j Journal) file(id string) string { return filepath.Join(j.Dir, filepath.Base(id)+".json") }

// Unfinished returns the calls that began and did not end before the machine stopped, the oldest
// first. It must be called at boot, before the first Begin. An unreadable file yields a call with
// only an ID.
func (j Journal) Unfinished() (calls []Entry, err error) {
	names, err := filepath.Glob(filepath.Join(j.Dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	for _, name := range names {
		var b openCall
		text, err := os.ReadFile(name)
		if err != nil {
			return calls, fmt.Errorf("audit: cannot read the unfinished calls: %w", err)
		}
		if json.Unmarshal(text, &b) != nil {
			b = openCall{}
		}
		if b.ID = filepath.Base(name); len(b.ID) > len(".json") {
			b.ID = b.ID[:len(b.ID)-len(".json")]
		}
		calls = append(calls, Entry{At: b.At, Call: b.Call})
	}
	slices.SortStableFunc(calls, func(a, b Entry) int { return a.At.Compare(b.At) })
	return calls, nil
}
