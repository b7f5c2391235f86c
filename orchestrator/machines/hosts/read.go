package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
)

// Read reads the list of waiting machines that machined has written. If the file does not exist,
// Read returns an empty list and no error, because machined writes the file only some seconds after
// the boot.
func Read(file string) (inventory.Listing, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return inventory.Listing{}, nil
	}
	if err != nil {
		return inventory.Listing{}, fmt.Errorf("waiting machines: %w", err)
	}
	var l inventory.Listing
	if err := json.Unmarshal(content, &l); err != nil {
		return inventory.Listing{}, fmt.Errorf("waiting machines: %s: cannot decode: %w; machined writes it again within 10 s of the next message", file, err)
	}
	return l, nil
}
