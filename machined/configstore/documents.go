// Package configstore stores the configurations of a machine on STATE: the active configuration, a
// staged configuration, the configuration that follows an unconfirmed trial, and the history.
//
// The files in the directory have mode 0600:
//
//	current.yaml    active configuration. Without the file, the configuration of the image is
//	                active, if the image has one.
//	staged.yaml     replaces current.yaml at the next boot.
//	try.json        the trial of staged.yaml, which begins at the next boot (StagedTrial).
//	return.json     the replacement of current.yaml at the next boot, if current.yaml is on trial
//	                (revertRecord).
//	reached.yaml    the last configuration with which the machine had an address.
//	history/N.json  the active configuration with number N (Entry).
//
// A change is a single rename or removal, or a sequence of them. A power cut in a sequence leaves
// the state before or the state after the whole change; a comment explains why. A completed
// change survives a power cut.
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

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Store is the directory of the configurations.
type Store struct{ Dir string }

func (s Store) current() string    { return filepath.Join(s.Dir, "current.yaml") }
func (s Store) staged() string     { return filepath.Join(s.Dir, "staged.yaml") }
func (s Store) tryFile() string    { return filepath.Join(s.Dir, "try.json") }
func (s Store) reached() string    { return filepath.Join(s.Dir, "reached.yaml") }
func (s Store) revertFile() string { return filepath.Join(s.Dir, "return.json") }

// revertRecord holds the configuration that follows an unconfirmed trial. It is valid only while
// the active configuration is the configuration on trial. Therefore the activation of any other
// configuration ends the trial, even if an older version of the system, which does not know trials,
// performs the activation.
type revertRecord struct {
	// SHA-256 digests of the configuration on trial, and of earlier configurations of the trial
	Tried []string `json:"tried"`
	// the configuration from before the trial; empty if there was none
	Documents string `json:"documents"`
}

func digest(documents []byte) string {
	sum := sha256.Sum256(documents)
	return hex.EncodeToString(sum[:])
}

// Current returns the path of the active configuration. The file may be missing.
func (s Store) Current() string { return s.current() }

// Put makes documents the active configuration and ends any trial.
func (s Store) Put(documents []byte) error {
	if err := s.write(s.current(), documents); err != nil {
		return err
	}
	// A power cut before the removal is harmless: return.json applies to no other configuration.
	return s.ConfirmTrial()
}

// StartTrial makes documents the active configuration and starts their trial. If no
// ConfirmTrial follows, the previous configuration becomes active again: by RevertTrial, or by Boot
// at the next boot. If the previous configuration is itself on trial, RevertTrial and Boot restore
// the configuration from before its trial.
func (s Store) StartTrial(documents []byte) error {
	present, err := read(s.current())
	if err != nil {
		return err
	}
	c := revertRecord{Tried: []string{digest(documents)}, Documents: string(present)}
	last, trying, err := s.trial()
	if err != nil {
		return err
	}
	if trying {
		c.Tried, c.Documents = append(c.Tried, digest(present)), last.Documents
	}
	// Until the second write completes, the active configuration is either not on trial or still on
	// the earlier trial.
	if err := s.writeJSON(s.revertFile(), c); err != nil {
		return err
	}
	return s.write(s.current(), documents)
}

// trial returns the content of return.json, and reports whether the active configuration is on
// trial. A damaged return.json is treated as missing.
func (s Store) trial() (c revertRecord, trying bool, err error) {
	text, err := read(s.revertFile())
	if err != nil || json.Unmarshal(text, &c) != nil {
		return revertRecord{}, false, err
	}
	trying, err = hasDigest(s.current(), c.Tried)
	return c, trying, err
}

// hasDigest reports whether the content of a file has one of the digests. A missing file has none.
func hasDigest(name string, digests []string) (bool, error) {
	content, err := read(name)
	return content != nil && slices.Contains(digests, digest(content)), err
}

// MaybeOnTrial reports whether the active configuration is on trial, or STATE cannot be read.
func (s Store) MaybeOnTrial() bool {
	_, trying, err := s.trial()
	return trying || err != nil
}

// ConfirmTrial ends a trial and retains the active configuration. It does nothing without a trial.
func (s Store) ConfirmTrial() error { return s.remove(s.revertFile()) }

// RevertTrial ends a trial and restores the previous configuration. It does nothing without a
// trial. It reports whether a trial was running.
func (s Store) RevertTrial() (returned bool, err error) {
	c, trying, err := s.trial()
	switch {
	case err != nil:
	case trying && c.Documents == "":
		err = s.remove(s.current())
	case trying:
		err = s.write(s.current(), []byte(c.Documents))
	}
	if err != nil {
		return false, err
	}
	return trying, s.ConfirmTrial() // return.json is obsolete now
}

// Confirmed returns the configuration that needs no confirmation: the active configuration or,
// during a trial, the previous configuration; nil if there is none.
func (s Store) Confirmed() ([]byte, error) {
	c, trying, err := s.trial()
	switch {
	case err != nil:
		return nil, err
	case !trying:
		return read(s.current())
	case c.Documents == "":
		return nil, nil
	}
	return []byte(c.Documents), nil
}

// StagedTrial is the trial that begins when a boot activates the staged configuration. It is valid
// only for the documents with these digests, like a revertRecord.
type StagedTrial struct {
	// SHA-256 digests of the staged documents, and of earlier staged documents that they replace
	Tried    []string      `json:"tried"`
	Duration time.Duration `json:"duration"` // nanoseconds
	Name     string        `json:"name,omitempty"`
}

// Stage stores documents for the next boot, without a trial. They replace an earlier staged
// configuration.
func (s Store) Stage(documents []byte) error {
	// A power cut before the removal is harmless: try.json is valid only for the documents with its
	// digests.
	if err := s.write(s.staged(), documents); err != nil {
		return err
	}
	return s.remove(s.tryFile())
}

// StageTrial stores documents for the next boot, which puts them on trial. They replace an earlier
// staged configuration.
func (s Store) StageTrial(documents []byte, name string, duration time.Duration) error {
	t := StagedTrial{Tried: []string{digest(documents)}, Duration: duration, Name: name}
	_, trying, err := s.StagedTrial()
	if err != nil {
		return err
	}
	if trying {
		earlier, err := read(s.staged())
		if err != nil {
			return err
		}
		t.Tried = append(t.Tried, digest(earlier))
	}
	// Until the second write completes, the earlier staged configuration stays staged. It keeps its
	// trial if it has one; otherwise try.json is not valid for it.
	if err := s.writeJSON(s.tryFile(), t); err != nil {
		return err
	}
	return s.write(s.staged(), documents)
}

// StagedTrial returns the trial of the staged configuration, and reports whether it has one.
func (s Store) StagedTrial() (t StagedTrial, trying bool, err error) {
	text, err := read(s.tryFile())
	if err != nil || json.Unmarshal(text, &t) != nil {
		return StagedTrial{}, false, err
	}
	trying, err = hasDigest(s.staged(), t.Tried)
	return t, trying, err
}

// Staged returns the time at which the staged configuration was stored; the zero time if no
// configuration is staged.
func (s Store) Staged() time.Time {
	info, err := os.Stat(s.staged())
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// DropStaged removes the staged configuration, with its trial.
func (s Store) DropStaged() error {
	if err := s.remove(s.staged()); err != nil {
		return err
	}
	return s.remove(s.tryFile())
}

// Changed is the result of Boot.
type Changed struct {
	Returned bool // an unconfirmed trial was reverted
	Staged   bool // the staged configuration became active
	// Trial is the trial of the staged configuration that became active; nil if it has none.
	Trial *StagedTrial
	// The revert of an unconfirmed trial has failed, so the configuration of this trial is still
	// active. Also true if STATE cannot be read.
	Overdue bool
}

// Boot performs the pending changes at boot: it reverts an unconfirmed trial, and it activates the
// staged configuration if adopt is true. It reports the changes that it made, even if it also
// returns an error. If the staged configuration has a trial that no client confirms, it is active
// in this boot only: the next boot reverts it. After a power cut between the steps, the next boot
// performs the remaining steps.
func (s Store) Boot(adopt bool) (c Changed, err error) {
	if c.Returned, err = s.RevertTrial(); err != nil {
		c.Overdue = s.MaybeOnTrial()
		return c, err
	}
	if !adopt || s.Staged().IsZero() {
		return c, nil
	}
	t, trying, err := s.StagedTrial()
	if err == nil && trying {
		err = s.recordTrial(t)
	}
	if err == nil {
		c.Staged, err = s.rename(s.staged(), s.current())
	}
	// After the rename the configuration is active and on trial, even if a later step fails.
	if c.Staged && trying {
		c.Trial = &t
		err = errors.Join(err, s.remove(s.tryFile()))
	}
	if err != nil {
		return c, fmt.Errorf("configuration: cannot activate the staged one completely: %w", err)
	}
	return c, nil
}

// recordTrial stores the record of the trial of the staged configuration, before the configuration
// is active. The record is valid only while the active configuration has a digest in the record.
func (s Store) recordTrial(t StagedTrial) error {
	present, err := read(s.current())
	if err != nil {
		return err
	}
	return s.writeJSON(s.revertFile(), revertRecord{Tried: t.Tried, Documents: string(present)})
}

// MarkReachable records that the machine had an address with these documents.
func (s Store) MarkReachable(documents []byte) error { return s.write(s.reached(), documents) }

// LastReachable returns the last configuration with which the machine had an address (nil if there
// is none), and reports whether it is the active configuration.
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
		err = safefile.WriteFile(name, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot store: %w", err)
	}
	return nil
}

func (s Store) writeJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("configuration: cannot store %s: %w", filepath.Base(name), err)
	}
	return s.write(name, text)
}

// rename reports whether the file has its new name. If it has, but the error is not nil, a power
// cut can undo the rename.
func (s Store) rename(from, to string) (renamed bool, err error) {
	if err := os.Rename(from, to); err != nil {
		return false, err
	}
	return true, safefile.SyncDir(s.Dir)
}

func (s Store) remove(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = safefile.SyncDir(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("configuration: cannot drop %s: %w", filepath.Base(name), err)
	}
	return nil
}

// read returns the content of a file; nil if the file does not exist.
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
