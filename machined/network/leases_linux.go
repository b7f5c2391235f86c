package network

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp6"
)

// leaseKey returns the key of the leases of a link, which is its MAC. A link that the package
// creates can have the same MAC as another link, so its key also contains its name.
func (l Link) leaseKey() string {
	if l.Own {
		return l.MAC + "-" + l.Name
	}
	return l.MAC
}

// LeaseDir is the path of a directory with stored leases and the stored DUID. Each lease is a JSON
// file, with a name from Link.leaseKey. The empty path stores nothing.
type LeaseDir string

// Load returns the stored DHCPv4 lease of a key. It returns nil if no lease is stored, and an error
// if the file is unreadable.
func (f LeaseDir) Load(key string) (*dhcp.Lease, error) {
	l, err := load[dhcp.Lease](f, "lease-", key)
	if l == nil || !l.Address.IsValid() {
		return nil, err
	}
	return l, nil
}

// Load6 does the same as Load for DHCPv6.
func (f LeaseDir) Load6(key string) (*dhcp6.Lease, error) {
	return load[dhcp6.Lease](f, "lease6-", key)
}

func load[T any](f LeaseDir, kind, key string) (*T, error) {
	if f == "" {
		return nil, nil
	}
	b, err := os.ReadFile(f.path(kind, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var l T
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("stored lease of %s: cannot read, requesting a new lease: %w", key, err)
	}
	return &l, nil
}

// Save stores a DHCPv4 lease. If l is nil, Save removes the stored lease. A power cut leaves the
// old file, the new file or no file. Each result is acceptable, because the server decides about
// the lease.
func (f LeaseDir) Save(key string, l *dhcp.Lease) error { return save(f, "lease-", key, l) }

// Save6 does the same as Save for DHCPv6.
func (f LeaseDir) Save6(key string, l *dhcp6.Lease) error { return save(f, "lease6-", key, l) }

func save[T any](f LeaseDir, kind, key string, l *T) error {
	if f == "" {
		return nil
	}
	if l == nil {
		if err := os.Remove(f.path(kind, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stored lease of %s: cannot remove: %w", key, err)
		}
		return nil
	}
	b, err := json.Marshal(l)
	if err == nil {
		err = writeFile(f.path(kind, key), string(b))
	}
	if err != nil {
		return fmt.Errorf("lease of %s: cannot store: %w", key, err)
	}
	return nil
}

// DUID returns the stored DUID, which identifies the machine to DHCPv6 servers (RFC 8415 section
// 11). It returns nil if no DUID is stored, and an error if the file is unreadable or has an
// invalid length.
func (f LeaseDir) DUID() ([]byte, error) {
	if f == "" {
		return nil, nil
	}
	b, err := os.ReadFile(filepath.Join(string(f), duidFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var id []byte
	if err == nil {
		id, err = hex.DecodeString(strings.TrimSpace(string(b)))
	}
	if err == nil && (len(id) < 3 || len(id) > 130) {
		err = fmt.Errorf("it has %d bytes, not 3 to 130", len(id))
	}
	if err != nil {
		return nil, fmt.Errorf("stored identifier for DHCPv6: cannot read, using that of the hardware: %w", err)
	}
	return id, nil
}

// SaveDUID stores the DUID of the machine.
func (f LeaseDir) SaveDUID(id []byte) error {
	if f == "" {
		return nil
	}
	if err := writeFile(filepath.Join(string(f), duidFile), hex.EncodeToString(id)+"\n"); err != nil {
		return fmt.Errorf("identifier for DHCPv6: cannot store: %w", err)
	}
	return nil
}

const duidFile = "duid"

func (f LeaseDir) path(kind, key string) string {
	return filepath.Join(string(f), kind+strings.ReplaceAll(key, ":", "")+".json")
}
