package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Record is the record of a volume that this machine has created.
type Record struct {
	Name       string           `json:"name"`
	Use        config.VolumeUse `json:"use"`
	Partition  uuid.UUID        `json:"partition"`  // unique GUID of the partition
	Filesystem uuid.UUID        `json:"filesystem"` // UUID of the file system
	// Complete is true after the file system was created. Then the partition is never formatted
	// again.
	Complete bool `json:"complete,omitempty"`
	// Disk is a description of the disk, for messages while the disk is missing.
	Disk string `json:"disk,omitempty"`
	// Discard is the UUID of a file system that may be overwritten, because a reset has dropped its
	// data.
	Discard uuid.UUID `json:"discard,omitzero"`
	// Placed is true after the volume has replaced its directories on DATA. The part of DATA is
	// then on the volume.
	Placed bool `json:"placed,omitempty"`
}

// recordFile is the stored form of the records.
type recordFile struct {
	Volumes []Record `json:"volumes"`
}

// readRecords returns the records, sorted by name. A missing file means that there are no records.
// After any other error, the machine does not know which partitions are its own.
func readRecords(path string) ([]Record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var f recordFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("the record of volumes cannot be read, so no volume is used: %w", err)
	}
	return f.Volumes, nil
}

// writeRecords stores the records, and returns when they are on the disk.
func writeRecords(path string, records []Record) error {
	text, err := json.MarshalIndent(recordFile{records}, "", "  ")
	if err == nil {
		err = safefile.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("the record of volumes cannot be written: %w", err)
	}
	return nil
}

// The function with returns a copy of the records with r. r replaces the record with the same name.
func with(records []Record, r Record) []Record {
	out := slices.DeleteFunc(slices.Clone(records), func(o Record) bool { return o.Name == r.Name })
	out = append(out, r)
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// recordOf returns the record of a volume. The bool is false if there is none.
func recordOf(records []Record, name string) (Record, bool) {
	i := slices.IndexFunc(records, func(r Record) bool { return r.Name == name })
	if i < 0 {
		return Record{}, false
	}
	return records[i], true
}
