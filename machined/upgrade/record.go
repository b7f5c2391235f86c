package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/slot"
)

// Store is the directory on STATE with the record of the last upgrade, the epoch floor, the log of
// a trial, and the saved configuration of a version.
type Store struct{ Dir string }

// Load reads the record. A missing record is the zero record without an error. If the record is
// unreadable, Load returns the zero record and an error; the machine then boots without a record,
// because the record only describes the last upgrade.
func (s Store) Load() (slot.Record, error) {
	text, err := os.ReadFile(s.record())
	if errors.Is(err, fs.ErrNotExist) {
		return slot.Record{}, nil
	}
	var r slot.Record
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return slot.Record{}, fmt.Errorf("upgrade: cannot read the record of the last upgrade: %w", err)
	}
	return r, nil
}

// Save stores the record atomically: after a power cut, the file has the old or the new record.
func (s Store) Save(r slot.Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("upgrade: cannot write the record: %w", err)
	}
	return s.write(s.record(), text)
}

// EpochFloor returns the highest release epoch of a committed version; 0 if no version was
// committed.
func (s Store) EpochFloor() (int, error) {
	text, err := os.ReadFile(s.floor())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var f floor
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err == nil && f.Epoch < 0 {
		err = fmt.Errorf("epoch %d", f.Epoch)
	}
	if err != nil {
		return 0, fmt.Errorf("upgrade: cannot read the committed epoch: %w", err)
	}
	return f.Epoch, nil
}

// floor is the content of floor.json.
type floor struct {
	Epoch int `json:"epoch"`
}

// RaiseEpochFloor raises the epoch floor to an epoch, and returns when the file is on the disk. It
// never lowers the floor. It replaces an unreadable file.
func (s Store) RaiseEpochFloor(epoch int) error {
	if now, err := s.EpochFloor(); err == nil && now >= epoch {
		return nil
	}
	text, err := json.Marshal(floor{epoch})
	if err != nil {
		return err
	}
	return s.write(s.floor(), text)
}

func (s Store) floor() string { return filepath.Join(s.Dir, "floor.json") }

// SaveConfiguration stores the configuration of a version, and removes the configurations of all
// other versions. The machine calls SaveConfiguration for the running version after the other slot
// was overwritten. A later rollback can then only return to the running version. Without the
// removal, the configurations would fill STATE and retain replaced keys.
func (s Store) SaveConfiguration(version string, configuration []byte) error {
	kept := s.configuration(version)
	if err := s.write(kept, configuration); err != nil {
		return err
	}
	all, err := filepath.Glob(s.configuration("*"))
	for _, other := range all {
		if other != kept {
			err = errors.Join(err, os.Remove(other))
		}
	}
	if err != nil {
		return fmt.Errorf("upgrade: cannot remove the configuration of a removed version: %w", err)
	}
	return nil
}

// SavedConfiguration returns the stored configuration of a version; nil if there is none.
func (s Store) SavedConfiguration(version string) ([]byte, error) {
	text, err := os.ReadFile(s.configuration(version))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// SavedConfigurations returns the stored configurations of all versions.
func (s Store) SavedConfigurations() (all [][]byte, err error) {
	names, err := filepath.Glob(s.configuration("*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("upgrade: cannot read a saved configuration: %w", err)
		}
		all = append(all, text)
	}
	return all, nil
}

// SaveLog stores the end of the log of a version on trial.
func (s Store) SaveLog(lines []string) error {
	return s.write(s.log(), []byte(strings.Join(lines, "\n")))
}

// SavedLog returns the log that SaveLog stored last; nil if it is empty or unreadable.
func (s Store) SavedLog() []string {
	text, err := os.ReadFile(s.log())
	if err != nil || len(text) == 0 {
		return nil
	}
	// an earlier version of this program may have stored invalid UTF-8
	return strings.Split(strings.ToValidUTF8(string(text), "\uFFFD"), "\n")
}

// DropLog removes the stored log. A missing log is not an error.
func (s Store) DropLog() error {
	err := os.Remove(s.log())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s Store) log() string { return filepath.Join(s.Dir, "trial.log") }

func (s Store) record() string { return filepath.Join(s.Dir, "record.json") }

func (s Store) configuration(version string) string {
	return filepath.Join(s.Dir, "configuration-"+version+".yaml")
}

func (s Store) write(name string, text []byte) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("upgrade: cannot store: %w", err)
	}
	if err := safefile.WriteFile(name, text, 0o600); err != nil {
		return fmt.Errorf("upgrade: cannot store: %w", err)
	}
	return nil
}
