package wear

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// recordFile is the stored form of the records.
type recordFile struct {
	Disks map[string]Record `json:"disks"` // by Target.key
}

// readRecords reads the records. It returns nil if the file is missing.
func readRecords(path string) (map[string]Record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var f recordFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("the record of errors of disks cannot be read: %w", err)
	}
	return f.Disks, nil
}

// writeRecords stores the records, and returns when they are on the disk.
func writeRecords(path string, records map[string]Record) error {
	text, err := json.MarshalIndent(recordFile{records}, "", "  ")
	if err == nil {
		err = safefile.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("the record of errors of disks cannot be written: %w", err)
	}
	return nil
}
