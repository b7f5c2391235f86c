package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/slot"
)

// Store is the folder on STATE that keeps the record of the last upgrade, and the configuration
// that each version was good with.
type Store struct{ Dir string }

// Load reads the record; none is the zero one. One that cannot be read is an error with the zero
// record: it only says why, and a machine comes up without it.
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
		return slot.Record{}, fmt.Errorf("upgrade: cannot read what is remembered of the last one: %w", err)
	}
	return r, nil
}

// Save stores the record: the old one or the new one, whenever the power goes.
func (s Store) Save(r slot.Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("upgrade: cannot write the record: %w", err)
	}
	return s.write(s.record(), text)
}

// EpochFloor is the highest epoch of a version that was committed; 0 where none was.
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
		return 0, fmt.Errorf("upgrade: cannot read which epoch was committed: %w", err)
	}
	return f.Epoch, nil
}

// floor is its file.
type floor struct {
	Epoch int `json:"epoch"`
}

// RaiseEpochFloor has Floor be at least an epoch, and returns when that is on the disk. It never lowers
// it. One that cannot be read is written anew.
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

// SaveConfiguration stores a configuration as the one that a version is good with, and forgets those of all
// others: it is called for the running version when the other slot has been written over, so there
// is no third one to go back to. Kept for ever they would fill STATE, and keep keys that were
// replaced.
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
		return fmt.Errorf("upgrade: cannot forget the configuration of a version that is gone: %w", err)
	}
	return nil
}

// SavedConfiguration returns the configuration that a version was good with; nil if none was kept.
func (s Store) SavedConfiguration(version string) ([]byte, error) {
	text, err := os.ReadFile(s.configuration(version))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// SaveLog stores the end of the log of a version on trial, while it still can.
func (s Store) SaveLog(lines []string) error {
	return s.write(s.log(), []byte(strings.Join(lines, "\n")))
}

// SavedLog returns what SaveLog stored last; nil if that is nothing, or cannot be read.
func (s Store) SavedLog() []string {
	text, err := os.ReadFile(s.log())
	if err != nil || len(text) == 0 {
		return nil
	}
	// a version of before may have kept other bytes
	return strings.Split(strings.ToValidUTF8(string(text), "\uFFFD"), "\n")
}

// DropLog forgets it.
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
	if err := durable.WriteFile(name, text, 0o600); err != nil {
		return fmt.Errorf("upgrade: cannot store: %w", err)
	}
	return nil
}
