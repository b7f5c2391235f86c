// Package configstore keeps a machine's configurations on STATE: the one in force, one that waits for
// the next start, the one to come back to while another is tried, and those that were in force
// before.
//
// Files of the folder, all of mode 0600:
//
//	current.yaml    in force. Missing: the image's, or none.
//	staged.yaml     takes its place at the next start.
//	return.json     current.yaml is on trial, and what this holds takes its place at the next start (comeback).
//	reached.yaml    the last one with which the machine had an address.
//	history/N.json  was in force as number N (Entry).
//
// Every change is one rename or one removal, or an order of them of which each prefix is the state
// before or the state after; it is said where that is so. A change that was reported as done
// survives a power cut.
package configstore

import (
	"crypto/sha256"
	"encoding/hex"
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

// Store is the folder.
type Store struct{ Dir string }

func (s Store) current() string { return filepath.Join(s.Dir, "current.yaml") }
func (s Store) staged() string  { return filepath.Join(s.Dir, "staged.yaml") }
func (s Store) reached() string { return filepath.Join(s.Dir, "reached.yaml") }
func (s Store) before() string  { return filepath.Join(s.Dir, "return.json") }

// comeback is what comes back after a trial. It counts only while what is in force is what was
// tried: whoever puts other documents in force, and be it a version of the system that knows no
// trials, ends the trial by that.
type comeback struct {
	// SHA-256 of what is on trial, and of what takes its place there
	Tried     []string `json:"tried"`
	Documents string   `json:"documents"` // empty: there were none
}

func digest(documents []byte) string {
	sum := sha256.Sum256(documents)
	return hex.EncodeToString(sum[:])
}

// Current is the file of the documents in force. It may be missing.
func (s Store) Current() string { return s.current() }

// Put puts documents in force, for good: whatever was tried has ended.
func (s Store) Put(documents []byte) error {
	if err := s.write(s.current(), documents); err != nil {
		return err
	}
	return s.ConfirmTrial()
}

// StartTrial puts documents in force until Confirm. Without it Return, or Begin at the next start, puts
// those in force that are now; if these are on trial themselves, those before them.
func (s Store) StartTrial(documents []byte) error {
	present, err := read(s.current())
	if err != nil {
		return err
	}
	c := comeback{Tried: []string{digest(documents)}, Documents: string(present)}
	if last, trying := s.trial(); trying {
		c.Tried, c.Documents = append(c.Tried, digest(present)), last.Documents
	}
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("configuration: cannot keep the one before: %w", err)
	}
	// Until the second is done, what is in force is either not on trial, or still is.
	if err := s.write(s.before(), text); err != nil {
		return err
	}
	return s.write(s.current(), documents)
}

// trial is what comes back, and whether what is in force is on trial.
func (s Store) trial() (c comeback, trying bool) {
	text, err := os.ReadFile(s.before())
	if err != nil || json.Unmarshal(text, &c) != nil {
		return comeback{}, false
	}
	present, err := os.ReadFile(s.current())
	return c, err == nil && slices.Contains(c.Tried, digest(present))
}

// ConfirmTrial ends a trial; what is in force stays. Without a trial it does nothing.
func (s Store) ConfirmTrial() error { return s.remove(s.before()) }

// RevertTrial ends a trial: what was in force before it is again. Without a trial it does nothing; it
// tells whether there was one.
func (s Store) RevertTrial() (returned bool, err error) {
	c, trying := s.trial()
	switch {
	case trying && c.Documents == "":
		err = s.remove(s.current())
	case trying:
		err = s.write(s.current(), []byte(c.Documents))
	}
	if err != nil {
		return false, err
	}
	return trying, s.ConfirmTrial() // it counts no more
}

// Confirmed returns the documents that are in force whatever becomes of a trial; nil if there are
// none.
func (s Store) Confirmed() ([]byte, error) {
	c, trying := s.trial()
	switch {
	case !trying:
		return read(s.current())
	case c.Documents == "":
		return nil, nil
	}
	return []byte(c.Documents), nil
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

// Boot does what is due when the machine starts, and says what it did: it returns from a trial
// that nobody has confirmed, and puts in force what was staged, if adopt says so. A cut between the
// two is a start of its own.
func (s Store) Boot(adopt bool) (returned, staged bool, err error) {
	if returned, err = s.RevertTrial(); err != nil {
		return returned, false, err
	}
	if !adopt || s.Staged().IsZero() {
		return returned, false, nil
	}
	err = os.Rename(s.staged(), s.current())
	if err == nil {
		err = durable.SyncDir(s.Dir)
	}
	if err != nil {
		return returned, false, fmt.Errorf("configuration: cannot put the staged one in force: %w", err)
	}
	return returned, true, nil
}

// MarkReachable notes that the machine had an address with these documents.
func (s Store) MarkReachable(documents []byte) error { return s.write(s.reached(), documents) }

// LastReachable returns the last documents with which the machine had an address (nil if there are none),
// and whether they are those in force.
func (s Store) LastReachable() (documents []byte, current bool, err error) {
	if documents, err = read(s.reached()); err != nil || documents == nil {
		return nil, false, err
	}
	present, err := read(s.current())
	return documents, err == nil && digest(present) == digest(documents), err
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

func (s Store) remove(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.SyncDir(s.Dir)
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
