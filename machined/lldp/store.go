package lldp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// maxStored bounds the file of stored labels in bytes. 64 labels, with keys of up to 317 bytes and
// their values, need less than half of it.
const maxStored = 64 << 10

// load reads the last labels. It returns none if the path is empty or the file does not exist.
func load(file string) (map[string]string, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("LLDP: stored labels: cannot read: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxStored))
	var labels map[string]string
	if err == nil {
		err = json.Unmarshal(content, &labels)
	}
	if err != nil {
		return nil, fmt.Errorf("LLDP: stored labels: cannot read %s: %w; the next frames replace them", file, err)
	}
	return labels, nil
}

// save stores the labels. A power cut leaves the old file or the new file.
func save(file string, labels map[string]string) error {
	if file == "" {
		return nil
	}
	content, err := json.Marshal(labels)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(file, append(content, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("LLDP: labels: cannot store: %w", err)
	}
	return nil
}
