// Package documents keeps a machine's configurations on STATE: the one in force, one that waits for the next start, the one to come back
// to while another is tried, and those that were in force before.
//
// Files of the folder, all of mode 0600:
//
//	current.yaml    in force. Missing: the image's, or none.
//	staged.yaml     takes its place at the next start.
//	return.yaml     current.yaml is on trial, and this takes its place at the next start. Empty: current.yaml goes, nothing comes.
//	history/N.json  was in force as number N (Entry).
//
// Every change is one rename or one removal, or an order of them of which each prefix is the state before or the state after; it is said
// where that is so. A change that was reported as done survives a power cut.
package documents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/pkg/durable"
)

// Store is the folder.
type Store struct{ Dir string }

func (s Store) current() string { return filepath.Join(s.Dir, "current.yaml") }
func (s Store) staged() string  { return filepath.Join(s.Dir, "staged.yaml") }
func (s Store) before() string  { return filepath.Join(s.Dir, "return.yaml") }

// Current is the file of the documents in force. It may be missing.
func (s Store) Current() string { return s.current() }

// Put puts documents in force, for good: whatever was tried has ended. A cut before the trial's end is on the disk returns from it, as it
// would have without this call.
func (s Store) Put(documents []byte) error {
	if err := s.write(s.current(), documents); err != nil {
		return err
	}
	return s.Confirm()
}

// Try puts documents in force until Confirm. Without it Return, or Begin at the next start, puts those in force that are now; if these
// are on trial themselves, those before them.
func (s Store) Try(documents []byte) error {
	if !s.Trying() {
		present, err := read(s.current())
		if err != nil {
			return err
		}
		// Both are the same until the next step is done: returning changes nothing.
		if err := s.write(s.before(), present); err != nil {
			return err
		}
	}
	return s.write(s.current(), documents)
}

// Trying tells whether what is in force is on trial.
func (s Store) Trying() bool {
	_, err := os.Lstat(s.before())
	return err == nil
}

// Confirm ends a trial; what is in force stays. Without a trial it does nothing.
func (s Store) Confirm() error { return s.remove(s.before()) }

// Return ends a trial: what was in force before it is again. Without a trial it does nothing.
func (s Store) Return() error {
	info, err := os.Lstat(s.before())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot return to the one before: %w", err)
	}
	if info.Size() > 0 {
		return s.rename(s.before(), s.current())
	}
	// In this order: without return.yaml nobody would know that current.yaml has to go.
	return errors.Join(s.remove(s.current()), s.remove(s.before()))
}

// Lasting returns the documents that are in force whatever becomes of a trial; nil if there are none.
func (s Store) Lasting() ([]byte, error) {
	if !s.Trying() {
		return read(s.current())
	}
	text, err := read(s.before())
	if len(text) == 0 {
		return nil, err
	}
	return text, err
}

// Stage keeps documents for the next start. They take the place of others that were staged.
func (s Store) Stage(documents []byte) error { return s.write(s.staged(), documents) }

// Staged is when documents were staged; zero: none are.
func (s Store) Staged() time.Time {
	info, err := os.Stat(s.staged())
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// DropStaged forgets what was staged.
func (s Store) DropStaged() error { return s.remove(s.staged()) }

// Begin does what is due when the machine starts, and says what it did: it returns from a trial that nobody has confirmed, and puts in
// force what was staged. A cut between the two is a start of its own.
func (s Store) Begin() (returned, staged bool, err error) {
	if returned = s.Trying(); returned {
		if err := s.Return(); err != nil {
			return false, false, err
		}
	}
	if s.Staged().IsZero() {
		return returned, false, nil
	}
	if err := s.rename(s.staged(), s.current()); err != nil {
		return returned, false, err
	}
	return returned, true, nil
}

func (s Store) write(name string, content []byte) error {
	err := os.MkdirAll(s.Dir, 0o700)
	if err == nil {
		err = durable.WriteFile(name, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot store: %w", err)
	}
	return nil
}

func (s Store) rename(from, to string) error {
	err := os.Rename(from, to)
	if err == nil {
		err = durable.SyncFolder(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot put %s in force: %w", filepath.Base(from), err)
	}
	return nil
}

func (s Store) remove(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncFolder(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot drop %s: %w", filepath.Base(name), err)
	}
	return nil
}

// read returns a file's content; nil if there is none.
func read(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: cannot read: %w", err)
	}
	return text, nil
}
