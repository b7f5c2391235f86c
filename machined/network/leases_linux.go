package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/machined/network/dhcp"
)

// leaseKey identifies the leases of a link: the MAC. A link that the package creates has the MAC of
// another link, and adds its name.
func (l Link) leaseKey() string {
	if l.Own {
		return l.MAC + "-" + l.Name
	}
	return l.MAC
}

// LeaseDir is the path of a directory with stored leases, a JSON file per Link.leaseKey. The empty
// path stores nothing.
type LeaseDir string

// Load returns the stored lease of a key, or nil.
func (f LeaseDir) Load(key string) (*dhcp.Lease, error) {
	if f == "" {
		return nil, nil
	}
	b, err := os.ReadFile(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l dhcp.Lease
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("stored lease of %s: cannot read, requesting a new lease: %w", key, err)
	}
	if !l.Address.IsValid() {
		return nil, nil
	}
	return &l, nil
}

// Save stores a lease, or removes the stored lease if l is nil. A power cut leaves the old file,
// the new file or none; each is acceptable, because the server decides.
func (f LeaseDir) Save(key string, l *dhcp.Lease) error {
	if f == "" {
		return nil
	}
	if l == nil {
		if err := os.Remove(f.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stored lease of %s: cannot remove: %w", key, err)
		}
		return nil
	}
	b, err := json.Marshal(l)
	if err == nil {
		err = writeFile(f.path(key), string(b))
	}
	if err != nil {
		return fmt.Errorf("lease of %s: cannot store: %w", key, err)
	}
	return nil
}

func (f LeaseDir) path(key string) string {
	return filepath.Join(string(f), "lease-"+strings.ReplaceAll(key, ":", "")+".json")
}
