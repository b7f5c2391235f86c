package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/pkg/inventory"
)

// Read reads the list that machined wrote. Without a file, no machine waits: machined writes the
// file some seconds after the boot.
func Read(file string) ([]inventory.Entry, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("waiting machines: %w", err)
	}
	var entries []inventory.Entry
	if err := json.Unmarshal(content, &entries); err != nil {
		return nil, fmt.Errorf("waiting machines: %s: cannot decode: %w; it is written again within 10 s of the next message", file, err)
	}
	return entries, nil
}
