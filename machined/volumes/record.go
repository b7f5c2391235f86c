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
	// Complete reports that the file system was created: from then on it is never created again.
	Complete bool `json:"complete,omitempty"`
	// Disk describes the disk, for messages while it is missing.
	Disk string `json:"disk,omitempty"`
	// Discard is the UUID of a former file system in the partition: a reset has dropped its data.
	Discard uuid.UUID `json:"discard,omitzero"`
	// Placed reports that the places on DATA led to the volume: the part of DATA is on it.
	Placed bool `json:"placed,omitempty"`
}

// recordFile is the stored form.
type recordFile struct {
	Volumes []Record `json:"volumes"`
}

// readRecords reads the records, sorted by name. A missing file means that there are none; any
// other error means that it is unknown which partitions are the machine's own.
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

// writeRecords stores the records and waits until they are on the disk.
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

// with returns the records with r in the place of the record with its name.
func with(records []Record, r Record) []Record {
	out := slices.DeleteFunc(slices.Clone(records), func(o Record) bool { return o.Name == r.Name })
	out = append(out, r)
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// recordOf returns the record of a volume; false if there is none.
func recordOf(records []Record, name string) (Record, bool) {
	i := slices.IndexFunc(records, func(r Record) bool { return r.Name == name })
	if i < 0 {
		return Record{}, false
	}
	return records[i], true
}
