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

// LeaseDir is the path of a directory with stored leases, a JSON file per MAC. The empty path
// stores nothing.
type LeaseDir string

// Load returns the stored lease of a MAC, or nil.
func (f LeaseDir) Load(mac string) (*dhcp.Lease, error) {
	if f == "" {
		return nil, nil
	}
	b, err := os.ReadFile(f.path(mac))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l dhcp.Lease
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("stored lease of %s: cannot read, requesting a new lease: %w", mac, err)
	}
	if !l.Address.IsValid() {
		return nil, nil
	}
	return &l, nil
}

// Save stores a lease, or removes the stored lease if l is nil. A power cut leaves the old file,
// the new file or none; each is acceptable, because the server decides.
func (f LeaseDir) Save(mac string, l *dhcp.Lease) error {
	if f == "" {
		return nil
	}
	if l == nil {
		if err := os.Remove(f.path(mac)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stored lease of %s: cannot remove: %w", mac, err)
		}
		return nil
	}
	b, err := json.Marshal(l)
	if err == nil {
		err = writeFile(f.path(mac), string(b))
	}
	if err != nil {
		return fmt.Errorf("lease of %s: cannot store: %w", mac, err)
	}
	return nil
}

func (f LeaseDir) path(mac string) string {
	return filepath.Join(string(f), "lease-"+strings.ReplaceAll(mac, ":", "")+".json")
}
