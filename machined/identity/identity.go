package identity

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// ttl is the TTL of the certificate. It exceeds the lifetime of any machine.
const ttl = 50 * 365 * 24 * time.Hour

// Files are the files of a key and its certificate, in one directory.
type Files struct {
	Key, Cert string
	DirMode   os.FileMode // of the directory, if it does not exist
}

// Deps is the environment of an Identity.
type Deps struct {
	Name   string // common name of the certificate
	Stored Files  // on STATE
	Memory Files  // lost at power-off
	// Console reports a problem to the operator.
	Console func(line string)
}

// Identity is the machine key.
type Identity struct {
	deps Deps
	leaf atomic.Pointer[pki.Leaf]
}

// New returns the identity before Read.
func New(d Deps) *Identity { return &Identity{deps: d} }

// Load returns the key and the certificate with which the key was stored; nil before Read.
func (i *Identity) Load() *pki.Leaf { return i.leaf.Load() }

// Key returns the machine key; nil if it is not loaded yet.
func (i *Identity) Key() *ecdsa.PrivateKey {
	if own := i.Load(); own != nil {
		return own.Key
	}
	return nil
}

// Read reads the key, or creates it on first boot. hasStorage is true if STATE is mounted. A
// machine with an unreadable key gets a temporary key: without a key its API could not even report
// the problem.
func (i *Identity) Read(hasStorage bool) error {
	from := i.deps.Memory
	if hasStorage {
		from = i.deps.Stored
	}
	leaf, err := from.read()
	if errors.Is(err, fs.ErrNotExist) {
		leaf, err = from.create(i.deps.Name)
	}
	if err != nil {
		i.deps.Console(err.Error() + "; the machine uses a temporary key until power-off; `orlopctl reset --wipe state` creates a new one")
		if leaf, err = i.deps.Memory.create(i.deps.Name); err != nil {
			return err
		}
	}
	i.leaf.Store(leaf)
	return nil
}

// Persist stores the key of a machine that had no disk when it created the key. If the disk has a
// key already, that key stays: the operators know it, and the next boot reads it.
func (i *Identity) Persist() error {
	if _, err := i.deps.Stored.read(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return i.deps.Stored.store(i.Load())
}

func (f Files) read() (*pki.Leaf, error) {
	k, err := os.ReadFile(f.Key)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	c, err := os.ReadFile(f.Cert)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	leaf, err := pki.ParseLeaf(c, k)
	if err != nil {
		return nil, fmt.Errorf("identity: cannot use %s: %w", f.Key, err)
	}
	return leaf, nil
}

// create creates a key. It writes the certificate last: after a power cut between the two writes no
// identity exists, and the next boot creates another key before a client has seen the first.
func (f Files) create(name string) (*pki.Leaf, error) {
	leaf, err := pki.SelfSigned(pki.Spec{CN: name, Usage: pki.Server, TTL: ttl, Backdate: pki.CABackdate})
	if err != nil {
		return nil, fmt.Errorf("identity: cannot create a key: %w", err)
	}
	return leaf, f.store(leaf)
}

func (f Files) store(leaf *pki.Leaf) error {
	if err := os.MkdirAll(filepath.Dir(f.Key), f.DirMode); err != nil {
		return fmt.Errorf("identity: cannot store: %w", err)
	}
	if err := safefile.WriteFile(f.Key, leaf.KeyPEM(), 0o600); err != nil {
		return fmt.Errorf("identity: cannot store: %w", err)
	}
	if err := safefile.WriteFile(f.Cert, leaf.CertPEM(), 0o600); err != nil {
		return fmt.Errorf("identity: cannot store: %w", err)
	}
	return nil
}
